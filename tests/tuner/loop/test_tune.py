import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import made_recordings as made
import pytest
from made_recordings import BEST, Run
from threadpoolctl import threadpool_info, threadpool_limits

from tilewright.kernels.space import Configuration
from tilewright.tuner.errors import DeviceLostError
from tilewright.tuner.loop.measure import ContextLostError
from tilewright.tuner.loop.tune import Budget, Hooks, tune
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.recorded.replay import replay, replay_kernel
from tilewright.tuner.search.searcher import Prior


@pytest.mark.parametrize("sampler", ["gp", "tpe", "random"])
def test_the_whole_space_is_searched_and_the_best_settled(sampler):
    run = Run(made.valley(), Budget(trials=500), sampler=sampler).go()
    assert run.result.stopped_by == "exhausted"
    assert len(run.trials) == 64 == len({t.configuration for t in run.trials})
    assert [t.number for t in run.trials] == list(range(64))
    assert run.result.best.configuration == BEST
    assert run.result.best.time_ms == pytest.approx(1.0, rel=0.01)
    assert run.result.slowest_ms == pytest.approx(4 * (1 + 0.2 * 8), rel=0.01)


def test_the_default_is_measured_first_then_the_other_variants_starts():
    run = Run(made.valley(), Budget(trials=5)).go()
    default = run.kernel.default_configuration(run.space)
    assert run.trials[0].configuration == default
    assert run.trials[1].configuration in run.space.defaults()
    assert run.trials[1].configuration.variant != default.variant
    assert run.result.default_ms == pytest.approx(run.trials[0].evaluation.time_ms, rel=0.01)
    assert run.result.finalists[-1].configuration == default  # far behind, and timed beside the others all the same


def starts_tried(starts, trials, **kwargs):
    """Those of them that came right after the default, of a search of so many trials."""
    run = Run(made.valley(), Budget(trials=trials), sampler="random", starts=starts, **kwargs).go()
    tried = [t.configuration for t in run.trials]
    assert tried[0] == run.kernel.default_configuration(run.space)
    return [c for c, start in zip(tried[1:], starts, strict=False) if c == start]


def test_what_the_caller_asks_for_is_tried_before_all_other_starts_whatever_the_budget():
    space = Run(made.valley(), Budget(trials=1)).space
    asked, start = list(space.feasible)[-4:-1], space.feasible[-5]
    run = Run(made.valley(), Budget(trials=5), sampler="random", asked=asked, starts=[start]).go()
    assert [t.configuration for t in run.trials][1:4] == asked


def test_named_starts_follow_the_default_and_take_a_tenth_of_the_trials():
    space = Run(made.valley(), Budget(trials=1)).space
    starts = [*list(space.feasible)[-30:-10], BEST]
    default = Run(made.valley(), Budget(trials=1)).kernel.default_configuration(space)
    starts = [start for start in starts if start != default]
    assert starts_tried(starts, 40) == starts[:4]
    assert starts_tried(starts, 9) == []
    assert starts_tried(starts, 60) == starts[:6]


def test_at_most_sixteen_starts_are_tried_none_infeasible_and_none_already_known():
    run = Run(made.valley(), Budget(seconds=1e9))
    foreign = Configuration.of("fine", {"TILE": 5, "UNROLL": 4})
    some = [c for c in run.space.feasible if c != run.kernel.default_configuration(run.space)]
    earlier = Run(made.valley(), Budget(trials=50), sampler="random", starts=some).go()
    known = [t.configuration for t in earlier.trials]
    rest = [c for c in some if c not in known]
    kwargs = {"trials": earlier.trials, "sampler": "random", "starts": [foreign, *known, *some]}
    again = Run(made.valley(), Budget(seconds=1e9), **kwargs).go()
    assert [t.configuration for t in again.trials][: len(rest)][:14] == rest[:14]
    first = Run(made.valley(), Budget(seconds=1e9), sampler="random", starts=[foreign, *some]).go()
    assert [t.configuration for t in first.trials][1:17] == some[:16]
    assert [t.configuration for t in first.trials][17:] != some[16:]


def test_a_search_with_a_prior_tries_the_named_starts_and_then_what_the_prior_says():
    told = [(t.configuration, t.evaluation) for t in Run(made.valley(), Budget(trials=40)).go().trials]
    named = [c for c, _ in told][-3:]
    run = Run(made.valley(), Budget(trials=30), priors=[Prior.of("elsewhere", told)], starts=named).go()
    tried = [t.configuration for t in run.trials]
    assert tried[1:4] == named
    assert BEST in tried[:8]


def test_a_search_multiplies_on_one_thread_and_leaves_the_others_as_they_were():
    def threads():
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    during = []
    with threadpool_limits(limits=2, user_api="blas"):  # all tests have one
        before = threads()
        Run(made.valley(), Budget(trials=8), on_trial=lambda _progress: during.append(threads())).go()
        after = threads()
    assert before, "NumPy has a BLAS"
    assert during == [[1] * len(before)] * 8
    assert after == before


def test_a_trial_budget_is_kept():
    run = Run(made.valley(), Budget(trials=12)).go()
    assert (run.result.stopped_by, len(run.trials)) == ("trials", 12)
    assert [p.done for p in run.progress] == list(range(1, 13))
    assert all(
        p.best.evaluation.time_ms == min(t.evaluation.time_ms for t in run.trials[: p.done]) for p in run.progress
    )


def test_a_time_budget_is_kept_and_what_was_spent_before_counts():
    ticks = itertools.count()
    run = Run(made.valley(), Budget(seconds=100), clock=lambda: float(next(ticks))).go()
    assert run.result.stopped_by == "seconds"
    assert 5 < len(run.trials) < 60
    assert run.trials[-1].started_s <= 100
    later = itertools.count()
    resumed = Run(made.valley(), Budget(seconds=100, spent_s=90.0), clock=lambda: float(next(later))).go()
    assert 0 < len(resumed.trials) < len(run.trials) / 2


def test_the_target_ends_the_search_at_once():
    run = Run(made.valley(), Budget(trials=500, target_ms=1.25)).go()
    assert run.result.stopped_by == "target"
    assert run.trials[-1].evaluation.time_ms <= 1.25
    assert all(t.evaluation.time_ms > 1.25 for t in run.trials[:-1])


def test_cancelled_runs_no_finals():
    run = Run(made.valley(), Budget(trials=500), should_stop=lambda: len(run.progress) >= 7)
    run.go()
    assert (run.result.stopped_by, run.result.best, len(run.trials)) == ("cancelled", None, 7)
    assert len(run.bench.compiled) == 7
    assert run.result.slowest_ms is not None


def test_cancelled_in_the_finals_there_is_no_winner_either():
    asked = itertools.count()
    run = Run(made.valley(), Budget(trials=5), should_stop=lambda: next(asked) > 8).go()
    assert (run.result.stopped_by, run.result.best) == ("cancelled", None)
    assert len(run.trials) == 5


def test_a_resumed_study_repeats_nothing_and_counts_on():
    first = Run(made.valley(), Budget(trials=20)).go()
    known = first.trials[:13]
    second = Run(made.valley(), Budget(trials=30, spent_trials=13), trials=known).go()
    assert second.result.stopped_by == "trials"
    assert [t.number for t in second.trials] == list(range(13, 30))
    assert not {t.configuration for t in second.trials} & {t.configuration for t in known}
    assert second.result.default_ms == pytest.approx(first.result.default_ms, rel=0.01)


def test_a_finished_study_goes_straight_to_the_finals():
    first = Run(made.valley(), Budget(trials=64)).go()
    again = Run(made.valley(), Budget(trials=64, spent_trials=64), trials=first.trials).go()
    assert again.trials == []
    assert again.result.best.configuration == BEST


def test_prior_trials_of_other_jobs_do_not_burn_this_ones_budget():
    first = Run(made.valley(), Budget(trials=20)).go()
    second = Run(made.valley(), Budget(trials=10), trials=first.trials).go()
    assert (second.result.stopped_by, len(second.trials)) == ("trials", 10)


FAILURES = set(Outcome) - {Outcome.MEASURED, Outcome.DEVICE_LOST, Outcome.INTERRUPTED}
"""Those of a configuration: a few of the others running end a job."""


def test_a_space_that_only_fails_has_no_winner():
    outcomes = itertools.cycle(FAILURES)
    recording = made.valley()
    failing = made.of(
        {c: made.failed(next(outcomes)) for c in recording.entries},
        coarse=[("TILE", made.TILES), ("UNROLL", made.UNROLLS)],
        fine=[("TILE", made.TILES), ("UNROLL", made.UNROLLS)],
    )
    run = Run(failing, Budget(trials=500)).go()
    assert (run.result.stopped_by, run.result.best, run.result.finalists) == ("exhausted", None, ())
    assert (run.result.default_ms, run.result.slowest_ms) == (None, None)
    assert {t.evaluation.outcome for t in run.trials} == FAILURES


def test_an_empty_space_is_exhausted():
    run = Run(made.of({}, fine=[("TILE", (1, 2))]), Budget(trials=5)).go()
    assert (run.result.stopped_by, run.result.best, run.trials) == ("exhausted", None, [])


def test_a_leader_that_is_wrong_in_the_finals_is_dropped_for_the_next():
    recording = made.valley()
    bench = made.BenchWithLibrary(recording, library_ms=0.9, wrong_after={BEST: 1})
    run = Run(recording, Budget(trials=64), bench=bench).go()
    assert [d.configuration for d in run.result.dropped] == [BEST]
    assert run.result.best.time_ms == pytest.approx(1.2, rel=0.01)  # 20 % behind: no finalist until all others fell
    assert run.result.library.faster


def test_only_configurations_near_the_best_are_finalists():
    run = Run(made.valley(), Budget(trials=64)).go()
    default = run.kernel.default_configuration(run.space)
    assert [f.configuration for f in run.result.finalists] == [BEST, default]  # the next is 20 % behind


def test_a_broken_context_is_raised_after_its_trial_was_handed_out():
    recording = made.valley()
    run = Run(recording, Budget(trials=64), bench=made.BenchWithLibrary(recording, sticky=BEST))
    with pytest.raises(ContextLostError):
        run.tune()
    assert run.trials[-1].configuration == BEST
    assert run.trials[-1].evaluation.outcome is Outcome.LAUNCH_FAILED
    resumed = Run(recording, Budget(trials=64, spent_trials=len(run.trials)), trials=run.trials).go()
    assert len(resumed.trials) == 64 - len(run.trials)
    assert BEST not in {f.configuration for f in resumed.result.finalists}


def test_a_barred_configuration_is_no_finalist():
    run = Run(made.valley(), Budget(trials=64), barred=frozenset({BEST})).go()
    assert run.result.best.configuration != BEST


def test_a_device_lost_twice_running_ends_the_job():
    recording = made.valley()
    lost = made.of(
        {c: made.failed(Outcome.DEVICE_LOST, "fell off the bus") for c in recording.entries},
        fine=[("TILE", made.TILES), ("UNROLL", made.UNROLLS)],
    )
    run = Run(lost, Budget(trials=64))
    with pytest.raises(DeviceLostError, match="fell off the bus"):
        run.tune()
    assert len(run.trials) == 2


@pytest.mark.parametrize("limits", [{}, {"trials": 0}, {"seconds": -1.0}, {"trials": 5, "target_ms": 0.0}])
def test_a_budget_of_nothing_is_refused(limits):
    with pytest.raises(ValueError, match="budget"):
        Budget(**limits)


def test_the_replayed_kernel_can_be_limited_to_a_variant():
    recording = made.valley()
    kernel = replay_kernel(recording)
    device, _, problem = replay(recording)
    space = kernel.space(problem, device.model.limits, only=["coarse"])
    result = tune(device.bench(kernel, problem, 0), kernel, space, Budget(trials=100), seed=0)
    assert result.best.configuration.variant == "coarse"


class Sharing:
    """Trials of several searches, each of which hears of the others' at every step; threads take turns by chance."""

    def __init__(self):
        self.lock, self.trials, self.claimed = threading.Lock(), [], set()

    def search(self, name, seed, trials):
        recording, heard = made.valley(), 0
        device, _, problem = replay(recording)
        kernel = replay_kernel(recording)

        def others():
            nonlocal heard
            with self.lock:
                new, heard = self.trials[heard:], len(self.trials)
            return [trial for owner, trial in new if owner != name]

        def on_trial(progress):
            with self.lock:
                self.trials.append((name, progress.trial))

        def claim(configuration):
            with self.lock:
                is_free = configuration not in self.claimed
                self.claimed.add(configuration)
            return is_free

        bench, space = device.bench(kernel, problem, 0), kernel.space(problem, device.model.limits)
        hooks = Hooks(on_trial, others=others, claim=claim)
        return tune(bench, kernel, space, Budget(trials=trials), seed=seed, hooks=hooks)


def test_two_searches_of_one_study_never_repeat_each_other_and_agree():
    study = Sharing()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(study.search, ("a", "b"), (1, 2), (24, 24)))
    evaluated = [trial.configuration for _, trial in study.trials]
    assert len(evaluated) == 48 == len(set(evaluated))
    assert [result.best.configuration for result in found] == [BEST, BEST]


def test_trials_of_others_are_known_to_the_search_and_never_tried_again():
    study = Sharing()
    study.search("a", 1, 40)
    theirs = {trial.configuration for _, trial in study.trials}
    result = study.search("b", 2, 40)
    mine = [trial for owner, trial in study.trials if owner == "b"]
    assert len(mine) == 64 - 40
    assert result.stopped_by == "exhausted"
    assert not theirs & {trial.configuration for trial in mine}
    assert min(trial.number for trial in mine) == 40
    assert result.best.configuration == BEST


def test_of_one_configuration_the_slowest_is_as_fast_as_the_best():
    result = Run(made.valley(), Budget(trials=1)).go().result
    assert result.slowest_ms == result.best.time_ms
