import random

import numpy as np
import pytest
from contracts.variant import H200

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.predict.features import FEWEST_TOLD, Features, Registers

GEMM = catalogue().get("gemm")
PROBLEM = GEMM.problem({"m": 512, "n": 768, "k": 640})


def registers_of(configuration):
    """As a compiler would have it: the sums, two rows and columns, and some for addresses."""
    c = configuration.values
    return 24 + c.WPT_M * c.WPT_N + 2 * (c.WPT_M + c.WPT_N)


@pytest.fixture(scope="module")
def told():
    feasible = GEMM.space(PROBLEM, H200, ["register", "wpt"]).feasible
    return {c: registers_of(c) for c in random.Random(1).sample(list(feasible), 400)}


def test_what_was_compiled_is_known_and_the_rest_is_estimated(told):
    known = dict(list(told.items())[:300])
    features = Features(GEMM, H200, known)
    registers = Registers(known, features.parameters)
    assert registers.of(list(known)) == list(known.values())
    others = [c for c in told if c not in known]
    errors = np.log(np.array(registers.of(others)) / [told[c] for c in others])
    assert len(others) == 100
    assert np.sqrt(np.mean(errors**2)) < 0.1


def test_an_estimate_stays_within_what_was_compiled(told):
    small = {c: count for c, count in told.items() if count < 100}
    registers = Registers(small, Features(GEMM, H200).parameters)
    estimates = registers.of([c for c in told if c not in small])
    assert min(small.values()) <= min(estimates)
    assert max(estimates) <= max(small.values())


def test_nothing_is_estimated_from_too_few_or_where_no_compiler_tells(told):
    few = dict(list(told.items())[: FEWEST_TOLD - 1])
    unknown = list(told)[FEWEST_TOLD:]
    parameters = Features(GEMM, H200).parameters
    assert Registers(few, parameters).of(unknown) == [0] * len(unknown)
    assert Registers(dict.fromkeys(told, 0), parameters).of(list(told)) == [0] * len(told)
    assert Registers({}, parameters).of([]) == []


def test_what_was_never_compiled_is_estimated_and_not_taken_to_need_no_registers(told):
    hidden = max(told, key=lambda c: told[c])
    known = {c: count for c, count in told.items() if c != hidden}

    def row(registers):
        return Features(GEMM, H200, registers).rows(PROBLEM, [hidden])[0]

    as_compiled = row(told)
    assert np.abs(row(known) - as_compiled).max() < 0.5
    assert np.abs(row({}) - as_compiled).max() > 1
