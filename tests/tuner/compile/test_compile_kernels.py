"""Every kernel compiles for every GPU that is supported, on a machine without one."""

from pathlib import Path

import pytest
from contracts.variant import needs_nvrtc
from sampling import sampled, shape_or_example

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import HALF, REAL, real_macros
from tilewright.kernels.problem import Limits
from tilewright.kernels.sources.source import resolved
from tilewright.tuner import devices
from tilewright.tuner.compile import nvrtc
from tilewright.tuner.compile.compilation import OPTIONS, arch_of
from tilewright.tuner.compile.compiler import compile_nvrtc

pytestmark = needs_nvrtc

# CUDA's table of compute capabilities: shared KiB of a block, of a multiprocessor; threads of a multiprocessor.
DEVICES = {
    (7, 5): (64, 64, 1024),
    (8, 0): (163, 164, 2048),
    (9, 0): (227, 228, 2048),
    (10, 0): (227, 228, 2048),
    (12, 0): (99, 100, 1536),
}
QUICK = "--Ofast-compile=max"
"""What is the same before optimisations is the same after them, and what the front end refuses it refuses first."""

WHOLE = (9, 0)
"""Where all corners are compiled, nightly; elsewhere one of each problem: what differs is the architecture."""

VARIANTS = [(kernel.name, variant.name) for kernel in catalogue().kernels() for variant in kernel.variants]


def limits_of(capability):
    block_kib, multiprocessor_kib, threads = DEVICES[capability]
    return Limits(
        capability,
        160,  # so many that every variant has room for the odd problems
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
    """Even and odd shapes, all dtypes, every option with every value, in few problems."""
    odd = {axis: size + 1 + i for i, (axis, size) in enumerate(kernel.example_shape.items())}
    odd = shape_or_example(kernel, odd)
    yield kernel.problem(kernel.example_shape)
    if "float64" in kernel.dtypes:
        yield kernel.problem(odd, "float64", {o.name: o.values[-1] for o in kernel.options if not o.only_dtypes})
    for dtype in (dtype for dtype in HALF if dtype in kernel.dtypes):
        admitted = [o for o in kernel.options if dtype in (o.only_dtypes or kernel.dtypes)]
        yield kernel.problem(odd, dtype, {o.name: o.values[-1] for o in admitted})
    if "float32" in kernel.dtypes:
        yield kernel.problem(odd, "float32", {o.name: o.values[0] for o in kernel.options})


def is_usual(kernel_name, variant_name, capability, corners_of):
    """One corner of each problem: of every second variant on Hopper, of the others on an older architecture in turn."""
    place, others = VARIANTS.index((kernel_name, variant_name)), [other for other in DEVICES if other != WHOLE]
    in_turn = others[place // 2 % len(others)]
    runs_there = catalogue().get(kernel_name).variant(variant_name).runs_on(limits_of(in_turn))
    return corners_of == "one" and capability == (in_turn if place % 2 and runs_there else WHOLE)


def is_brief(kernel_name, variant_name):
    """Eleven variants of twelve are compiled for one problem; all of theirs nightly, with all corners."""
    return VARIANTS.index((kernel_name, variant_name)) % 12 != 0


@pytest.mark.in_turn(6)
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
    supported = [p for p in problems(kernel) if variant.admits(p, limits_of(capability))]
    if capability != WHOLE or (corners_of == "one" and is_brief(kernel_name, variant_name)):
        supported = supported[-1:]
    for number, problem in enumerate(supported):
        if number == 0 and corners_of == "one" and len(supported) > 1 and capability == WHOLE:
            continue  # the even problem: nightly, with all of its corners
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


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("kernel_name", "variant_name"), sampled(VARIANTS, lambda *variant: VARIANTS.index(variant) % 8 == 0)
)
def test_sources_compile_alone_with_the_defaults_they_state(kernel_name, variant_name):
    kernel = catalogue().get(kernel_name)
    variant = kernel.variant(variant_name)
    architecture = arch_of(max((8, 0), variant.min_compute_capability)) + variant.architecture_suffix
    # A parameter of one value tells variants of one source apart; only one of them is what the source is by itself.
    fixed = {p.name: str(p.default) for p in variant.parameters if len(p.values) == 1}
    stated = {name: str(value) for name, value in variant.space().default().items}
    options = [f"--gpu-architecture={architecture}", *OPTIONS, QUICK]
    alone, declared = (
        nvrtc.compile_cubin(kernel.source(variant_name), [*options, *(f"-D{name}={of[name]}" for name in of)])[0]
        for of in (fixed, stated)
    )
    assert alone == declared


OPTION_VALUES = [
    (k.name, o.name, value, dtype)
    for k in catalogue().kernels()
    for o in k.options
    for value in o.values
    for dtype in (k.dtypes if value == o.default else o.only_dtypes or k.dtypes)
]


def is_told_apart(kernel_name, option, value, dtype):
    """A value that is not the default, in the kernel's first dtype: the default is compiled above."""
    kernel = catalogue().get(kernel_name)
    declared = next(o for o in kernel.options if o.name == option)
    return value != declared.default and dtype == (declared.only_dtypes or kernel.dtypes)[0]


@pytest.mark.in_turn(6)
@pytest.mark.parametrize(("kernel_name", "option", "value", "dtype"), sampled(OPTION_VALUES, is_told_apart))
def test_every_value_of_an_option_compiles(kernel_name, option, value, dtype):
    kernel = catalogue().get(kernel_name)
    problem = kernel.problem(kernel.example_shape, dtype, {option: value})
    configuration = kernel.default_configuration(kernel.space(problem, limits_of((9, 0))))
    compiled = compile_nvrtc(
        kernel.source(configuration.variant), kernel.definitions(problem, configuration), "sm_90", kernel.entry, [QUICK]
    )
    assert "warning" not in compiled.log, compiled.log


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("kernel_name", "shape"), [("linear", {"m": 200, "n": 132, "k": 72}), ("softmax", {"m": 200, "n": 1032})]
)
def test_shared_memory_is_declared_for_layers(kernel_name, shape):
    kernel = catalogue().get(kernel_name)
    problem = kernel.problem(shape, "float64")
    feasible = kernel.space(problem, limits_of((8, 0))).feasible
    for configuration in feasible[:: max(1, len(feasible) // 5)]:
        compiled = compile_nvrtc(
            kernel.source(configuration.variant), kernel.definitions(problem, configuration), "sm_80", kernel.entry
        )
        declared = kernel.variant(configuration.variant).static_shared_bytes(configuration.values, problem)
        assert compiled.resources.shared_bytes == declared, configuration


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("trans_a", "trans_b"),
    sampled(((a, b) for a in (False, True) for b in (False, True)), lambda trans_a, trans_b: trans_a != trans_b),
)
def test_declared_shared_memory_is_what_the_compiler_takes(trans_a, trans_b):
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": 200, "n": 132, "k": 72}, "float64", {"trans_a": trans_a, "trans_b": trans_b})
    for configuration in gemm.space(problem, limits_of((8, 0)), only=["tiled", "wpt"]).feasible[::422]:
        compiled = compile_nvrtc(
            gemm.source(configuration.variant), gemm.definitions(problem, configuration), "sm_80", gemm.entry
        )
        declared = gemm.variant(configuration.variant).static_shared_bytes(configuration.values, problem)
        assert compiled.resources.shared_bytes == declared


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("arch", "dtype"),
    sampled(
        ((arch, dtype) for arch in ("sm_75", "sm_80", "sm_90") for dtype in REAL),
        lambda arch, dtype: arch == ("sm_75" if dtype == "float32" else "sm_90"),
    ),
)
def test_the_checks_of_a_gpu_bench_compile_for_every_dtype(arch, dtype):
    source = resolved(Path(devices.__file__).parent / "cuda" / "check.cu")
    compiled = compile_nvrtc(source, real_macros(dtype), arch, "compare")
    assert compiled.resources.spill_bytes == 0
