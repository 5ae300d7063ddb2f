"""Kernels whose rows come with the launch: one program for every size, on the CPU; one cubin, by NVRTC."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from sampling import EXHAUSTIVE

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compilation import Compilation
from tilewright.tuner.compile.compiler import compile_now
from tilewright.tuner.compile.nvrtc import is_available
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.runtime.any_size.ranges import Ranges, SizeRange
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches.host import host_place
from tilewright.tuner.runtime.runtime import Runtime

HOPPER = Limits((9, 0), 132, 80 << 30, max_shared_bytes=232448, shared_bytes_per_multiprocessor=228 * 1024)
ON_CPU = [
    ("gemm", "naive", "float32"),
    ("gemm", "tiled", "bfloat16"),
    ("gemm", "wpt", "float32"),
    ("linear", "tiled", "float32"),
    ("linear", "wpt", "float64"),
    ("linear_gated", "tiled", "bfloat16"),
    ("gemv", "naive", "float32"),
    ("gemv", "warp", "bfloat16"),
    ("gemv", "block", "float64"),
    ("gemv", "vectorized", "float32"),
    ("gemv", "split", "float32"),
    ("softmax", "warp", "float32"),
    ("softmax", "block", "float16"),
    ("softmax", "online", "float32"),
    ("rms_norm", "held", "float32"),
    ("layer_norm", "walk", "float32"),
    ("add_rms_norm", "walk", "bfloat16"),
    ("add_layer_norm", "held", "float32"),
]
ON_GPU = [
    ("float32", "naive", {}),
    ("float32", "wpt", {}),
    ("float32", "register", {}),
    ("float32", "tensor3xfp16_sm90", {}),
    ("float32", "tensor3xfp16_sm90", {"packed_b": True}),
    ("float32", "tensor3xtf32", {}),
    ("float64", "tensor_fp64", {}),
    ("bfloat16", "tensor_half", {}),
    ("bfloat16", "tensor_half_sm90", {}),
]


OF_BATCH = [
    ("float32", "naive"),
    ("float32", "wpt"),
    ("float32", "register"),
    ("float32", "tensor3xtf32"),
    ("float64", "tensor_fp64"),
    ("bfloat16", "tensor_half"),
]


def posed(kernel: str, m: int, dtype: str = "float32", **options: bool | str) -> Problem:
    declared = catalogue().get(kernel)
    shape = {axis: size for axis, size in {"m": m, "n": 104, "k": 264}.items() if axis in declared.axes}
    return declared.with_size_at_launch(declared.problem(shape, dtype, options), "m")


def of_batch(batch: int, dtype: str = "float32", options: dict[str, bool] | None = None, **places: int) -> Problem:
    """A batch of products of 33 x 20 x 40, whose number comes with the launch."""
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": 33, "n": 20, "k": 40, "batch": 2, **places}, dtype, options)
    return gemm.with_size_at_launch(problem, "batch").with_size("batch", batch)


def verified(kernel: Kernel, problems: Iterable[Problem], configuration: Configuration) -> int:
    """The number of programs with which the configuration is right for the problems, each with inputs of its own."""
    device, paths = CpuDevice(), set()
    for seed, problem in enumerate(problems, 1):
        with closing(device.bench(kernel, problem, seed=seed)) as bench:
            program = bench.compile(configuration)
            assert bench.verify(program).is_right
        paths.add(program.path)
    return len(paths)


def compile_once(kernel: Kernel, problems: Iterable[Problem], configuration: Configuration) -> None:
    """What all of the problems compile, for Hopper."""
    (work,) = {Compilation.of(kernel, problem, configuration, "sm_90", "nvrtc") for problem in problems}
    assert compile_now(work).cubin


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("kernel", "variant", "dtype"), ON_CPU)
def test_one_program_is_right_at_every_number_of_rows(kernel: str, variant: str, dtype: str) -> None:
    declared, problems = catalogue().get(kernel), [posed(kernel, m, dtype) for m in (1, 65, 130)]
    assert verified(declared, problems, declared.variant(variant).space().default()) == 1


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("options", [{}, {"trans_a": True, "beta_zero": False}], ids=["plain", "turned"])
@pytest.mark.parametrize(("variant", "dtype"), [("naive", "float32"), ("tiled", "bfloat16"), ("wpt", "float32")])
def test_one_program_is_right_at_every_batch(variant: str, dtype: str, options: dict[str, bool]) -> None:
    gemm, turned = catalogue().get("gemm"), {"ldc": 64, "stride_c": 20}  # rows of C that take turns
    problems = [of_batch(batch, dtype, options, **places) for batch, places in ((1, {}), (5, {}), (3, turned))]
    assert verified(gemm, problems, gemm.variant(variant).space().default()) == 2  # where C lies is compiled in


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("n", "values"), [(8192, {"SPLIT": 4, "UNROLL": 2}), (301, {"ROWS": 4, "THREADS_PER_ROW": 64, "UNROLL": 2})]
)
def test_split_rows_count_in_one_workspace_whatever_their_number(
    tmp_path: Path, n: int, values: dict[str, int]
) -> None:
    """One after the other: what a larger number of rows leaves in the workspace is no matter to fewer."""
    gemv = catalogue().get("gemv")
    configuration = Configuration.of("split", dict(gemv.variant("split").space().default().values) | values)
    family = Family.of(gemv, {"m": (1, 600), "n": n})
    runtime = Runtime(answers=AnswerCache(tmp_path), shipped_records=False)
    runtime.families.pin({family: Ranges([SizeRange(600, Choice(configuration, "table", "range"))])}, host_place().slug)
    launch, generator = runtime.any_size("gemv", {"n": n}, device="cpu", largest=600), np.random.default_rng(5)
    assert gemv.variant("split").is_sound(configuration.values, family.largest, host_place().limits)
    for m in (600, 1, 599, *generator.integers(1, 600, 2), 2):
        a, x = generator.standard_normal((m, n)).astype(np.float32), generator.standard_normal(n).astype(np.float32)
        y = np.full(m, np.nan, np.float32)
        np.testing.assert_allclose(launch(a, x, y), a.astype(np.float64) @ x, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("values", [{}, {"COLUMN_THREADS": 8, "SLICES": 16, "UNROLL": 2, "SPLIT": 4}])
def test_transposed_rows_of_any_length_are_read_by_vectors_or_one_by_one(dtype: str, values: dict[str, int]) -> None:
    gemv = catalogue().get("gemv")
    default = dict(gemv.variant("columns").space().default().values)
    values = default | {"VECTOR_WIDTH": 8 if dtype == "bfloat16" else 4} | values
    problems = [posed("gemv", m, dtype, trans_a=True) for m in (1, 65, 128)]  # the length of a stored row
    assert verified(gemv, problems, Configuration.of("columns", values)) == 1
    for problem in problems:
        assert [one.name for one in gemv.usable_variants(problem, HOPPER)] == ["naive", "columns"]


def quantised(m: int, weights: str = "int8", group: str = "128") -> Problem:
    """Few rows beside weights of 8 or 4 bits, whose number comes with the launch."""
    kernel = catalogue().get("linear_quantized")
    problem = kernel.problem({"m": m, "n": 50, "k": 384}, "bfloat16", {"weights": weights, "group": group})
    return kernel.with_size_at_launch(problem, "m")


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("weights", "group"), [("int8", "128"), ("int4", "row"), ("int4_zeros", "128")])
@pytest.mark.parametrize("columns", [1, 4])
def test_quantised_weights_meet_any_number_of_rows(weights: str, group: str, columns: int) -> None:
    kernel = catalogue().get("linear_quantized")
    values = dict(kernel.variant("rows").space().default().values) | {"COLUMNS": columns}
    problems = [quantised(m, weights, group) for m in (1, 7, 64)]
    assert verified(kernel, problems, Configuration.of("rows", values)) == 1


@pytest.mark.skipif(not is_available(), reason="needs NVRTC")
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("weights", ["int8", "int4_zeros"])
def test_tensor_cores_take_sixteen_rows_a_block(weights: str) -> None:
    kernel = catalogue().get("linear_quantized")
    configuration = kernel.variant("tensor").space().default()
    problems = [quantised(m, weights) for m in (1, 16, 17, 64)]
    compile_once(kernel, problems, configuration)
    launches = [kernel.variant("tensor").launch(configuration.values, problem) for problem in problems]
    assert [launch.grid[1] for launch in launches] == [1, 1, 2, 4]
    assert len({launch.shared_bytes for launch in launches}) == 1


@pytest.mark.skipif(not is_available(), reason="needs NVRTC")
@pytest.mark.in_turn(2)
@pytest.mark.parametrize(("divide", "blocks"), [(1, [1, 1, 1, 1]), (4, [1, 1, 2, 4])])
def test_blocks_that_stream_weights_take_a_part_of_sixty_four_rows(divide: int, blocks: list[int]) -> None:
    kernel = catalogue().get("linear_quantized")
    streamed, problems = kernel.variant("streamed"), [quantised(m, "int4") for m in (1, 16, 17, 64)]
    values = dict(streamed.space().default().values) | {"WARPS_K": 1, "WARPS_N": 4, "DIVIDE": divide}
    configuration = Configuration.of("streamed", values)
    compile_once(kernel, problems, configuration)
    launches = [streamed.launch(configuration.values, problem) for problem in problems]
    assert [launch.grid[1] for launch in launches] == blocks
    assert len({launch.shared_bytes for launch in launches}) == 1
    assert all(streamed.admits(problem, HOPPER) for problem in problems)


@pytest.mark.parametrize(("m", "divide"), [(1, 4), (16, 4), (17, 2), (64, 1)])
def test_streamed_weights_begin_with_room_for_little_more_than_the_rows(m: int, divide: int) -> None:
    kernel = catalogue().get("linear_quantized")
    problem = kernel.with_size_at_launch(kernel.problem({"m": m, "n": 4096, "k": 4096}, "bfloat16"), "m")
    (start,) = kernel.space(problem, HOPPER, only=["streamed"]).defaults()
    assert start.values["DIVIDE"] == divide
    assert all(kernel.variant("streamed").is_sound(start.values, problem.with_size("m", n), HOPPER) for n in (1, 64))


@pytest.mark.skipif(not is_available(), reason="needs NVRTC")
@pytest.mark.parametrize(
    ("variant", "weights", "blocks"), [("streamed_sm90", "int8", [1, 1, 1, 1]), ("held", "int4", [1, 1, 2, 4])]
)
def test_blocks_have_room_for_sixty_four_rows_or_take_sixteen_each(
    variant: str, weights: str, blocks: list[int]
) -> None:
    kernel = catalogue().get("linear_quantized")
    shape = {"m": 1, "n": 512, "k": 1024}
    smallest = kernel.with_size_at_launch(kernel.problem(shape, "bfloat16", {"weights": weights}), "m")
    problems, declared = [smallest.with_size("m", m) for m in (1, 16, 17, 64)], kernel.variant(variant)
    (configuration,) = kernel.space(smallest, HOPPER, only=[variant]).defaults()
    compile_once(kernel, problems, configuration)
    launches = [declared.launch(configuration.values, problem) for problem in problems]
    assert [launch.grid[1] for launch in launches] == blocks
    assert len({launch.shared_bytes for launch in launches}) == 1
    assert all(declared.admits(problem, HOPPER) for problem in problems)
    assert all(declared.is_sound(configuration.values, problem, HOPPER) for problem in problems)


OF_IMAGES = [
    ("direct", {}, {"activation": "relu"}),
    ("direct", {"stride": 2, "dilation": 2}, {}),
    ("implicit_gemm", {}, {}),
    ("implicit_gemm", {"stride": 2, "padding": 0}, {"activation": "gelu"}),
    ("depthwise", {"filters": 1}, {"depthwise": True}),
    ("depthwise", {"filters": 1, "stride": 2}, {"depthwise": True}),
    ("direct", {"stride": 2}, {"layout": "nchw"}),
    ("implicit_gemm", {}, {"layout": "nchw", "activation": "relu"}),
    ("implicit_gemm", {"kernel_h": 1, "kernel_w": 1, "padding": 0}, {"layout": "nchw"}),
    ("depthwise", {"filters": 2}, {"layout": "nchw", "depthwise": True}),
]


def of_images(batch: int, sizes: dict[str, int], options: dict[str, bool | str], dtype: str = "float32") -> Problem:
    """Images of 9 x 7 pixels, whose number comes with the launch."""
    conv2d = catalogue().get("conv2d")
    image = {"height": 9, "width": 7, "channels": 8, "filters": 12, "kernel_h": 3, "kernel_w": 3, "padding": 1}
    return conv2d.with_size_at_launch(conv2d.problem({"batch": batch} | image | sizes, dtype, options), "batch")


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("variant", "sizes", "options"), OF_IMAGES)
def test_one_program_is_right_for_every_number_of_images(
    variant: str, sizes: dict[str, int], options: dict[str, bool | str]
) -> None:
    conv2d, problems = catalogue().get("conv2d"), [of_images(batch, sizes, options) for batch in (1, 3, 10)]
    assert verified(conv2d, problems, conv2d.variant(variant).space().default()) == 1


@pytest.mark.skipif(not is_available(), reason="needs NVRTC")
@pytest.mark.in_turn(4)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("variant", ["direct", "implicit_gemm", "tensor3xtf32", "tensor1xtf32"])
def test_all_numbers_of_images_are_one_compilation(variant: str, layout: str) -> None:
    conv2d, options = catalogue().get("conv2d"), {"layout": layout}
    options |= {"accuracy": "tf32"} if variant == "tensor1xtf32" else {}
    configuration = conv2d.variant(variant).space().default()
    problems = [of_images(batch, {}, options) for batch in (1, 64, 256)]
    compile_once(conv2d, problems, configuration)
    assert all(conv2d.variant(variant).admits(problem, HOPPER) for problem in problems)


@pytest.mark.skipif(not is_available(), reason="needs NVRTC")
@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("dtype", "variant"), OF_BATCH)
def test_all_batches_are_one_compilation(dtype: str, variant: str) -> None:
    gemm = catalogue().get("gemm")
    configuration = gemm.variant(variant).space().default()
    assert gemm.variant(variant).takes_size(of_batch(2, dtype))
    compile_once(gemm, [of_batch(n, dtype) for n in (1, 2, 300)], configuration)


def test_a_batch_beyond_the_grid_is_not_admitted() -> None:
    naive = catalogue().get("gemm").variant("naive")
    values = naive.space().default().values
    assert naive.is_sound(values, of_batch(65535), HOPPER)
    assert not naive.is_sound(values, of_batch(65536), HOPPER)
    assert naive.launch(values, of_batch(65536)).grid[1] == 65536  # which a device refuses


@pytest.mark.skipif(not is_available(), reason="needs NVRTC")
@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("dtype", "variant", "options"), ON_GPU)
@pytest.mark.parametrize("kernel", ["gemm", pytest.param("linear", marks=EXHAUSTIVE)])
def test_all_sizes_are_one_compilation(kernel: str, dtype: str, variant: str, options: dict[str, bool]) -> None:
    if (kernel, variant) == ("linear", "naive"):
        pytest.skip("linear has no such variant")
    declared = catalogue().get(kernel)
    configuration = declared.variant(variant).space().default()
    compile_once(declared, [posed(kernel, m, dtype, **options) for m in (1, 300, 8192)], configuration)


def test_what_every_size_takes_of_the_workspace_begins_with_the_same_counters() -> None:
    variant = catalogue().get("gemm").variant("tensor3xfp16_sm90")
    values = variant.space().default().values
    small, large = (variant.workspace_bytes(values, posed("gemm", m)) for m in (1, 2048))
    assert small > 65536  # the counters
    assert large - small <= 6 * 288 * 2048 + 4 * 2048  # three parts of each number, and scales: k ends at steps of 32


@pytest.mark.parametrize(
    ("options", "extra"), [({"trans_a": True}, {}), ({}, {"batch": 3})], ids=["transposed A", "a batch"]
)
def test_rows_that_would_move_other_operands_are_refused(options: dict[str, bool], extra: dict[str, int]) -> None:
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": 5, "n": 6, "k": 7, **extra}, "float32", options)
    with pytest.raises(InvalidProblemError, match="at launch"):
        gemm.with_size_at_launch(problem, "m")


def test_an_axis_that_is_always_compiled_in_is_refused() -> None:
    gemm = catalogue().get("gemm")
    with pytest.raises(InvalidProblemError, match="those of gemm are m, batch"):
        gemm.with_size_at_launch(gemm.problem({"m": 5, "n": 6, "k": 7}), "n")


def test_a_problem_with_its_rows_at_launch_is_another_problem() -> None:
    exact = catalogue().get("gemm").problem({"m": 5, "n": 6, "k": 7})
    at_launch = catalogue().get("gemm").with_size_at_launch(exact, "m")
    assert at_launch != exact
    assert at_launch.hash != exact.hash
    assert "at_launch" not in exact.canonical
