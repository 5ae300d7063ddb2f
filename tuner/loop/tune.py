"""tune(): search one problem's space on one device within a budget, and settle the winner."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from threadpoolctl import threadpool_limits

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.errors import DeviceLostError, SurroundingsError, TunerError
from tilewright.tuner.loop.ahead import SHARE_OF_BUDGET, Proposals
from tilewright.tuner.loop.bench import Bench
from tilewright.tuner.loop.finals import DroppedFinalist, Finalist, FinalsResult, LibraryTime, finals
from tilewright.tuner.loop.measure import DEFAULT_PLAN, Clock, ContextLostError, MeasurementPlan
from tilewright.tuner.loop.study import (
    NO_HOOKS,
    NOTHING_KNOWN,
    Budget,
    Hooks,
    Knowledge,
    Progress,
    StoppedBy,
    Trial,
    TuneResult,
)
from tilewright.tuner.outcome import Evaluation, Outcome
from tilewright.tuner.search.samplers import make_searcher
from tilewright.tuner.search.searcher import SAMPLERS

MOST_STARTS = 16
"""The most of a caller's starts that are tried; SHARE_OF_BUDGET may allow fewer."""


def tune(
    bench: Bench,
    kernel: Kernel,
    space: SearchSpace,
    budget: Budget,
    *,
    seed: int,
    knowledge: Knowledge = NOTHING_KNOWN,
    hooks: Hooks = NO_HOOKS,
    sampler: str = SAMPLERS[0],
    plan: MeasurementPlan = DEFAULT_PLAN,
    clock: Clock = time.monotonic,
) -> TuneResult:
    """The settled winner of a search over `space` within `budget`.

    A trial that lost the device's process outside of a launch is made a second time, in a new one, and recorded once.
    Raises ContextLostError when a configuration broke the device's context (its trial was handed to `hooks.on_trial`
    first; go on in a new process), DeviceLostError when the device was lost in two trials running.
    """
    study = _Study(bench, kernel, space, budget, knowledge, hooks, plan=plan, clock=clock, sampler=sampler, seed=seed)
    try:
        # Matrices are small: sixteen threads that waited for each other, and for the compilers on their cores, held a
        # search on an H200's host to 11 trials a second instead of 25 to 38.
        with threadpool_limits(limits=1, user_api="blas"):
            stopped_by = study.search()
    finally:
        study.proposals.close()
    dropped: tuple[DroppedFinalist, ...] = ()
    while stopped_by != "cancelled":
        out = frozenset(finalist.configuration for finalist in dropped)
        default = study.default if study.default_ms is not None and study.default not in out else None
        leaders = study.leaders(out)
        standing = finals(bench, leaders, study.l2, plan, default=default, should_stop=hooks.should_stop)
        if standing is None:
            break
        dropped += standing.dropped
        fallen = {finalist.configuration for finalist in standing.dropped}
        if not leaders or not fallen.issuperset(leaders):  # else all leaders fell: the next ones stand in
            return study.result(replace(standing, dropped=dropped), stopped_by)
    return study.result(FinalsResult(dropped=dropped), "cancelled")


MOST_INTERRUPTED = 3
"""A job ends when the surroundings end so many trials running: others would end in the same way."""


@dataclass(frozen=True)
class _Running:
    """A trial that has been started; `wait` gives its evaluation."""

    configuration: Configuration
    begun: float
    wait: Callable[[], Evaluation]


class _Study:
    """The trials of one study, in memory, while a job adds to them."""

    def __init__(
        self,
        bench: Bench,
        kernel: Kernel,
        space: SearchSpace,
        budget: Budget,
        knowledge: Knowledge,
        hooks: Hooks,
        *,
        plan: MeasurementPlan,
        clock: Clock,
        sampler: str,
        seed: int,
    ) -> None:
        self.bench, self.space, self.budget, self.l2 = bench, space, budget, kernel.l2_of(space.problem)
        self.barred, self.hooks, self.plan, self.clock = knowledge.barred, hooks, plan, clock
        self.trials = [self._counted(trial) for trial in sorted(knowledge.trials, key=lambda trial: trial.number)]
        self.best: Trial | None = None  # the fastest measured trial
        for trial in self.trials:
            self._compare(trial)
        self.done = budget.spent_trials
        self.started = self.ended = 0.0  # of the search, of its last trial
        # The default first: gains are stated against it. What is asked for comes before the variants' own starts.
        first = kernel.first_configurations(space)
        self.default = first[0] if first else None
        first[1:1] = [*knowledge.asked, *self._untried(knowledge.starts)]
        known = [(trial.configuration, trial.evaluation) for trial in self.trials]
        searcher = make_searcher(sampler, space, first, seed, known, priors=knowledge.priors)
        self.proposals = Proposals(bench, searcher, budget.trials or float("inf"), hooks.claim)
        self.elsewhere: set[Configuration] = set()  # evaluated by others while this search went on
        self.interrupted = 0  # trials running
        self.before: Outcome | None = self.trials[-1].evaluation.outcome if self.trials else None

    def _untried(self, starts: Sequence[Configuration]) -> list[Configuration]:
        """The starts that are new here, as many as the budget allows."""
        tried = {trial.configuration for trial in self.trials}
        most = MOST_STARTS if self.budget.trials is None else min(MOST_STARTS, self.budget.trials // SHARE_OF_BUDGET)
        untried = [c for c in dict.fromkeys(starts) if c in self.space and c not in tried]
        return untried[: max(0, most - self.done)]

    @property
    def default_ms(self) -> float | None:
        """The time of the default configuration's trial."""
        return next((t.evaluation.time_ms for t in self.trials if t.configuration == self.default), None)

    def search(self) -> StoppedBy:
        """Runs trials until a limit, the target, the end of the space or a cancellation stops them; the reason."""
        self.started = self.clock() - self.budget.spent_s
        running: _Running | None = None
        while True:
            if running is not None and self.best is None:
                self._end(running)  # before another one begins: it would have nothing to be raced against
                running = None
            self._hear(self.hooks.others())
            started = self.done + (running is not None)
            stop = self._stopped_by(started)
            configuration = None
            if stop is None and len(self.space):
                left = float("inf") if self.budget.trials is None else self.budget.trials - started
                configuration = self.proposals.next(left, wait=running is None)
            # The device goes on with this one while the one before is told, stored and thought about.
            following = None
            if configuration is not None and configuration not in self.elsewhere:
                following = self._begin(configuration)
            if running is not None:
                self._end(running)
            elif configuration is None:
                return stop or "exhausted"
            running = following
            if running is not None and not self.bench.compilers:
                self._end(running)
                running = None

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
        """The result of the study: the finals, with the times that gains are stated against."""
        times = {t.configuration: t.evaluation.time_ms for t in self.trials if t.evaluation.time_ms is not None}
        times |= {one.configuration: one.time_ms for one in standing.finalists}  # timed beside the best
        return TuneResult(
            best=standing.finalists[0] if standing.finalists else None,
            finalists=standing.finalists,
            library=standing.library,
            default_ms=standing.default_ms or self.default_ms,
            slowest_ms=max(times.values(), default=None),
            stopped_by=stopped_by,
            dropped=standing.dropped,
            steadiness=standing.steadiness,
            library_failure=standing.library_failure,
        )

    def _stopped_by(self, started: int) -> StoppedBy | None:
        budget, best = self.budget, self.best
        if self.hooks.should_stop():
            return "cancelled"
        if budget.target_ms is not None and best is not None and _time_ms(best) <= budget.target_ms:
            return "target"
        if budget.trials is not None and started >= budget.trials:
            return "trials"
        if budget.seconds is not None and self.clock() - self.started >= budget.seconds:
            return "seconds"
        return None

    def _hear(self, trials: Iterable[Trial]) -> None:
        for trial in trials:
            if trial.configuration in self.space:
                self.elsewhere.add(trial.configuration)
                self._learn(trial)

    def _learn(self, trial: Trial) -> None:
        counted = self._counted(trial)
        self.trials.append(counted)
        self._compare(counted)
        self.proposals.tell(counted.configuration, counted.evaluation)

    def _compare(self, trial: Trial) -> None:
        if trial.evaluation.time_ms is not None and (self.best is None or _time_ms(trial) < _time_ms(self.best)):
            self.best = trial

    def _counted(self, trial: Trial) -> Trial:
        """The trial as it counts here: a barred one was found wrong later, so its time does not count."""
        evaluation = trial.evaluation
        if trial.configuration not in self.barred or evaluation.time_ms is None:
            return trial
        wrong = replace(evaluation, outcome=Outcome.WRONG_RESULT, warm=None, cold=None, log="barred from the finals")
        return replace(trial, evaluation=wrong)

    def _begin(self, configuration: Configuration) -> _Running:
        incumbent_ms = None if self.best is None else self.best.evaluation.time_ms
        arguments = (configuration, self.l2, self.plan, incumbent_ms)
        if self.bench.compilers:
            return _Running(configuration, self.clock(), self.bench.begin(*arguments))
        return _Running(configuration, self.clock(), partial(self.bench.evaluate, *arguments, clock=self.clock))

    def _end(self, running: _Running) -> None:
        configuration, begun = running.configuration, max(running.begun, self.ended)
        evaluation, broken = self._evaluation(running)
        if evaluation.outcome in {Outcome.DEVICE_LOST, Outcome.INTERRUPTED} and broken is None:
            # Its process was lost outside of a launch, or ended by the surroundings: the next call finds a new one.
            try:
                evaluation, broken = self._evaluation(self._begin(configuration))
            except DeviceLostError as error:
                broken = error  # which the trial is evidence of
        before, self.before = self.before, evaluation.outcome
        number = 1 + max((trial.number for trial in self.trials), default=-1)
        self.ended = self.clock()
        trial = Trial(number, configuration, evaluation, begun - self.started, self.ended - begun)
        self.done += 1
        self._learn(trial)
        self.hooks.on_trial(Progress(trial, self.best, self.done, self.budget))
        if evaluation.outcome is before is Outcome.DEVICE_LOST:
            raise DeviceLostError(evaluation.log) from broken
        self.interrupted = self.interrupted + 1 if evaluation.outcome is Outcome.INTERRUPTED else 0
        if self.interrupted == MOST_INTERRUPTED:
            reason = f"{MOST_INTERRUPTED} trials running were interrupted, each twice: {evaluation.log}"
            raise SurroundingsError(reason) from broken
        if broken is not None:
            raise broken

    def _evaluation(self, running: _Running) -> tuple[Evaluation, TunerError | None]:
        """The evaluation to record, and the error if the configuration broke the device."""
        try:
            return self._possible(running.wait()), None
        except ContextLostError as error:
            if error.evaluation is None:
                raise
            return error.evaluation, error

    def _possible(self, evaluation: Evaluation) -> Evaluation:
        """The evaluation; a time that no device can reach is evidence that not everything was computed."""
        reason = None if evaluation.time_ms is None else self.hooks.too_fast(evaluation.time_ms)
        if reason is None:
            return evaluation
        return replace(evaluation, outcome=Outcome.WRONG_RESULT, warm=None, cold=None, log=f"impossible: {reason}")


def _time_ms(trial: Trial) -> float:
    assert trial.evaluation.time_ms is not None  # noqa: S101 - asked of measured trials only
    return trial.evaluation.time_ms


__all__ = [
    "Budget",
    "DroppedFinalist",
    "Finalist",
    "Hooks",
    "Knowledge",
    "LibraryTime",
    "Progress",
    "Trial",
    "TuneResult",
    "tune",
]
