"""Trials whose device process is lost outside of a launch."""

from __future__ import annotations

import made_recordings as made
import pytest
from replayed_run import BEST, Run

from tilewright.tuner.errors import DeviceLostError, SurroundingsError, TrialFailure
from tilewright.tuner.loop.tune import Budget
from tilewright.tuner.outcome import Outcome


class LosingBench(made.BenchWithLibrary):
    """What it does when BEST is compiled is listed: each entry once, and then it compiles."""

    def __init__(self, recording, failures):
        super().__init__(recording)
        self.failures = list(failures)

    def compile(self, configuration):
        if configuration == BEST and self.failures:
            raise self.failures.pop(0)
        return super().compile(configuration)


def run(*failures):
    recording = made.valley()
    return Run(recording, Budget(trials=64), bench=LosingBench(recording, failures))


def lost(log="died in evaluate (SIGKILL)"):
    return TrialFailure(Outcome.DEVICE_LOST, log)


def test_a_process_killed_while_idle_costs_the_next_configuration_nothing():
    found = run(lost()).go()
    assert len(found.trials) == 64
    assert {trial.evaluation.outcome for trial in found.trials} == {Outcome.MEASURED}
    assert found.result.best.configuration == BEST


def test_a_configuration_that_loses_two_processes_is_recorded_with_that():
    found = run(lost("the first"), lost("the second")).go()
    trial = next(trial for trial in found.trials if trial.configuration == BEST)
    assert (trial.evaluation.outcome, trial.evaluation.log) == (Outcome.DEVICE_LOST, "the second")
    assert len(found.trials) == 64


def test_a_device_that_does_not_come_back_leaves_the_trial_as_evidence():
    losing = run(lost(), DeviceLostError("it is gone"))
    with pytest.raises(DeviceLostError, match="it is gone"):
        losing.tune()
    assert losing.trials[-1].configuration == BEST
    assert losing.trials[-1].evaluation.outcome is Outcome.DEVICE_LOST


def test_other_failures_are_what_the_first_try_says():
    found = run(TrialFailure(Outcome.LAUNCH_FAILED, "died in sample (SIGKILL)")).go()
    trial = next(trial for trial in found.trials if trial.configuration == BEST)
    assert trial.evaluation.outcome is Outcome.LAUNCH_FAILED


def interrupted(log="no space left on device"):
    return TrialFailure(Outcome.INTERRUPTED, log)


def test_a_trial_that_the_surroundings_end_once_is_tried_again_and_measured():
    found = run(interrupted()).go()
    assert {trial.evaluation.outcome for trial in found.trials} == {Outcome.MEASURED}
    assert found.result.best.configuration == BEST


def test_one_that_they_end_twice_is_recorded_as_such():
    found = run(interrupted(), interrupted("again")).go()
    (trial,) = [trial for trial in found.trials if trial.configuration == BEST]
    assert (trial.evaluation.outcome, trial.evaluation.log) == (Outcome.INTERRUPTED, "again")
    assert len(found.trials) == 64


class LackingBench(made.BenchWithLibrary):
    def compile(self, configuration):
        raise interrupted()


def test_a_job_ends_with_the_reason_where_the_surroundings_end_every_trial():
    recording = made.valley()
    with pytest.raises(SurroundingsError, match="3 trials running were interrupted, each twice: no space left"):
        Run(recording, Budget(trials=64), bench=LackingBench(recording)).go()
