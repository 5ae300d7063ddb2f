"""Searches whose proposals are compiled, and whose trials are sent, ahead of what is known."""

import math

import made_recordings as made
from replayed_run import Run

from tilewright.kernels.space import Configuration
from tilewright.tuner.loop.ahead import Proposals
from tilewright.tuner.loop.tune import Budget
from tilewright.tuner.recorded.replay import ReplayBench, replay
from tilewright.tuner.search import make_searcher


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
