"""attention's `tiled` and its reference, run for real on the CPU device."""

import numpy as np
import pytest
from contracts.variant import verified

from tilewright.kernels.attention.declaration import KERNEL
from tilewright.kernels.errors import InvalidLayoutError, InvalidProblemError
from tilewright.kernels.fields.axes import Layout

SMALL = {"batch": 2, "heads": 4, "queries": 13, "keys": 21, "depth": 40}


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("axes", "options", "dtype"),
    [
        ({"kv_heads": 2}, {}, "float32"),
        ({"queries": 30, "depth": 128}, {"mask": "causal"}, "float64"),
        ({"row_m": 0, "head_m": 0, "batch_m": 21}, {"mask": "additive", "heads_inside": True}, "float32"),
        ({"row_q": 480, "head_q": 40, "batch_q": 480 * 13}, {}, "float32"),
    ],
)
def test_corners_of_the_space_are_right(device, axes, options, dtype):
    problem = KERNEL.problem(SMALL | axes, dtype, options)
    feasible = KERNEL.space(problem, device.model.limits, only=["tiled"]).feasible
    for configuration in dict.fromkeys((feasible[0], feasible[-1])):
        assert verified(device, KERNEL, problem, configuration).wrong == 0


def test_the_reference_is_softmax_of_scores_times_values():
    problem = KERNEL.problem(SMALL, "float64", {"mask": "additive"})
    generator = np.random.default_rng(1)
    arrays = {t.name: generator.standard_normal(t.shape(problem)) for t in KERNEL.tensors}
    arrays["M"][0, 1, 3] = -np.inf
    reference = KERNEL.reference(problem, arrays, {"scale": 0.5})
    scores = np.einsum("bhqd,bhkd->bhqk", arrays["Q"], arrays["K"]) * 0.5 + arrays["M"]
    weights = np.exp(scores)
    with np.errstate(invalid="ignore"):
        expected = np.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdims=True), arrays["V"])
    expected[0, 1, 3] = 0  # no key counts
    np.testing.assert_allclose(reference.value, expected, rtol=1e-12, atol=1e-13)
    assert np.isfinite(reference.magnitude).all()


def test_depths_that_no_variant_has_are_refused():
    for depth in (4, 60, 136):
        with pytest.raises(InvalidProblemError, match="multiple of 8 from 8 to 128"):
            KERNEL.problem(SMALL | {"depth": depth})
    with pytest.raises(InvalidProblemError, match="must divide heads"):
        KERNEL.problem(SMALL | {"kv_heads": 3})


def test_a_causal_problem_counts_the_pairs_that_count():
    problem = KERNEL.problem(SMALL | {"queries": 30}, "float32", {"mask": "causal"})
    counted = sum(min(i + 1, 21) for i in range(30))
    assert KERNEL.flops(problem) == 4 * 8 * counted * 40


def test_arrays_pose_the_problem_that_they_are():
    problem = KERNEL.problem(SMALL)
    columns = (13 * 480, 40, 480, 1)  # heads are columns of one product
    inside = Layout((2, 4, 13, 40), (13 * 160, 40, 160, 1))
    keys = Layout.dense((2, 2, 21, 40))
    layouts = {"Q": Layout((2, 4, 13, 40), columns), "K": keys, "V": keys, "M": Layout.dense((1,)), "O": inside}
    shape, options = KERNEL.posed_by(problem, layouts)
    posed = KERNEL.problem(shape, "float32", options)
    assert posed.options["heads_inside"] is True
    assert posed.shape["kv_heads"] == 2
    assert [posed.shape[f"{axis}_q"] for axis in ("batch", "head", "row")] == [13 * 480, 40, 480]
    with pytest.raises(InvalidLayoutError, match="rows have gaps"):
        KERNEL.posed_by(problem, layouts | {"Q": Layout((2, 4, 13, 40), (2080, 520, 1, 13))})
    with pytest.raises(InvalidLayoutError, match="dense"):
        KERNEL.posed_by(problem, layouts | {"O": layouts["Q"]})


@pytest.mark.parametrize("depth", range(8, 129, 24))
@pytest.mark.parametrize("queries", [1, 9, 33, 513])
@pytest.mark.parametrize("dtype", KERNEL.dtypes)
def test_every_problem_has_a_default(device, depth, queries, dtype):
    space = KERNEL.space(KERNEL.problem(SMALL | {"queries": queries, "depth": depth}, dtype), device.model.limits)
    assert KERNEL.default_configuration(space) in space
