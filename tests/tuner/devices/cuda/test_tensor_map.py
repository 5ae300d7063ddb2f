"""Tensor maps: what the driver is told of a tensor, without a driver."""

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import TensorMap
from tilewright.tuner.devices.cuda.tensor_map import MapCells, MapFields
from tilewright.tuner.errors import TunerError

GEMM = catalogue().get("gemm")
TENSORS = {tensor.name: tensor for tensor in GEMM.tensors}


def fields(name, box, dtype="bfloat16", options=None, **shape):
    """What the driver is told of gemm's argument."""
    return MapFields.of(TensorMap(name, box), TENSORS[name], GEMM.problem(shape, dtype, options or {}))


def test_axes_go_from_the_innermost_and_strides_are_in_bytes():
    told = fields("A", (1, 128, 64), m=300, n=64, k=200)
    assert told.sizes == (200, 300, 1)
    assert told.strides_bytes == (400, 300 * 400)
    assert told.box == (64, 128, 1)
    assert (told.data_type, told.swizzle) == (9, 3)  # CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, _SWIZZLE_128B


def test_a_transposed_operand_is_named_as_it_is_stored():
    assert fields("A", (1, 64, 64), options={"trans_a": True}, m=304, n=64, k=200).sizes == (304, 200, 1)


def test_views_and_batches_keep_their_strides():
    told = fields("C", (1, 16, 64), m=30, n=40, k=64, batch=5, ldc=48, stride_c=2000)
    assert (told.sizes, told.strides_bytes) == ((40, 30, 5), (96, 4000))
    taking_turns = fields("C", (1, 16, 64), m=30, n=40, k=64, batch=5, ldc=400, stride_c=48)
    assert taking_turns.strides_bytes == (800, 96)


def test_a_matrix_that_all_products_share_is_one():
    told = fields("B", (1, 64, 64), m=64, n=72, k=64, batch=9, stride_b=0)
    assert told.sizes == (72, 64, 1)


def test_a_single_row_needs_no_stride_of_its_own():
    assert fields("A", (1, 64, 64), m=1, n=64, k=104).strides_bytes == (208, 208)


def test_each_tensor_has_its_own_type():
    told = fields("C", (1, 16, 32), dtype="float16", options={"output": "float32"}, m=64, n=36, k=64)
    assert (told.data_type, told.strides_bytes[0]) == (7, 144)  # CU_TENSOR_MAP_DATA_TYPE_FLOAT32


def test_rows_that_begin_between_16_bytes_are_refused():
    with pytest.raises(TunerError, match=r"^A of gemm .*: 100 bytes from a row to the next suit no tensor map"):
        fields("A", (1, 64, 64), m=64, n=64, k=50)


def test_parameters_are_aligned_as_the_driver_asks():
    problem = GEMM.problem({"m": 64, "n": 64, "k": 64}, "float16")
    cells = MapCells(GEMM, problem, [TensorMap(name, (1, 64, 64)) for name in "ABC"])
    assert [place % 64 for place in cells.places] == [0, 0, 0]
