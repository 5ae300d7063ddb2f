"""tune(): search one problem's space on one device within a budget, and settle the winner."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from threadpoolctl import threadpool_limits

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.ahead import SHARE_OF_BUDGET, Claim, Proposals
from tilewright.tuner.devices.device import Bench
from tilewright.tuner.errors import DeviceLostError, TunerError
from tilewright.tuner.finals import DroppedFinalist, Finalist, FinalsResult, LibraryTime, finals
from tilewright.tuner.measure import DEFAULT_PLAN, Clock, ContextLostError, MeasurementPlan
from tilewright.tuner.outcome import Evaluation, Outcome
from tilewright.tuner.search import SAMPLERS, Prior, make_searcher
from tilewright.tuner.study import Budget, Progress, StoppedBy, StudyState, Trial, TuneResult

OnTrial = Callable[[Progress], None]
ShouldStop = Callable[[], bool]
Trials = Iterable[Trial]
Others = Callable[[], Trials]

MOST_STARTS = 16
"""Of the starts that a caller names so many are tried, and no more than SHARE_OF_BUDGET allows to choose blindly."""


def tune(
    bench: Bench,
    kernel: Kernel,
    space: SearchSpace,
    budget: Budget,
    *,
    seed: int,
    prior: StudyState | None = None,
    on_trial: OnTrial = lambda _progress: None,
    should_stop: ShouldStop = lambda: False,
    sampler: str = SAMPLERS[0],
    plan: MeasurementPlan = DEFAULT_PLAN,
    clock: Clock = time.monotonic,
    already_done: int = 0,
    already_s: float = 0.0,
    barred: frozenset[Configuration] = frozenset(),
    priors: Sequence[Prior] = (),
    starts: Sequence[Configuration] = (),
    others: Others = lambda: (),
    claim: Claim = lambda _configuration: True,
) -> TuneResult:
    """The settled winner of a search over `space` within `budget`; `on_trial` hears of every trial as it ends.

    `prior` trials are known to the search and never evaluated again; new numbers follow theirs. Of the budget,
    `already_done` trials and `already_s` seconds are spent. `barred` configurations cannot become finalists;
    they count as tried, and their times for nothing: not for the target, not in the race, not in the search.
    `priors` are records made elsewhere. `starts` are tried right after the default, the first of them at least: what
    was best for other shapes. `others` gives the trials that devices of the same model have added to the
    study since it was last asked; it is asked before every proposal, and what it gives counts for nobody's budget.
    `claim` says whether a proposal is this search's to try; others may have it under way.
    A trial that lost the device's process outside of a launch is made a second time, in a new one, and recorded once.
    Raises ContextLostError when a configuration broke the device's context (its trial was handed to `on_trial`
    first; go on in a new process), DeviceLostError when the device was lost in two trials running.
    """
    study = _Study(
        bench,
        kernel,
        space,
        budget,
        prior=prior or StudyState(),
        sampler=sampler,
        seed=seed,
        plan=plan,
        clock=clock,
        already_done=already_done,
        priors=priors,
        starts=starts,
        claim=claim,
        barred=barred,
    )
    try:
        # Matrices are small: sixteen threads that waited for each other, and for the compilers on their cores, held a
        # search on an H200's host to 11 trials a second instead of 25 to 38.
        with threadpool_limits(limits=1, user_api="blas"):
            stopped_by = study.search(on_trial, should_stop, others, clock() - already_s)
    finally:
        study.proposals.close()
    dropped: tuple[DroppedFinalist, ...] = ()
    while stopped_by != "cancelled":
        out = frozenset(fallen.configuration for fallen in dropped)
        default = study.default if study.default_ms is not None and study.default not in out else None
        leaders = study.leaders(out)
        standing = finals(bench, leaders, kernel.ranking_l2, plan, default=default, should_stop=should_stop)
        if standing is None:
            break
        dropped += standing.dropped
        fallen = {one.configuration for one in standing.dropped}
        if not leaders or not fallen.issuperset(leaders):  # else all leaders fell: the next ones stand in
            return study.result(replace(standing, dropped=dropped), stopped_by)
    return study.result(FinalsResult(dropped=dropped), "cancelled")


class _Study:
    """The trials of one study, in memory, while a job adds to them."""

    def __init__(
        self,
        bench: Bench,
        kernel: Kernel,
        space: SearchSpace,
        budget: Budget,
        *,
        prior: StudyState,
        sampler: str,
        seed: int,
        plan: MeasurementPlan,
        clock: Clock,
        already_done: int,
        priors: Sequence[Prior],
        starts: Sequence[Configuration],
        claim: Claim,
        barred: frozenset[Configuration],
    ) -> None:
        self.bench, self.kernel, self.space, self.budget, self.plan, self.clock = (
            bench,
            kernel,
            space,
            budget,
            plan,
            clock,
        )
        self.barred = barred
        self.trials = [self._counted(trial) for trial in sorted(prior.trials, key=lambda trial: trial.number)]
        self.done = already_done
        # The default first: gains are stated against it. Then where each other variant's author would start.
        self.default = kernel.default_configuration(space) if len(space) else None
        named = self._untried(starts)
        first = [] if self.default is None else [self.default, *named, *space.defaults()]
        told = [(trial.configuration, trial.evaluation) for trial in self.trials]
        searcher = make_searcher(sampler, space, first, seed, told, priors=priors)
        self.proposals = Proposals(bench, searcher, budget.trials or float("inf"), claim)
        self.elsewhere: set[Configuration] = set()  # evaluated by others while this search went on
        self.before: Outcome | None = self.trials[-1].evaluation.outcome if self.trials else None

    def _untried(self, starts: Sequence[Configuration]) -> list[Configuration]:
        """Those of them that are tried first."""
        tried = {trial.configuration for trial in self.trials}
        most = MOST_STARTS if self.budget.trials is None else min(MOST_STARTS, self.budget.trials // SHARE_OF_BUDGET)
        untried = [c for c in dict.fromkeys(starts) if c in self.space and c not in tried]
        return untried[: max(0, most - self.done)]

    @property
    def best(self) -> Trial | None:
        """The fastest measured trial."""
        measured = [trial for trial in self.trials if trial.evaluation.time_ms is not None]
        return min(measured, key=_time_ms, default=None)

    @property
    def default_ms(self) -> float | None:
        """The time of the default configuration's trial."""
        return next((t.evaluation.time_ms for t in self.trials if t.configuration == self.default), None)

    def search(self, on_trial: OnTrial, should_stop: ShouldStop, others: Others, started: float) -> StoppedBy:
        """Runs trials until something says stop; what it was."""
        while True:
            self._hear(others())
            stop = self._spent(started, should_stop)
            if stop is not None:
                return stop
            left = float("inf") if self.budget.trials is None else self.budget.trials - self.done
            configuration = self.proposals.next(left) if len(self.space) else None
            if configuration is None:
                return "exhausted"
            if configuration not in self.elsewhere:
                self._run(configuration, on_trial, started)

    def leaders(self, out: frozenset[Configuration]) -> list[Configuration]:
        """The finalists-to-be: the fastest feasible trials, close enough to the fastest, one per configuration."""
        fit: dict[Configuration, float] = {}
        for trial in self.trials:
            if (
                trial.evaluation.time_ms is not None
                and trial.configuration not in out
                and trial.configuration in self.space
            ):
                fit[trial.configuration] = min(trial.evaluation.time_ms, fit.get(trial.configuration, float("inf")))
        ranked = sorted(fit, key=lambda configuration: fit[configuration])
        limit = (1 + self.plan.final_margin) * fit[ranked[0]] if ranked else 0.0
        return [configuration for configuration in ranked[: self.plan.finalists] if fit[configuration] <= limit]

    def result(self, standing: FinalsResult, stopped_by: StoppedBy) -> TuneResult:
        """The standing with what gains are stated against."""
        times = [trial.evaluation.time_ms for trial in self.trials if trial.evaluation.time_ms is not None]
        return TuneResult(
            best=standing.finalists[0] if standing.finalists else None,
            finalists=standing.finalists,
            library=standing.library,
            default_ms=standing.default_ms or self.default_ms,
            slowest_ms=max(times, default=None),
            stopped_by=stopped_by,
            dropped=standing.dropped,
            steadiness=standing.steadiness,
            library_failure=standing.library_failure,
        )

    def _spent(self, started: float, should_stop: ShouldStop) -> StoppedBy | None:
        budget, best = self.budget, self.best
        if should_stop():
            return "cancelled"
        if budget.target_ms is not None and best is not None and _time_ms(best) <= budget.target_ms:
            return "target"
        if budget.trials is not None and self.done >= budget.trials:
            return "trials"
        if budget.seconds is not None and self.clock() - started >= budget.seconds:
            return "seconds"
        return None

    def _hear(self, trials: Trials) -> None:
        for trial in trials:
            if trial.configuration in self.space:
                self.elsewhere.add(trial.configuration)
                self._learn(trial)

    def _learn(self, trial: Trial) -> None:
        counted = self._counted(trial)
        self.trials.append(counted)
        self.proposals.tell(counted.configuration, counted.evaluation)

    def _counted(self, trial: Trial) -> Trial:
        """As it counts here: what is barred was verified once and is wrong, so its time is nothing to be beaten."""
        evaluation = trial.evaluation
        if trial.configuration not in self.barred or evaluation.time_ms is None:
            return trial
        wrong = replace(evaluation, outcome=Outcome.WRONG_RESULT, warm=None, cold=None, log="barred from the finals")
        return replace(trial, evaluation=wrong)

    def _run(self, configuration: Configuration, on_trial: OnTrial, started: float) -> None:
        begun = self.clock()
        evaluation, broken = self._evaluate(configuration)
        if evaluation.outcome is Outcome.DEVICE_LOST and broken is None:
            # Its process was lost outside of a launch, mostly for want of memory: the next call finds a new one.
            try:
                evaluation, broken = self._evaluate(configuration)
            except DeviceLostError as error:
                broken = error  # which the trial is evidence of
        before, self.before = self.before, evaluation.outcome
        number = 1 + max((trial.number for trial in self.trials), default=-1)
        trial = Trial(number, configuration, evaluation, begun - started, self.clock() - begun)
        self.done += 1
        self._learn(trial)
        on_trial(Progress(trial, self.best, self.done, self.budget))
        if evaluation.outcome is before is Outcome.DEVICE_LOST:
            raise DeviceLostError(evaluation.log) from broken
        if broken is not None:
            raise broken

    def _evaluate(self, configuration: Configuration) -> tuple[Evaluation, TunerError | None]:
        """What to record, and what the configuration broke."""
        incumbent_ms = None if self.best is None else self.best.evaluation.time_ms
        try:
            ranking_l2 = self.kernel.ranking_l2
            return self.bench.evaluate(configuration, ranking_l2, self.plan, incumbent_ms, clock=self.clock), None
        except ContextLostError as error:
            if error.evaluation is None:
                raise
            return error.evaluation, error


def _time_ms(trial: Trial) -> float:
    assert trial.evaluation.time_ms is not None  # noqa: S101 - asked of measured trials only
    return trial.evaluation.time_ms


__all__ = [
    "Budget",
    "DroppedFinalist",
    "Finalist",
    "LibraryTime",
    "Progress",
    "StudyState",
    "Trial",
    "TuneResult",
    "tune",
]
