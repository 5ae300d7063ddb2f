"""Contestants of a report's rounds on a made bench."""

import made_recordings as made
import pytest

from tilewright.kernels.space import Configuration
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop.measure import MeasurementPlan
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.report.turns import LIBRARY, BrokenStepError, times

TILED = Configuration.of("v", {"TILE": 1})


class BenchOfABadLibrary(made.BenchWithLibrary):
    sticky_library = False

    def library(self):
        raise TrialFailure(Outcome.TIMED_OUT, "no answer", sticky=self.sticky_library)


@pytest.fixture
def bench():
    return BenchOfABadLibrary(made.of({TILED: made.entry(1.0)}, v=[("TILE", (1,))]))


def test_a_library_that_fails_is_left_out_with_its_reason_and_the_others_are_timed(bench):
    found = times(bench, {"tiled": TILED}, "warm", MeasurementPlan(), library=True)
    assert found[LIBRARY].left_out == "timed_out: no answer"
    assert found["tiled"].time.median_ms == pytest.approx(1.0, rel=0.02)


def test_a_library_that_breaks_the_context_ends_the_report(bench):
    bench.sticky_library = True
    with pytest.raises(BrokenStepError, match="no answer"):
        times(bench, {"tiled": TILED}, "warm", MeasurementPlan(), library=True)
