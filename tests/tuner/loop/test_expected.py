"""What results are held to: references in their short forms, a check of the kernel's own, a trusted configuration."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from contracts.tally import PROBLEM, TALLY

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.own import limits_of
from tilewright.kernels.reference import close_to, computed
from tilewright.kernels.space import Constraint
from tilewright.tuner.arrays import random_arrays, scalar_values
from tilewright.tuner.errors import OwnFunctionError
from tilewright.tuner.loop.expected import expected_of, trusted_configuration
from tilewright.tuner.loop.verify import compare, tolerance


def expected(**changes):
    kernel = replace(TALLY, **changes)
    arrays = random_arrays(kernel, PROBLEM, 1)
    return expected_of(kernel, PROBLEM, arrays, scalar_values(kernel, PROBLEM))


def right():
    """The right outputs, as the kernel computes them."""
    of = expected()
    return {t.name: of.references[t.name].value.astype(t.dtype_for(PROBLEM)) for t in TALLY.outputs}


def test_the_worst_output_is_the_one_that_is_named():
    outputs = right()
    assert expected().compare(outputs).is_right
    outputs["scaled"][3] *= 1 + 1e-3
    outputs["total"][[1, 2]] += 2**40
    verification = expected().compare(outputs)
    assert (verification.tensor, verification.wrong, verification.first_wrong) == ("total", 2, (1,))
    assert verification.message().startswith("total: 2 components are wrong, first at (1,): got 10995")


def test_integers_are_exact_beyond_what_a_double_holds():
    large = np.full(1001, 2**53, np.int64)
    of = expected(reference=lambda _p, _a, _s: {**right(), "total": large + 1})
    assert of.compare({**right(), "total": large}).wrong == 1001


def test_values_alone_are_held_to_the_tolerance_of_their_dtype():
    outputs = right()
    outputs["scaled"] *= np.float32(1 + 3e-6)
    assert expected().compare(outputs).is_right
    outputs["scaled"] *= np.float32(1 + 3e-5)
    assert not expected().compare(outputs).is_right


def test_an_own_check_decides_by_itself_and_says_why():
    of = expected(
        check=lambda outputs, reference: "too few" if outputs["total"].sum() < reference["total"].sum() else None
    )
    assert of.compare(right()).remark() == "Verified by the kernel's own check."
    wrong = of.compare({**right(), "total": np.zeros(1001, np.int64) - 10**6})
    assert (wrong.is_right, wrong.message()) == (False, "the kernel's own check: too few")
    raising = expected(check=lambda outputs, _reference: outputs["nothing"]).compare(right())
    assert raising.message() == "the kernel's own check: it raised KeyError: 'nothing'"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"inputs": lambda _p, _g: {"kays": 1}},
            "it sets 'kays'; what is read is keys, total",
        ),
        (
            {"inputs": lambda _p, _g: {"keys": np.zeros(3, np.uint8)}},
            r"keys is uint8 \(3,\); the tensor is uint8 ",
        ),
        ({"inputs": lambda _p, _g: {"keys": np.zeros(1001)}}, r"keys is float64 \(1001,\)"),
        ({"inputs": lambda _p, _g: 1 / 0}, "`inputs` of the kernel tally: it raised ZeroDivisionError"),
        ({"reference": lambda _p, _a, _s: {"scaled": np.zeros(1001)}}, "it does not return is_large"),
        (
            {"reference": lambda _p, _a, _s: {"scaled": np.zeros(3)}},
            r"shape \(1001,\), and it returns \(3,\)",
        ),
    ],
)
def test_what_an_author_s_function_gets_wrong_is_said_with_its_name(changes, said):
    with pytest.raises(OwnFunctionError, match=said):
        expected(**changes)


def test_a_problem_without_a_configuration_to_trust_is_refused():
    (variant,) = TALLY.variants
    nothing_fits = replace(variant, constraints=(Constraint("never", lambda _c, _p, _d: False),))
    kernel = replace(TALLY, reference=None, variants=(nothing_fits,))
    with pytest.raises(OwnFunctionError, match="there is none, and no configuration for tally n=1001"):
        trusted_configuration(kernel, PROBLEM, limits_of((9, 0)))
    assert trusted_configuration(replace(kernel, check=lambda *_: None), PROBLEM, limits_of((9, 0))) is None


def test_widened_bounds_grant_so_many_times_the_error_and_no_more():
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": 5, "n": 6, "k": 64}, "bfloat16", {"output": "float32"})
    arrays, scalars = random_arrays(gemm, problem, 1), scalar_values(gemm, problem)
    held = expected_of(gemm, problem, arrays, scalars)
    reference = held.references["C"]
    out = reference.value + 5.0 * tolerance(reference, "float32")  # 2 are granted
    assert held.compare({"C": out}).wrong == 30
    assert held.widened(3.0).compare({"C": out}).wrong == 0
    assert held.widened(2.0).compare({"C": out}).wrong == 30


def test_a_coarser_roundoff_of_the_references_own_is_widened_not_replaced():
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": 5, "n": 6, "k": 64}, "float32", {"accuracy": "tf32"})
    arrays, scalars = random_arrays(gemm, problem, 1), scalar_values(gemm, problem)
    held = expected_of(gemm, problem, arrays, scalars)
    assert held.widened(3.0).references["C"].unit_roundoff == 3 * held.references["C"].unit_roundoff
    assert held.references["C"].unit_roundoff > 2.0**-12


N, D = 2048, 64


@pytest.fixture(scope="module")
def factors():
    generator = np.random.default_rng(1)
    return [generator.standard_normal((N, D)).astype(ml_dtypes.bfloat16).astype(np.float32) for _ in "qkv"]


def attention(factors, block, *, without=-1, narrow=ml_dtypes.bfloat16, out=ml_dtypes.bfloat16):
    """Causal attention over blocks of keys, as it is written for GPUs; `without` leaves one block out."""
    q, k, v = factors
    most, total, result = np.full(N, -np.inf, np.float32), np.zeros(N, np.float32), np.zeros((N, D), np.float32)
    for start in range(0, N, block):
        keys = np.arange(start, start + block)
        scores = q @ k[keys].T / np.float32(8)
        scores = np.where(np.arange(N)[:, None] >= keys, scores, -np.inf)
        new = np.maximum(most, scores.max(axis=1))
        if start // block != without:
            part, old = np.exp(scores - new[:, None]), np.exp(most - new)
            result = result * old[:, None] + part.astype(narrow).astype(np.float32) @ v[keys]
            total, most = total * old + part.sum(axis=1), new
    return (result / total[:, None]).astype(out)


@pytest.mark.parametrize("block", [16, 32, 128, 256])
def test_another_order_of_sums_in_a_half_type_is_right(factors, block):
    default, other = attention(factors, 64), attention(factors, block)
    assert not compare(other, close_to(default, "bfloat16"), "bfloat16").is_right  # as values that are exact
    assert compare(other, computed(default, "bfloat16"), "bfloat16").is_right


def test_a_block_of_keys_that_is_left_out_is_wrong(factors):
    default = attention(factors, 64)
    for without in (1, 100):
        missing = attention(factors, 16, without=without)
        assert not compare(missing, computed(default, "bfloat16"), "bfloat16").is_right


def test_a_wider_result_of_half_arithmetic_is_held_to_that(factors):
    default, other = (attention(factors, block, narrow=np.float16, out=np.float32) for block in (64, 16))
    assert not compare(other, computed(default, "float32"), "float32").is_right
    assert compare(other, computed(default, "float32", "float16"), "float32").is_right


def test_integers_stay_exact():
    assert not compare(np.array([1, 2]), computed(np.array([1, 3]), "int64", "float16"), "int64").is_right
