"""classifier: its source run for real on the CPU device, and its bound."""

import math
from contextlib import closing

import numpy as np
import pytest
from contracts.launches_on_host import SANITIZING, checked
from contracts.variant import H200
from faulty_kernels import with_change
from sampling import EXHAUSTIVE

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import UNIT_ROUNDOFF
from tilewright.kernels.space import Configuration

CLASSIFIER = catalogue().get("classifier")
SMALL = Configuration.of("rows", {"ROWS": 2, "WARPS": 2, "OUTPUTS": 4, "VECTOR_WIDTH": 2})


def verified(device, kernel, problem, configuration):
    with closing(device.bench(kernel, problem, seed=5)) as bench:
        return bench.verify_each_kind(bench.compile(configuration))


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((7, 100, 100, 10), "float32"),
        ((9, 37, 20, 5), "float64"),
        ((1, 1, 1, 1), "float32"),
        ((3, 512, 33, 200), "float64"),
    ],
)
def test_corners_of_the_space_are_right(device, shape, dtype):
    problem = CLASSIFIER.problem(dict(zip("mkhn", shape, strict=True)), dtype)
    feasible = CLASSIFIER.space(problem, device.model.limits).feasible
    for configuration in dict.fromkeys((feasible[0], feasible[-1])):
        assert not sum(found.wrong for found in verified(device, CLASSIFIER, problem, configuration))


@SANITIZING
@pytest.mark.parametrize("mode", ["address", pytest.param("thread", marks=EXHAUSTIVE)])
def test_the_source_is_clean_under_sanitizers(device, mode):
    bench = device.bench(CLASSIFIER, CLASSIFIER.problem({"m": 9, "k": 38, "h": 20, "n": 5}), seed=5)
    assert checked(bench, SMALL, mode).is_clean
    bench.close()


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("text", "bug"),
    [
        ("s * STEP + first < LENGTH", "s * STEP + first + WIDTH < LENGTH"),
        ("const REAL z = total + b[output];", "const REAL z = total;"),
        ("RELU && z < REAL(0)", "z < REAL(0)"),
        ("which / OUTPUTS * COUNT", "0 * COUNT"),
        ("for (unsigned i = lane; i < N; i += 32) sum", "for (unsigned i = lane + 1; i < N; i += 32) sum"),
    ],
)
def test_a_bug_is_found(device, tmp_path, text, bug):
    """The verification that tuning runs sees what one changed line does."""
    broken = with_change(CLASSIFIER, tmp_path, "rows.cu", text, bug)
    problem = CLASSIFIER.problem({"m": 9, "k": 38, "h": 20, "n": 5})
    assert any(found.wrong for found in verified(device, broken, problem, SMALL))


def arrays(m, k, h, n, scale):
    draw = np.random.default_rng(3).standard_normal
    shapes = {"X": (m, k), "W1": (h, k), "b1": (h,), "W2": (n, h), "b2": (n,)}
    return {name: (draw(shape) * scale / math.sqrt(shape[-1])).astype(np.float32) for name, shape in shapes.items()}


def in_float32(x, w1, b1, w2, b2):
    hidden = np.maximum(x @ w1.T + b1, 0)
    z = hidden @ w2.T + b2
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def ratio(out, problem, given):
    """The worst error in units of the bound, c = 1."""
    reference = CLASSIFIER.reference(problem, given, {})
    bound = math.sqrt(reference.terms) * UNIT_ROUNDOFF["float32"] * reference.magnitude
    return float((np.abs(out.astype(np.float64) - reference.value) / bound).max())


@pytest.mark.parametrize("scale", [0.5, 2.0, 4.0])
@pytest.mark.parametrize("sizes", [(20, 100, 100, 10), (20, 784, 30, 3), (20, 5, 900, 100)])
def test_float32_arithmetic_stays_within_the_bound_and_a_lost_bias_does_not(sizes, scale):
    problem, given = CLASSIFIER.problem(dict(zip("mkhn", sizes, strict=True))), arrays(*sizes, scale)
    assert ratio(in_float32(**{name.lower(): a for name, a in given.items()}), problem, given) < 1
    lost = {name.lower(): a * 0 if name == "b2" else a for name, a in given.items()}
    assert ratio(in_float32(**lost), problem, given) > 10


@pytest.mark.parametrize(
    ("shape", "dtype", "runs"),
    [
        ({"m": 256, "k": 784, "h": 100, "n": 10}, "float32", True),
        ({"m": 1, "k": 1024, "h": 1024, "n": 1000}, "float32", True),
        ({"m": 1, "k": 1025, "h": 4, "n": 10}, "float32", False),
        ({"m": 9, "k": 512, "h": 512, "n": 1000}, "float64", True),
        ({"m": 9, "k": 513, "h": 4, "n": 10}, "float64", False),
        ({"m": 9, "k": 4, "h": 4, "n": 100_000}, "float32", False),
    ],
)
def test_problems_that_fit_have_a_default_and_others_no_variant(shape, dtype, runs):
    problem = CLASSIFIER.problem(shape, dtype)
    assert bool(CLASSIFIER.usable_variants(problem, H200)) is runs
    if runs:
        assert len(CLASSIFIER.space(problem, H200).defaults()) == 1


def test_work_is_counted_as_declared():
    problem = CLASSIFIER.problem({"m": 3, "k": 5, "h": 7, "n": 2}, "float64")
    assert CLASSIFIER.flops(problem) == 2 * 3 * 7 * 5 + 2 * 3 * 2 * 7
    assert CLASSIFIER.bytes_moved(problem) == 8 * (3 * 5 + 7 * 5 + 7 + 2 * 7 + 2 + 3 * 2)
