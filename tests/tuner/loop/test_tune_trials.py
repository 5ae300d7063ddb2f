"""Trials that are sent ahead, found wrong afterwards, or lost with the process of their device."""

import math
from dataclasses import replace

import made_recordings as made
import pytest
from made_recordings import BEST, Run

from tilewright.kernels.space import Configuration
from tilewright.tuner.errors import DeviceLostError, SurroundingsError, TrialFailure
from tilewright.tuner.loop import tune as tuning
from tilewright.tuner.loop.ahead import Proposals
from tilewright.tuner.loop.tune import Budget, Trial
from tilewright.tuner.outcome import Evaluation, Outcome, Timing
from tilewright.tuner.recorded.replay import ReplayBench, replay
from tilewright.tuner.search.samplers import make_searcher


class AheadBench(ReplayBench):
    compiles_ahead = True

    def __init__(self, recording):
        super().__init__(recording)
        self.queued = []

    def compile_ahead(self, configurations):
        self.queued.extend(configurations)

    def compile(self, configuration):
        if not self.drawn_ms:  # not in the finals
            assert configuration in self.queued
        return super().compile(configuration)


def test_a_bench_that_compiles_ahead_hears_early_and_of_no_more_than_the_budget():
    recording = made.valley()
    bench = AheadBench(recording)
    run = Run(recording, Budget(trials=20), bench=bench).go()
    assert bench.queued == [t.configuration for t in run.trials]
    assert len(run.trials) == 20


class ManyBench(AheadBench):
    """Compiles `compilers` at a time; `late` ones are ready only when nothing else is, or all are at once."""

    compilers = 4

    def __init__(self, recording, late, *, instant=False):
        super().__init__(recording)
        self.late, self.instant, self.in_flight, self.dropped = late, instant, [], []

    def ready(self, configurations, *, wait):
        self.in_flight.append(len(configurations))
        if self.instant:
            return list(configurations)
        ready = [c for c in configurations if c not in self.late]
        return (ready or list(configurations))[:1] if wait else []

    def drop(self, configurations):
        self.dropped.extend(configurations)


def test_what_compiles_slowly_holds_nobody_up():
    recording = made.valley()
    slow = Configuration.of("fine", {"TILE": 1, "UNROLL": 1})
    bench = ManyBench(recording, {slow})
    run = Run(recording, Budget(trials=64), bench=bench).go()
    assert run.trials[-1].configuration == slow
    assert max(bench.in_flight) == 1 + ManyBench.compilers


def test_a_search_that_time_alone_limits_keeps_every_compiler_busy():
    bench = ManyBench(made.valley(), set())
    bench.compilers = 12
    recording = made.valley()
    device, kernel, problem = replay(recording)
    searcher = make_searcher("random", kernel.space(problem, device.model.limits), [], seed=1)
    proposals = Proposals(bench, searcher, math.inf, lambda _configuration: True)
    proposals.next(math.inf)
    proposals.close()
    assert len(bench.dropped) == 1 + 12


def test_what_was_ahead_at_the_end_is_not_compiled_any_more():
    bench = ManyBench(made.valley(), set())
    run = Run(made.valley(), Budget(target_ms=100.0), bench=bench).go()
    assert len(run.trials) == 1
    assert len(bench.queued) == 1 + len(bench.dropped)


def test_a_search_does_not_run_far_ahead_of_what_it_knows_when_compilers_are_quick():
    bench = ManyBench(made.valley(), set(), instant=True)
    run = Run(made.valley(), Budget(trials=40), bench=bench).go()
    assert len(run.trials) == 40
    assert bench.dropped == []
    assert max(bench.in_flight[8:]) <= 9
    assert max(bench.in_flight[30:]) <= 4


class BegunBench(ManyBench):
    def __init__(self, recording):
        super().__init__(recording, set(), instant=True)
        self.begun = []

    def begin(self, configuration, *arguments):
        self.begun.append(configuration)
        return super().begin(configuration, *arguments)


def test_the_device_has_the_next_trial_before_one_is_told_and_none_beyond_the_budget():
    bench, begun_by_then, trials = BegunBench(made.valley()), [], []

    def told(progress):
        trials.append(progress.trial)
        begun_by_then.append(len(bench.begun))

    Run(made.valley(), Budget(trials=20), bench=bench, on_trial=told).go()
    assert [trial.configuration for trial in trials] == bench.begun
    assert begun_by_then == [1, *range(3, 21), 20]  # what follows the first is raced against it
    assert all(trial.wall_s >= 0 for trial in trials)


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


class LosingBench(made.BenchWithLibrary):
    """What it does when BEST is compiled is listed: each entry once, and then it compiles."""

    def __init__(self, recording, failures):
        super().__init__(recording)
        self.failures = list(failures)

    def compile(self, configuration):
        if configuration == BEST and self.failures:
            raise self.failures.pop(0)
        return super().compile(configuration)


def run_losing(*failures):
    recording = made.valley()
    return Run(recording, Budget(trials=64), bench=LosingBench(recording, failures))


def lost(log="died in evaluate (SIGKILL)"):
    return TrialFailure(Outcome.DEVICE_LOST, log)


def test_a_process_killed_while_idle_costs_the_next_configuration_nothing():
    found = run_losing(lost()).go()
    assert len(found.trials) == 64
    assert {trial.evaluation.outcome for trial in found.trials} == {Outcome.MEASURED}
    assert found.result.best.configuration == BEST


def test_a_configuration_that_loses_two_processes_is_recorded_with_that():
    found = run_losing(lost("the first"), lost("the second")).go()
    trial = next(trial for trial in found.trials if trial.configuration == BEST)
    assert (trial.evaluation.outcome, trial.evaluation.log) == (Outcome.DEVICE_LOST, "the second")
    assert len(found.trials) == 64


def test_a_device_that_does_not_come_back_leaves_the_trial_as_evidence():
    losing = run_losing(lost(), DeviceLostError("it is gone"))
    with pytest.raises(DeviceLostError, match="it is gone"):
        losing.tune()
    assert losing.trials[-1].configuration == BEST
    assert losing.trials[-1].evaluation.outcome is Outcome.DEVICE_LOST


def test_other_failures_are_what_the_first_try_says():
    found = run_losing(TrialFailure(Outcome.LAUNCH_FAILED, "died in sample (SIGKILL)")).go()
    trial = next(trial for trial in found.trials if trial.configuration == BEST)
    assert trial.evaluation.outcome is Outcome.LAUNCH_FAILED


def interrupted(log="no space left on device"):
    return TrialFailure(Outcome.INTERRUPTED, log)


def test_a_trial_that_the_surroundings_end_once_is_tried_again_and_measured():
    found = run_losing(interrupted()).go()
    assert {trial.evaluation.outcome for trial in found.trials} == {Outcome.MEASURED}
    assert found.result.best.configuration == BEST


def test_one_that_they_end_twice_is_recorded_as_such():
    found = run_losing(interrupted(), interrupted("again")).go()
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
