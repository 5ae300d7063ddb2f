"""Textures and tensor maps as the driver takes them."""

import ctypes
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import TensorMap
from tilewright.tuner.devices.cpu.compile import find_compiler
from tilewright.tuner.devices.cuda import texture
from tilewright.tuner.devices.cuda.tensor_map import MapCells, MapFields
from tilewright.tuner.errors import TunerError

LAYOUTS = {
    "CUDA_ARRAY3D_DESCRIPTOR": (texture.ArrayDescription, "Width Height Depth Format NumChannels Flags"),
    "CUDA_RESOURCE_DESC": (
        texture.ResourceDescription,
        "resType {0}.devPtr {0}.format {0}.numChannels {0}.width {0}.height {0}.pitchInBytes - flags".format(
            "res.pitch2D"
        ),
    ),
    "CUDA_TEXTURE_DESC": (
        texture.TextureDescription,
        "addressMode filterMode flags maxAnisotropy mipmapFilterMode mipmapLevelBias borderColor reserved",
    ),
    "CUDA_MEMCPY3D": (texture.CopyDescription, "srcXInBytes dstXInBytes WidthInBytes Height Depth"),
}
ENDS = "{0}XInBytes {0}MemoryType {0}Host {0}Device {0}Array {1} {0}Pitch {0}Height"
RECORDED = {
    "CUDA_ARRAY3D_DESCRIPTOR": [40, 0, 8, 16, 24, 28, 32],
    "CUDA_RESOURCE_DESC": [144, 0, 8, 16, 20, 24, 32, 40, 136],
    "CUDA_TEXTURE_DESC": [104, 0, 12, 16, 20, 24, 28, 40, 56],
    "CUDA_MEMCPY3D": [200, 0, 88, 176, 184, 192],
}
"""Of cuda.h 13: the size, then the offset of each field."""


def include_folder():
    spec = find_spec("nvidia")
    folders = [Path(place) / "cu13" / "include" for place in (spec.submodule_search_locations if spec else ())]
    return next((folder for folder in folders if (folder / "cuda.h").is_file()), None)


def ours(structure, names):
    fields = [field for field, name in zip(structure._fields_, names.split(), strict=True) if name != "-"]
    return [ctypes.sizeof(structure), *(getattr(structure, name).offset for name, _ in fields)]


@pytest.mark.parametrize("name", LAYOUTS)
def test_structures_lie_as_the_driver_reads_them(name):
    assert ours(*LAYOUTS[name]) == RECORDED[name]


def test_both_ends_of_a_copy_lie_alike():
    assert ours(texture.CopyEnd, ENDS.format("src", "reserved0")) == [88, 0, 32, 40, 48, 56, 64, 72, 80]


@pytest.mark.skipif(include_folder() is None, reason="needs cuda.h (the wheel nvidia-cuda-runtime)")
def test_the_recorded_layouts_are_those_of_cuda_h(tmp_path):
    asked = {
        name: [f"sizeof({name})", *(f"offsetof({name}, {field})" for field in fields.split() if field != "-")]
        for name, (_, fields) in LAYOUTS.items()
    }
    ends = [f"offsetof(CUDA_MEMCPY3D, {field})" for field in ENDS.format("src", "reserved0").split()]
    ends += [f"offsetof(CUDA_MEMCPY3D, {field}) - 88" for field in ENDS.format("dst", "reserved1").split()]
    numbers = [number for each in asked.values() for number in each] + ends
    values = [value for each in RECORDED.values() for value in each] + [0, 32, 40, 48, 56, 64, 72, 80] * 2
    checks = "".join(f'static_assert({n} == {v}, "{n}");\n' for n, v in zip(numbers, values, strict=True))
    source = tmp_path / "layout.cpp"
    source.write_text("#include <cuda.h>\n#include <stddef.h>\n" + checks)
    command = [*find_compiler().command, "-fsyntax-only", "-std=c++17", f"-I{include_folder()}", str(source)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


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
