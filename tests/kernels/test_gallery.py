"""The gallery of examples: right on the CPU device at odd shapes and at edges, and compiled for GPUs without one."""

import re
from pathlib import Path

import pytest
from contracts.variant import needs_nvrtc

from tilewright.kernels.catalogue import Catalogue
from tilewright.kernels.own import corners, limits_of, odd_shapes, spread
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compilation import Compilation, arch_of
from tilewright.tuner.compile.compiler import compile_now

EXAMPLES = Path(__file__).parents[2] / "examples"

# By kernel: shape, dtype, variant and what differs from its default.
CASES = {
    "bitonic_sort": (
        ({"m": 3, "n": 300}, "float32", "registers", {"THREADS": 64, "ROWS": 2}),
        ({"m": 1, "n": 1}, "float64", "registers", {"THREADS": 32, "PADDING": 0}),
        ({"m": 2, "n": 129}, "float32", "registers", {"THREADS": 256, "ROWS": 1}),
    ),
    "fft": (
        ({"m": 3, "n": 128}, "float32", "stockham", {"RADIX": 8, "ROWS": 2, "TABLE": 1}),
        ({"m": 1, "n": 16}, "float64", "stockham", {"RADIX": 16}),
        ({"m": 2, "n": 32}, "float32", "stockham", {"RADIX": 4, "PADDING": 0}),
    ),
    "histogram": (
        ({"n": 10007, "bins": 300}, "float32", "atomics", {"BLOCKS": 33, "COPIES": 4}),
        ({"n": 1, "bins": 1}, "float32", "atomics", {"BLOCKS": 1, "COPIES": 0}),
        ({"n": 2999, "bins": 37}, "float32", "atomics", {"BLOCKS": 1, "VECTOR": 2, "COPIES": 16}),
    ),
    "nbody": (
        ({"n": 301}, "float32", "all_pairs", {"BLOCK": 32, "SLICES": 4, "BODIES": 3}),
        ({"n": 1}, "float64", "all_pairs", {"BLOCK": 32, "SLICES": 1, "BODIES": 1, "STAGED": 0}),
        ({"n": 203}, "float32", "all_pairs", {"BLOCK": 64, "SLICES": 2, "BODIES": 1, "STAGED": 0}),
    ),
    "reduction": (
        ({"n": 10007}, "float32", "one_launch", {"BLOCKS": 8, "BLOCK": 64}),
        ({"n": 10007}, "float64", "two_launches", {"BLOCKS": 16, "BLOCK": 128, "VECTOR": 2}),
        ({"n": 1}, "float32", "one_launch", {"BLOCKS": 1, "ITEMS": 8}),
    ),
    "scan": (
        ({"n": 3001}, "float32", "look_back", {"BLOCK": 64, "ITEMS": 4, "AHEAD": 4}),
        ({"n": 3001}, "float64", "three_launches", {"BLOCK": 64, "ITEMS": 12}),
        ({"n": 30003}, "float64", "look_back", {"BLOCK": 64, "ITEMS": 4, "AHEAD": 2, "TICKETS": 0}),
        ({"n": 1}, "float32", "look_back", {"BLOCK": 64, "ITEMS": 4}),
    ),
    "spmv": (
        ({"m": 301, "n": 257, "nnz": 2000}, "float32", "row", {"LANES": 4, "BLOCK": 64}),
        ({"m": 1, "n": 1, "nnz": 1}, "float64", "row", {"LANES": 1, "ITEMS": 4}),
        ({"m": 70, "n": 900, "nnz": 9000}, "float32", "row", {"LANES": 32, "ITEMS": 1}),
        ({"m": 301, "n": 2570, "nnz": 9001}, "float32", "stream", {"BLOCK": 64, "ITEMS": 12, "WINDOW": 1024}),
        ({"m": 1, "n": 1, "nnz": 1}, "float64", "stream", {"LANES": 2, "ITEMS": 4, "WINDOW": 0}),
    ),
    "stencil2d": (
        ({"h": 37, "w": 70}, "float32", "steps4", {"BLOCK_X": 32, "BLOCK_Y": 4, "ROWS": 2}),
        ({"h": 37, "w": 70}, "float64", "steps2", {"BLOCK_X": 16, "BLOCK_Y": 4, "COLUMNS": 2}),
        ({"h": 3, "w": 1}, "float32", "steps1", {"BLOCK_X": 16, "BLOCK_Y": 2, "ROWS": 2}),
    ),
    "transpose": (
        ({"m": 68, "n": 36}, "float32", "tiled", {"VECTOR": 4, "ROWS": 16}),
        ({"m": 33, "n": 70}, "float64", "tiled", {"TILE": 16, "PADDING": 0}),
        ({"m": 33, "n": 1}, "float32", "direct", {"BLOCK_X": 4}),
    ),
}
GPUS = ((8, 0), (9, 0))


@pytest.fixture(scope="module")
def gallery():
    return Catalogue.load([EXAMPLES / name for name in CASES])


@pytest.fixture(params=CASES)
def kernel(request, gallery):
    return gallery.get(request.param)


def check(device, kernel, problem, configurations):
    bench = device.bench(kernel, problem, seed=1)
    try:
        bench.compile_ahead(configurations)
        for configuration in configurations:
            for verification in bench.verify_each_kind(bench.compile(configuration)):
                assert verification.is_right, f"{problem} {configuration}: {verification.message()}"
    finally:
        bench.close()


def test_the_gallery_is_all_examples_but_those_with_tests_of_their_own():
    others = {path.parent.name for path in EXAMPLES.glob("*/declaration.py")} - {*CASES}
    assert {name for name in others if not name.startswith("triton_")} == {"convolution2d", "pnpoly"}


def test_the_page_of_the_gallery_names_every_variant_and_parameter(kernel):
    page = (EXAMPLES.parent / "docs/gallery.md").read_text()
    (row,) = re.findall(rf"^\| \[{kernel.name}\]\(#{kernel.name}\) .*", page, re.MULTILINE)
    assert f"\n## {kernel.name}\n" in page
    stated = {variant.name for variant in kernel.variants}
    first = kernel.variants[0]
    stated |= {parameter.name for parameter in first.parameters if len(parameter.values) > 1}
    assert stated == set(re.findall(r"`(\w+)`", row))


@pytest.mark.in_turn(3)
def test_configurations_are_right_at_odd_shapes_and_at_edges(kernel, device):
    for shape, dtype, variant, changes in CASES[kernel.name]:
        problem = kernel.problem(shape, dtype)
        values = {p.name: p.default for p in kernel.variant(variant).parameters} | changes
        configuration = Configuration.of(variant, values)
        assert configuration in kernel.space(problem, device.model.limits), configuration
        check(device, kernel, problem, [configuration])


def test_a_reference_is_not_lenient_towards_outputs_of_zeros(kernel, device):
    shape, dtype, *_ = CASES[kernel.name][0]
    problem = kernel.problem(shape, dtype)
    bench = device.bench(kernel, problem, seed=1)
    try:
        expected = bench._case("normal").expected
        zeros = {t.name: expected.references[t.name].value.astype(t.dtype_for(problem)) * 0 for t in kernel.outputs}
        assert expected.compare(zeros).wrong > zeros[kernel.output.name].size // 2
    finally:
        bench.close()


@pytest.mark.in_turn(3)
@needs_nvrtc
@pytest.mark.parametrize("capability", GPUS, ids=arch_of)
def test_the_default_compiles_without_spills(kernel, capability):
    variant = kernel.variant(kernel.default_variant or kernel.variants[0].name)
    compiles(kernel, capability, variant, lambda space: space.defaults(), kernel.dtypes[:1])


def test_sources_say_what_they_compute_and_no_pragma_names_a_macro(kernel):
    for variant in kernel.variants:
        source = kernel.source(variant.name)
        assert re.match(r"// \S", (kernel.folder / variant.source).read_text())
        named = set(re.findall(r"#pragma unroll +([A-Za-z_]\w*)", source))
        assert not named & set(re.findall(r"#define +(\w+)", source))


@pytest.mark.exhaustive
def test_a_spread_of_configurations_is_right_at_every_shape(kernel, device):
    shapes = [*odd_shapes(kernel), *(shape for shape, *_ in CASES[kernel.name])]
    for shape in shapes:
        for dtype in kernel.dtypes:
            problem = kernel.problem(shape, dtype)
            for variant in kernel.variants:
                space = kernel.space(problem, device.model.limits, [variant.name])
                check(device, kernel, problem, [*space.defaults(), *spread(space, 12)])


@needs_nvrtc
@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", GPUS, ids=arch_of)
def test_corners_compile_into_what_was_declared(kernel, capability):
    for variant in kernel.variants:
        compiles(kernel, capability, variant, corners, kernel.dtypes[-1:])


def compiles(kernel, capability, variant, chosen, dtypes):
    for dtype in dtypes:
        problem = kernel.problem(kernel.example_shape, dtype)
        for configuration in chosen(kernel.space(problem, limits_of(capability), [variant.name])):
            compiled = compile_now(Compilation.of(kernel, problem, configuration, arch_of(capability), "nvrtc"))
            declared = variant.static_shared_bytes(configuration.values, problem)
            assert (compiled.resources.shared_bytes or 0) <= declared, configuration
            threads = variant.launch(configuration.values, problem).threads
            assert (compiled.resources.registers or 0) * threads <= 65536, configuration
            if chosen is not corners:
                assert compiled.resources.spill_bytes == 0, configuration
