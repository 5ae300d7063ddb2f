"""attention's sources for Hopper on the host, its instructions emulated: layouts, edges, masks, unfit tiles."""

import numpy as np
import pytest
from contracts.attention_on_host import attention_on_host
from contracts.launches_on_host import needs_cpp_library
from contracts.variant import H200, needs_nvrtc

from tilewright.kernels.attention.declaration import KERNEL
from tilewright.kernels.attention.tensor_fp16_sm90_space import TENSOR3XFP16_SM90
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compiler import compile_nvrtc
from tilewright.tuner.loop.verify import compare

DEFAULT = {p.name: p.default for p in TENSOR3XFP16_SM90.parameters}
EXHAUSTIVE = pytest.mark.exhaustive
KINDS = ("normal", "uniform", "lines", "dominant", "columns", "scaled", "odd", "odd scores")


def problem_of(batch, heads, queries, keys, depth, mask="none", **axes):
    """A float32 problem; `inside` is the option, not an axis."""
    options = {"mask": mask, "heads_inside": bool(axes.pop("inside", False))}
    sizes = {"batch": batch, "heads": heads, "queries": queries, "keys": keys, "depth": depth}
    return KERNEL.problem(sizes | axes, "float32", options)


def drawn(problem, kind):
    """Arrays of that kind, NaN between their rows, and O full of it."""
    generator = np.random.default_rng(KINDS.index(kind))
    arrays = {}
    for tensor in KERNEL.tensors:
        layout = tensor.layout(problem)
        shape = layout.own_shape
        x = generator.random(shape) if kind == "uniform" else generator.standard_normal(shape)
        if tensor.name in {"Q", "K", "V"}:
            x *= factors(kind, tensor.name, shape, generator)
        elif tensor.name == "M" and x.ndim == 4:
            x[generator.random(shape) < 0.3] = -np.inf
            x[0, 0, 0] = -np.inf  # no key counts
            x[-1, -1, -1] = np.finfo(np.float32).min
        if kind == "odd" or (kind == "odd scores" and tensor.name != "V"):
            spoil(x, tensor.name)
        arrays[tensor.name] = layout.placed(x.astype(np.float32))
    arrays["O"][...] = np.nan
    return arrays


def factors(kind, name, shape, generator):
    """What an array of that kind is multiplied by."""
    whole = {"lines": (*shape[:-1], 1), "columns": (*shape[:-2], 1, shape[-1]), "scaled": shape}
    reach = {"lines": 8, "columns": 20 if name == "V" else 0, "scaled": 30 if name == "V" else 8}
    if kind in whole:
        return np.exp2(generator.integers(-reach[kind], reach[kind] + 1, whole[kind]))
    if kind == "dominant" and name == "K":
        return np.where(np.arange(shape[-2])[:, np.newaxis] == shape[-2] // 2, 20.0, 1.0)
    return 1.0


def spoil(x, name):
    """Infinities and NaN in some rows, and rows of zeros."""
    if name == "K":
        x[0, 0, 3, 5], x[0, -1, 1] = np.inf, 0
    elif name == "Q":
        x[0, -1, 2, 0], x[0, 0, 4] = -np.inf, 0
    elif name == "V":
        x[0, -1, -2, 2], x[0, 0, 1] = np.nan, 1e30


def assert_right(problem, folder, kinds, scale=0.125, **values):
    """One configuration on arrays of these kinds."""
    needs_cpp_library()
    configuration = Configuration.of(TENSOR3XFP16_SM90.name, DEFAULT | values)
    on_host = attention_on_host(KERNEL, problem, configuration, folder)
    for kind in kinds:
        arrays = drawn(problem, kind)
        on_host.launch(arrays, {"scale": scale})
        verification = compare(arrays["O"], KERNEL.reference(problem, arrays, {"scale": scale}), "float32")
        assert verification.wrong == 0, (kind, verification)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("problem", "values", "kinds"),
    [
        (problem_of(1, 2, 70, 150, 64), {"TILE_KEYS": 64}, KINDS),
        (problem_of(2, 4, 150, 140, 128, "causal", kv_heads=2), {"TILE_KEYS": 48}, ("normal", "lines")),
        (problem_of(1, 2, 40, 90, 40, "additive"), {"TILE_KEYS": 80}, ("normal", "scaled", "odd scores")),
        pytest.param(problem_of(1, 2, 33, 197, 72, inside=True), {"TILE_KEYS": 112}, KINDS, marks=EXHAUSTIVE),
        pytest.param(
            problem_of(
                *(2, 2, 200, 70, 64, "additive"),
                row_m=0,
                head_m=0,
                batch_m=70,
                row_q=384,
                head_q=64,
                batch_q=76800,
                row_k=131,
                head_k=9170,
                batch_k=18340,
            ),
            {"MULTIPLIERS": 3},
            ("normal", "lines"),
            marks=EXHAUSTIVE,
        ),
        (problem_of(1, 3, 300, 130, 64, "causal"), {"HEADS_TOGETHER": 1024, "BLOCKS": 4}, ("normal", "lines")),
        (problem_of(2, 3, 200, 300, 64), {"MULTIPLIERS": 3, "BLOCKS": 4}, ("normal", "lines")),
        pytest.param(
            problem_of(1, 3, 300, 420, 64, "causal"), {"TILE_KEYS": 32, "BLOCKS": 2}, ("normal",), marks=EXHAUSTIVE
        ),
        pytest.param(problem_of(1, 1, 9, 33, 8, "causal"), {"TILE_KEYS": 48}, ("normal", "scaled"), marks=EXHAUSTIVE),
        pytest.param(problem_of(1, 1, 1, 1, 32), {"TILE_KEYS": 32}, ("normal",), marks=EXHAUSTIVE),
    ],
    ids=lambda one: one.shape_text if hasattr(one, "shape_text") else "",
)
def test_results_are_right(problem, values, kinds, tmp_path):
    assert_right(problem, tmp_path / "host", kinds, **values)


@EXHAUSTIVE
@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_any_scale_is_right(scale, tmp_path):
    assert_right(problem_of(1, 1, 40, 90, 40), tmp_path / "host", ("normal", "lines"), scale, TILE_KEYS=48)


@pytest.mark.in_turn(2)
@needs_nvrtc
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        pytest.param(problem_of(8, 12, 512, 512, 64), {"TILE_KEYS": 128}, marks=EXHAUSTIVE),
        pytest.param(problem_of(8, 12, 512, 512, 64), {"MULTIPLIERS": 3}, marks=EXHAUSTIVE),
        (problem_of(1, 32, 2048, 2048, 128, "causal"), {"TILE_KEYS": 64}),
        pytest.param(problem_of(8, 12, 512, 512, 96), {"TILE_KEYS": 96}, marks=EXHAUSTIVE),
    ],
    ids=str,
)
def test_registers_suffice_and_products_overlap(problem, values):
    configuration = Configuration.of(TENSOR3XFP16_SM90.name, DEFAULT | values)
    source, definitions = KERNEL.source(configuration.variant), KERNEL.definitions(problem, configuration)
    compiled = compile_nvrtc(source, definitions, "sm_90a", KERNEL.entry)
    assert compiled.resources.spill_bytes == 0
    assert "serialized" not in compiled.log  # what ptxas says where it waits for each product
    assert compiled.resources.shared_bytes == TENSOR3XFP16_SM90.static_shared_bytes(configuration.values, problem)


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize(
    ("heads", "queries", "keys", "depth"), [(12, 512, 512, 64), (2, 70, 20, 128), (4, 300, 129, 8)]
)
def test_a_search_on_hopper_begins_with_the_variant(mask, heads, queries, keys, depth):
    problem = problem_of(3, heads, queries, keys, depth, mask)
    starts = KERNEL.first_configurations(KERNEL.space(problem, H200))
    assert TENSOR3XFP16_SM90.name in {start.variant for start in starts}
