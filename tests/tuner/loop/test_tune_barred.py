"""A configuration found wrong after its trial counts as tried, and its time for nothing."""

from __future__ import annotations

from dataclasses import replace

import made_recordings as made
import pytest
from replayed_run import BEST, Run

from tilewright.kernels.space import Configuration
from tilewright.tuner.loop import tune as tuning
from tilewright.tuner.loop.tune import Budget, Trial
from tilewright.tuner.outcome import Evaluation, Outcome, Timing

WRONG = Configuration.of("fine", {"TILE": 128, "UNROLL": 8})


def measured(time_ms):
    timing = Timing(time_ms, 0.0, (time_ms,), "warm")
    return Evaluation(Outcome.MEASURED, warm=timing, cold=replace(timing, l2="cold"))


BOGUS = Trial(0, WRONG, measured(0.01))


def run(budget, *, barred=frozenset({WRONG}), known=(BOGUS,), **kwargs):
    return Run(made.valley(), budget, trials=known, barred=barred, **kwargs).go()


def samples_per_trial(run):
    return [len(trial.evaluation.ranking.samples_ms) for trial in run.trials]


def test_its_time_reaches_no_target():
    found = run(Budget(trials=64, target_ms=1.05))
    assert found.result.stopped_by == "target"
    assert found.result.best.configuration == BEST


@pytest.mark.parametrize("heard", [False, True])
def test_nobody_is_raced_against_its_time(heard):
    told = {"known": (), "others": iter([[BOGUS], *[[]] * 100]).__next__} if heard else {}
    found = run(Budget(trials=20), **told)
    assert max(samples_per_trial(found)) >= 7
    assert all(progress.best.configuration != WRONG for progress in found.progress)
    assert min(samples_per_trial(run(Budget(trials=20), barred=frozenset(), **told))) <= 2


def test_it_is_never_tried_again_and_its_number_is_kept():
    found = run(Budget(trials=500))
    assert found.result.stopped_by == "exhausted"
    assert [trial.number for trial in found.trials] == list(range(1, 64))
    assert WRONG not in {trial.configuration for trial in found.trials}
    assert found.result.slowest_ms == pytest.approx(4 * (1 + 0.2 * 8), rel=0.01)


def test_what_is_handed_out_is_as_measured():
    found = run(Budget(trials=64), known=())
    trial = next(trial for trial in found.trials if trial.configuration == WRONG)
    assert trial.evaluation.outcome is Outcome.MEASURED
    assert len(found.trials) == 64


@pytest.mark.parametrize("heard", [False, True])
def test_the_search_is_told_of_a_failure_and_of_the_others_as_they_were(monkeypatch, heard):
    told, make = [], tuning.make_searcher

    def make_searcher(*arguments, **options):
        searcher = make(*arguments, **options)
        told.extend(arguments[4])
        tell = searcher.tell
        monkeypatch.setattr(searcher, "tell", lambda *what: (told.append(what), tell(*what)))
        return searcher

    monkeypatch.setattr(tuning, "make_searcher", make_searcher)
    other = Trial(1, Configuration.of("fine", {"TILE": 64, "UNROLL": 8}), measured(2.0))
    hear = {"known": (), "others": iter([[BOGUS, other], *[[]] * 100]).__next__} if heard else {"known": (BOGUS, other)}
    run(Budget(trials=3), **hear)
    evaluations = dict(told)
    assert (evaluations[WRONG].outcome, evaluations[WRONG].log) == (Outcome.WRONG_RESULT, "barred from the finals")
    assert evaluations[other.configuration] is other.evaluation
    assert BOGUS.evaluation.time_ms == 0.01


def test_a_barred_default_leaves_no_time_to_state_gains_against():
    plain = Run(made.valley(), Budget(trials=1)).go()
    default = plain.trials[0]
    found = run(Budget(trials=10), known=(default,), barred=frozenset({default.configuration}))
    assert found.result.default_ms is None
