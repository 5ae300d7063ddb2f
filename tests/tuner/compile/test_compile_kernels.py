"""Every kernel compiles for every GPU that is supported, on a machine without one."""

import pytest
from sampling import sampled

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.tuner.compile import nvrtc
from tilewright.tuner.compile.compilation import arch_of
from tilewright.tuner.compile.compiler import compile_nvrtc

pytestmark = pytest.mark.skipif(not nvrtc.is_available(), reason="needs NVRTC (the wheel nvidia-cuda-nvrtc)")

# CUDA's table of compute capabilities: shared KiB of a block, of a multiprocessor; threads of a multiprocessor.
DEVICES = {
    (7, 5): (64, 64, 1024),
    (8, 0): (163, 164, 2048),
    (9, 0): (227, 228, 2048),
    (10, 0): (227, 228, 2048),
    (12, 0): (99, 100, 1536),
}
WHOLE = (9, 0)
"""Where all corners are compiled, nightly; elsewhere one of each problem: what differs is the architecture."""

VARIANTS = [(kernel.name, variant.name) for kernel in catalogue().kernels() for variant in kernel.variants]


def limits_of(capability):
    block_kib, multiprocessor_kib, threads = DEVICES[capability]
    return Limits(
        capability,
        64,
        16 * 2**30,
        max_shared_bytes=block_kib * 1024,
        shared_bytes_per_multiprocessor=multiprocessor_kib * 1024,
        max_threads_per_multiprocessor=threads,
    )


def corners(space):
    """The feasible default and the two feasible configurations whose parameters are smallest and largest, by rank."""
    ranks = {p.name: {v: i / len(p.values) for i, v in enumerate(p.values)} for p in space.spaces[0].parameters}

    def height(configuration):
        return sum(ranks[name][value] for name, value in configuration.items)

    return dict.fromkeys([*space.defaults(), min(space.feasible, key=height), max(space.feasible, key=height)])


def problems(kernel):
    """Even and odd shapes, both dtypes, every option with every value, in few problems."""
    odd = {axis: size + 1 + i for i, (axis, size) in enumerate(kernel.example_shape.items())}
    yield kernel.problem(kernel.example_shape, "float32")
    yield kernel.problem(odd, "float64", {o.name: o.values[-1] for o in kernel.options if not o.only_dtypes})
    yield kernel.problem(odd, "float32", {o.name: o.values[0] for o in kernel.options})


def is_usual(kernel_name, variant_name, capability, corners_of):
    """One corner of each problem: of each variant on Hopper, and on one other architecture in turn."""
    others = [other for other in DEVICES if other != WHOLE]
    in_turn = others[VARIANTS.index((kernel_name, variant_name)) % len(others)]
    return corners_of == "one" and capability in (WHOLE, in_turn)


@pytest.mark.parametrize(
    ("kernel_name", "variant_name", "capability", "corners_of"),
    sampled(
        (
            (*variant, capability, corners_of)
            for variant in VARIANTS
            for capability in DEVICES
            for corners_of in (("one", "all") if capability == WHOLE else ("one",))
        ),
        is_usual,
    ),
    ids=lambda value: arch_of(value) if isinstance(value, tuple) else value,
)
def test_defaults_and_corners_compile_into_what_was_declared(kernel_name, variant_name, capability, corners_of):
    kernel = catalogue().get(kernel_name)
    variant = kernel.variant(variant_name)
    if not variant.runs_on(limits_of(capability)):
        assert all(variant not in kernel.usable_variants(p, limits_of(capability)) for p in problems(kernel))
        return
    for number, problem in enumerate(problems(kernel)):
        if not variant.supports(problem):
            continue
        space = kernel.space(problem, limits_of(capability), only=[variant_name])
        # All corners of the even problem, one corner of each odd one: half the time, and each thing is tried.
        tried = list(corners(space))
        for configuration in tried if number == 0 and corners_of == "all" else tried[-number:][:1]:
            definitions = kernel.definitions(problem, configuration)
            architecture = arch_of(capability) + variant.architecture_suffix
            compiled = compile_nvrtc(kernel.source(variant_name), definitions, architecture, kernel.entry)
            threads = variant.launch(configuration.values, problem).threads
            assert compiled.cubin.startswith(b"\x7fELF")
            assert compiled.resources.registers * threads <= 65536, configuration
            assert compiled.resources.shared_bytes <= variant.static_shared_bytes(configuration.values, problem)
            assert "warning" not in compiled.log, compiled.log


@pytest.mark.parametrize(("kernel_name", "variant_name"), VARIANTS)
def test_sources_compile_alone_with_the_defaults_they_state(kernel_name, variant_name):
    kernel = catalogue().get(kernel_name)
    variant = kernel.variant(variant_name)
    architecture = arch_of(max((8, 0), variant.min_compute_capability)) + variant.architecture_suffix
    # A parameter of one value tells variants of one source apart; only one of them is what the source is by itself.
    fixed = {p.name: str(p.default) for p in variant.parameters if len(p.values) == 1}
    alone = compile_nvrtc(kernel.source(variant_name), fixed, architecture, kernel.entry)
    stated = {name: str(value) for name, value in variant.space().default().items}
    declared = compile_nvrtc(kernel.source(variant_name), stated, architecture, kernel.entry)
    assert alone.cubin == declared.cubin


OPTION_VALUES = [
    (k.name, o.name, value, dtype)
    for k in catalogue().kernels()
    for o in k.options
    for value in o.values
    for dtype in (k.dtypes if value == o.default else o.only_dtypes or k.dtypes)
]


@pytest.mark.parametrize(
    ("kernel_name", "option", "value", "dtype"),
    sampled(OPTION_VALUES, lambda kernel, option, value, dtype: dtype == catalogue().get(kernel).dtypes[0]),
)
def test_every_value_of_an_option_compiles(kernel_name, option, value, dtype):
    kernel = catalogue().get(kernel_name)
    problem = kernel.problem(kernel.example_shape, dtype, {option: value})
    configuration = kernel.default_configuration(kernel.space(problem, limits_of((9, 0))))
    compiled = compile_nvrtc(
        kernel.source(configuration.variant), kernel.definitions(problem, configuration), "sm_90", kernel.entry
    )
    assert "warning" not in compiled.log, compiled.log


@pytest.mark.parametrize(
    ("kernel_name", "shape"), [("linear", {"m": 200, "n": 132, "k": 72}), ("softmax", {"m": 200, "n": 1032})]
)
def test_shared_memory_is_declared_for_layers(kernel_name, shape):
    kernel = catalogue().get(kernel_name)
    problem = kernel.problem(shape, "float64")
    feasible = kernel.space(problem, limits_of((8, 0))).feasible
    for configuration in feasible[:: max(1, len(feasible) // 10)]:
        compiled = compile_nvrtc(
            kernel.source(configuration.variant), kernel.definitions(problem, configuration), "sm_80", kernel.entry
        )
        declared = kernel.variant(configuration.variant).static_shared_bytes(configuration.values, problem)
        assert compiled.resources.shared_bytes == declared, configuration


@pytest.mark.parametrize("trans", [(a, b) for a in (False, True) for b in (False, True)])
def test_declared_shared_memory_is_what_the_compiler_takes(trans):
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": 200, "n": 132, "k": 72}, "float64", {"trans_a": trans[0], "trans_b": trans[1]})
    for configuration in gemm.space(problem, limits_of((8, 0)), only=["tiled", "wpt"]).feasible[::211]:
        compiled = compile_nvrtc(
            gemm.source(configuration.variant), gemm.definitions(problem, configuration), "sm_80", gemm.entry
        )
        declared = gemm.variant(configuration.variant).static_shared_bytes(configuration.values, problem)
        assert compiled.resources.shared_bytes == declared
