"""Declarations of kernels: their fields, their dtypes, and the problems that they pose."""

import hashlib
import itertools
import pickle
import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from contracts import textured
from contracts.partial_sums import PARTIAL_SUMS, PROBLEM, with_block
from contracts.textured import TEXTURED

from tilewright.kernels.catalogue import catalogue, flaws
from tilewright.kernels.dtypes import (
    HALF,
    ITEM_BYTES,
    REAL,
    SMALLEST_NORMAL,
    UNIT_ROUNDOFF,
    real_macros,
    rounding_of,
)
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Tensor, Texture, shape_of
from tilewright.kernels.reference import close_to


def test_an_output_sized_by_the_configuration_needs_a_check():
    with pytest.raises(ValueError, match="partial_sums: sums: written is for outputs of a kernel with a check"):
        replace(PARTIAL_SUMS, check=None)


def test_it_is_cut_to_what_a_configuration_writes():
    outputs = {"sums": np.arange(16.0)}
    assert PARTIAL_SUMS.written_by(with_block(256), PROBLEM, outputs)["sums"].tolist() == outputs["sums"][:4].tolist()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"memory": "surface"}, "a texture's memory is one of linear, pitched, array, not 'surface'"),
        ({"filter": "cubic"}, "filter is one of point, linear, not 'cubic'"),
        ({"channels": 3}, "channels is one of 1, 2, 4, not 3"),
        ({"memory": "linear", "filter": "linear"}, "has neither filter nor address mode"),
        ({"address": "wrap"}, "address mode wrap needs normalized=True"),
    ],
)
def test_a_texture_that_cuda_does_not_have_is_refused(words, said):
    with pytest.raises(ValueError, match=said):
        Texture(**words)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (Tensor("near", "output", shape_of("h"), texture=Texture()), "near is a texture: an input of a CUDA source"),
        (Tensor("t", "input", shape_of("h"), texture=Texture(), dtype="float64"), "dtype is of float32, int8"),
        (
            Tensor("t", "input", shape_of("h"), texture=Texture(filter="linear"), dtype="int32"),
            "filter linear: its dtype is of float32, not int32",
        ),
        (
            Tensor("t", "input", shape_of("h", "w"), texture=Texture("linear")),
            r"1 axes, but its shape is \(28, 36\)",
        ),
        (Tensor("t", "input", shape_of("h", 3), texture=Texture(channels=4)), r"4 channels, .*its shape is \(28, 3\)"),
    ],
)
def test_a_tensor_that_cannot_be_such_a_texture_is_a_flaw(tensor, said):
    kernel = replace(TEXTURED, arguments=(tensor, TEXTURED.arguments[-1]))
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(next(flaws(kernel), "no flaw"))


def test_a_texture_reference_is_a_flaw_that_says_what_to_do(tmp_path):
    source = 'texture<float, cudaTextureType2D> image;\nextern "C" __global__ void textured(float* y) {}'
    (tmp_path / "textured.cu").write_text(source)
    flaw = next(flaws(replace(TEXTURED, folder=tmp_path)))
    assert "textured.cu declares a texture reference, which CUDA 12 removed: take a cudaTextureObject_t" in flaw


def test_texels_are_counted_from_x_and_without_their_channels():
    texels = {tensor.name: tensor.texels(textured.PROBLEM) for tensor in TEXTURED.textures}
    assert texels == {"table": (999,), "image": (36, 28), "colours": (36, 28), "tiled": (36, 28), "volume": (36, 28, 5)}
    assert TEXTURED.filtered_axes(textured.PROBLEM) == 3


def test_right_values_alone_are_held_to_the_weights_of_a_filter():
    values = np.array([-1.0, 3.0, np.nan])
    exact, filtered = (close_to(values, "float32", axes) for axes in (0, 2))
    more = 2 * filtered.unit_roundoff * (filtered.magnitude - exact.magnitude)
    np.testing.assert_allclose(more, [2 * 4 / 256] * 2 + [np.nan])


BEFORE_HALF_TYPES = "f8af576890666d7322706931c325b1000021b33ca3e79d2fcccaec0082e5594e"
"""SHA-256 over the hashes below as they were before there were half types (commit 8b8e61a)."""


def test_no_key_of_a_float32_or_float64_problem_has_changed():
    digest = hashlib.sha256()
    for name in ("classifier", "conv2d", "gemm", "gemv", "linear", "softmax"):
        kernel = catalogue().get(name)
        options = [option for option in kernel.options if option.name != "output"]
        words = [[value for value in option.values if value != "silu"] for option in options]  # those there were
        for dtype, values in itertools.product(("float32", "float64"), itertools.product(*words)):
            chosen = {option.name: value for option, value in zip(options, values, strict=True)}
            try:
                digest.update(kernel.problem(kernel.example_shape, dtype, chosen).hash.encode())
            except InvalidProblemError:
                continue  # an option that the dtype does not have
    assert digest.hexdigest() == BEFORE_HALF_TYPES


@pytest.mark.parametrize("dtype", REAL)
def test_accuracy_and_size_are_those_of_the_type_in_numpy(dtype):
    information = ml_dtypes.finfo(np.dtype(dtype))
    assert float(information.eps) == 2 * UNIT_ROUNDOFF[dtype]
    assert float(information.smallest_normal) == SMALLEST_NORMAL[dtype]
    assert np.dtype(dtype).itemsize == ITEM_BYTES[dtype]


@pytest.mark.parametrize("dtype", HALF)
def test_a_sum_overflows_from_the_stated_number_on(dtype):
    overflow = np.float32(rounding_of(dtype).overflow)
    assert overflow == rounding_of(dtype).overflow
    with np.errstate(over="ignore"):
        assert np.isinf(overflow.astype(dtype))
    assert np.isfinite(np.nextafter(overflow, np.float32(0)).astype(dtype))


@pytest.mark.parametrize("dtype", HALF)
def test_rounding_to_a_half_type_costs_no_more_than_stated(dtype):
    rounding, rng = rounding_of(dtype), np.random.default_rng(3)
    numbers = rng.standard_normal(100_000) * 2.0 ** rng.integers(-30, 10, 100_000)
    cost = np.abs(numbers.astype(np.float32).astype(dtype).astype(np.float64) - numbers)
    allowed = rounding.unit_roundoff * np.maximum(np.abs(numbers), rounding.smallest_normal)
    assert np.all(cost <= allowed * (1 + 2.0**-12))  # they went through float32
    assert np.max(cost / allowed) > 0.95


def test_half_types_say_in_the_source_which_they_are():
    assert real_macros("bfloat16") == {"REAL": "__nv_bfloat16", "REAL_BYTES": "2", "REAL_IS_BFLOAT16": "1"}
    assert real_macros("float32") == {"REAL": "float", "REAL_BYTES": "4"}


def test_the_output_of_a_half_product_may_be_float32_and_that_is_part_of_its_key():
    gemm = catalogue().get("gemm")
    shape = {"m": 3, "n": 5, "k": 7}
    half, wide = gemm.problem(shape, "bfloat16"), gemm.problem(shape, "bfloat16", {"output": "float32"})
    assert "output" not in half.canonical
    assert half.hash != wide.hash
    assert [tensor.dtype_for(wide) for tensor in gemm.tensors] == ["bfloat16", "bfloat16", "float32"]
    assert gemm.bytes_moved(wide) - gemm.bytes_moved(half) == 2 * 3 * 5
    with pytest.raises(InvalidProblemError, match="bfloat16, float16"):
        gemm.problem(shape, "float32", {"output": "float32"})


GOOD = {"m": 256, "n": 100, "k": 784}


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "field"),
    [
        ({**GOOD, "k": 0}, "float32", {}, "shape.k"),
        ({**GOOD, "m": -3}, "float32", {}, "shape.m"),
        ({**GOOD, "n": 2**31}, "float32", {}, "shape.n"),
        ({**GOOD, "n": True}, "float32", {}, "shape.n"),
        ({"m": 1, "n": 1}, "float32", {}, "shape.k"),
        ({**GOOD, "q": 1}, "float32", {}, "shape.q"),
        (GOOD, "int8", {}, "dtype"),
        (GOOD, "float32", {"trans_c": True}, "options.trans_c"),
        (GOOD, "float32", {"trans_a": "yes"}, "options.trans_a"),
        (GOOD, "float32", {"trans_a": 1}, "options.trans_a"),
        (GOOD, "float32", {"accuracy": "fp16"}, "options.accuracy"),
        (GOOD, "float64", {"accuracy": "tf32"}, "options.accuracy"),
    ],
)
def test_a_refused_problem_names_the_field_and_an_example(shape, dtype, options, field):
    with pytest.raises(InvalidProblemError) as caught:
        catalogue().get("gemm").problem(shape, dtype, options)
    assert caught.value.field == field
    assert caught.value.example
    assert field in str(caught.value)


def test_equal_problems_have_one_hash_however_they_were_asked_for():
    gemm = catalogue().get("gemm")
    spelled = gemm.problem(
        {"k": 784, "m": 256, "n": 100}, "float32", {"beta_zero": True, "trans_b": False, "trans_a": False}
    )
    assert spelled == gemm.problem(GOOD)
    assert spelled.hash == gemm.problem(GOOD).hash
    assert gemm.problem(GOOD, options={"trans_a": True}).hash != spelled.hash


def test_definitions_spell_problem_and_configuration():
    gemm = catalogue().get("gemm")
    problem = gemm.problem(GOOD, "float64", {"trans_b": True})
    definitions = gemm.definitions(problem, gemm.variant("tiled").space().default())
    assert definitions == {
        "REAL": "double",
        "REAL_BYTES": "8",
        "SHAPE_M": "256",
        "SHAPE_N": "100",
        "SHAPE_K": "784",
        "TRANS_A": "0",
        "TRANS_B": "1",
        "BETA_ZERO": "1",
        "ACCURACY_FP32": "1",
        "TILE_WIDTH": "16",
    }


def test_work_counts_are_those_of_the_textbook():
    gemm, gemv = catalogue().get("gemm"), catalogue().get("gemv")
    problem = gemm.problem(GOOD)
    assert gemm.flops(problem) == 2 * 256 * 100 * 784
    assert gemm.bytes_moved(problem) == 4 * (256 * 784 + 784 * 100 + 256 * 100)
    adding = gemm.problem(GOOD, "float64", {"beta_zero": False})
    assert gemm.bytes_moved(adding) == 8 * (256 * 784 + 784 * 100 + 2 * 256 * 100)
    assert gemm.memory_bytes(adding) == 8 * (256 * 784 + 784 * 100 + 256 * 100)
    vector = gemv.problem({"m": 10, "n": 7})
    assert (gemv.flops(vector), gemv.bytes_moved(vector)) == (140, 4 * (70 + 7 + 10))


def test_the_output_counts_as_read_only_where_beta_counts():
    gemm = catalogue().get("gemm")
    assert not gemm.output.is_read(gemm.problem(GOOD))
    assert gemm.output.is_read(gemm.problem(GOOD, options={"beta_zero": False}))


def test_an_option_that_came_later_leaves_the_keys_of_others_as_they_were():
    gemm = catalogue().get("gemm")
    usual = gemm.problem(GOOD)
    assert "packed_b" not in usual.canonical
    assert usual == gemm.problem(GOOD, "float32", {"packed_b": False})
    assert dict(usual.options) == dict(usual.option_items)
    assert usual.options["packed_b"] is False
    assert pickle.loads(pickle.dumps(usual)).options["packed_b"] is False  # noqa: S301 - our own
    packed = gemm.problem(GOOD, "float32", {"packed_b": True})
    assert packed.hash != usual.hash
    assert packed.as_json()["options"]["packed_b"] is True
    with pytest.raises(KeyError):
        usual.options["trans_c"]


WAIT = re.compile(r"\b(?:wait_for_launch_before|await_last_launch|begin_overlapped)\(\);")
DEFINED = re.compile(r"void (?:await_last_launch|begin_overlapped)\(\)")


@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda kernel: kernel.name)
def test_a_launch_that_overlaps_waits_for_the_one_before(kernel):
    """Both functions that wait for it call another one that does."""
    problems = [kernel.problem(kernel.example_shape, dtype, {}) for dtype in kernel.dtypes]
    for problem, variant in itertools.product(problems, kernel.variants):
        if variant.supports(problem):
            launches = variant.launches(kernel.entry, variant.space().default().values, problem)
            source, overlap = kernel.source(variant.name), sum(launch.overlaps for _, launch in launches)
            assert len(WAIT.findall(source)) - len(DEFINED.findall(source)) >= overlap, variant.name
