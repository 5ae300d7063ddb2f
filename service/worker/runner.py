"""The runner: the child process of one job, with the study loop and its writes."""

from __future__ import annotations

import logging
import signal
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from tilewright.kernels.catalogue import Catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.service import logs
from tilewright.service.device_lock import alone_on
from tilewright.service.errors import DatabaseUnavailableError, FencedError
from tilewright.service.operations import registry
from tilewright.service.operations.best import priors
from tilewright.service.operations.best.publish import job_result, publish_best
from tilewright.service.operations.jobs import progress as job_progress
from tilewright.service.operations.jobs.progress import BudgetSpent
from tilewright.service.operations.jobs.record_trial import TrialContext, record_trial, storable
from tilewright.service.operations.jobs.starts import nearest_feasible
from tilewright.service.operations.studies import rows as study_rows
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.models import JobState
from tilewright.service.store.patience import patiently
from tilewright.service.worker.ending import Exit, Preparation, die_with, end
from tilewright.service.worker.families import FamilyRun
from tilewright.service.worker.first_guess import first_guesses
from tilewright.service.worker.leases import Leases
from tilewright.service.worker.verification import verify_claimed
from tilewright.tuner import roofline
from tilewright.tuner.compile.compilation import Compiler, triton_version
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.host_memory import be_killed_first
from tilewright.tuner.devices.local import find_device, open_device
from tilewright.tuner.errors import DeviceLostError, NoDeviceError, TunerError
from tilewright.tuner.loop.finals import DroppedFinalist
from tilewright.tuner.loop.measure import ContextLostError
from tilewright.tuner.loop.tune import Budget, Hooks, Knowledge, Progress, Trial, TuneResult, tune
from tilewright.tuner.remains import adopt_orphans

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""How often the job's row is read for a request to stop, where no trial is written that would tell."""
OTHERS_EVERY_S = 0.25
"""How often trials that other devices of the model have added to the study are read."""


@dataclass(frozen=True)
class Assignment:
    """A job's row with its kernel, and the problem or the family that it tunes."""

    job: models.TuningJob
    kernel: Kernel
    asked: Problem | Family

    @classmethod
    def load(cls, session: Session, job_id: uuid.UUID) -> Assignment:
        """The assignment of that job."""
        row = session.scalars(
            select(models.TuningJob)
            .where(models.TuningJob.id == job_id)
            .options(joinedload(models.TuningJob.problem).joinedload(models.Problem.kernel))
        ).one()
        kernel = registry.catalogue().get(row.problem.kernel.name)
        return cls(row, kernel, registry.tuned_for(kernel, row.problem.shape, row.problem.dtype, row.problem.options))

    @property
    def compiler(self) -> Compiler | None:
        """The requested compiler, None for the device's own choice."""
        return {"nvrtc": "nvrtc", "pycuda": "pycuda"}.get(self.job.compiler or "")  # type: ignore[return-value]

    @property
    def budget(self) -> Budget:
        """The job's budget; one without a time limit gets the largest that a job may have."""
        seconds = self.job.budget_seconds or settings().max_seconds
        return Budget(self.job.budget_trials, seconds, self.job.budget_target_ms)


class Run:
    """One epoch of one job on one opened device."""

    def __init__(
        self,
        assignment: Assignment,
        problem: Problem,
        epoch: int,
        device: Device,
        stop: threading.Event,
        *,
        first: Sequence[Configuration],
        preparation: Preparation,
    ) -> None:
        self.job, self.kernel, self.problem = assignment.job, assignment.kernel, problem
        self.budget = assignment.budget
        self.epoch, self.device, self.stop = epoch, device, stop
        self.first, self.preparation = first, preparation
        self.cancelled = False
        self.dropped: list[DroppedFinalist] = []
        self._looked_s = self._others_read_s = time.monotonic()
        self._newest_of_others = -1  # the highest number among trials of others
        self.leases: Leases
        limits = device.model.limits
        self.space: SearchSpace = self.kernel.space(self.problem, limits, self.job.variants)
        self._whole = self.space if self.job.variants is None else self.kernel.space(self.problem, limits)
        self.study, self.context, spent = patiently(self._begin)
        logs.always(study=self.study.id, device=device.uuid)
        self.done, self.spent_s = spent.trials, spent.seconds

    def _begin(self, session: Session) -> tuple[models.Study, TrialContext, BudgetSpent]:
        model_id, device_id = session.execute(
            select(models.Device.model_id, models.Device.id).where(models.Device.uuid == self.device.uuid)
        ).one()
        environment = environment_of(session, self.job, self.kernel, self.device)
        study = study_rows.study_row(
            session, self.job.problem_id, model_id, environment.id, self._whole, kernel=self.kernel
        )
        spent = job_progress.begin_study(session, self.job.id, self.epoch, study.id)
        variant_ids = registry.kernel_variant_ids(session, self.kernel)
        context = TrialContext(self.job.id, self.epoch, study.id, device_id, self.kernel, self.problem, variant_ids)
        return study, context, spent

    @property
    def elapsed_s(self) -> float:
        """Seconds of this job in this study, over all epochs: of preparing and of measuring."""
        return self.spent_s + time.monotonic() - self.preparation.begun_s

    def search(self) -> TuneResult:
        """The result after the finals; goes on in a new process of the device when a configuration breaks one."""
        with Leases(self.study.id) as self.leases:
            return self._search()

    def _search(self) -> TuneResult:
        barred: set[Configuration] = set(patiently(lambda s: study_rows.barred(s, self.study.id)))
        too_fast = partial(roofline.too_fast, self.kernel, self.problem, self.device.model)
        hooks = Hooks(self._record, self._should_stop, self._others, self.leases.claim, too_fast)
        while True:
            trials = patiently(self._prior_trials)
            learnt = patiently(lambda s: priors.priors(s, self.kernel, self.problem, self.study))
            starts = patiently(lambda s: priors.winners(s, self.kernel, self.problem, self.study))
            asked = nearest_feasible(self.space, self.job.starts or ())
            knowledge = Knowledge(trials, frozenset(barred), learnt, [*self.first, *starts], asked)
            bench = self.device.bench(self.kernel, self.problem, self.job.seed)
            self.preparation.is_over()
            try:
                result = tune(
                    bench,
                    self.kernel,
                    self.space,
                    replace(self.budget, spent_trials=self.done, spent_s=self.elapsed_s),
                    seed=self.job.seed,
                    knowledge=knowledge,
                    hooks=hooks,
                    sampler=self.job.sampler,
                )
            except ContextLostError as lost:
                logger.warning("The device's context was lost by %s; going on in a new one.", lost)
                if lost.evaluation is None:
                    barred.add(lost.configuration)
                    self.dropped.append(DroppedFinalist(lost.configuration, "broke the device's context in the finals"))
            else:
                return replace(result, dropped=(*result.dropped, *self.dropped))
            finally:
                bench.close()

    def _prior_trials(self, session: Session) -> list[Trial]:
        """The study's trials of the job's variants, ranked in the same state of the L2 cache.

        Others neither reach its target nor count as its incumbent.
        """
        trials = study_rows.prior_trials(session, self.study.id, self.kernel)
        self._newest_of_others = max((trial.number for trial in trials), default=-1)
        l2 = self.kernel.l2_of(self.problem)
        return [t for t in trials if t.configuration in self.space and t.evaluation.ranking_l2 == l2]

    def _others(self) -> list[Trial]:
        """Trials that other devices have added; called before each trial."""
        if time.monotonic() - self._others_read_s < OTHERS_EVERY_S:
            return []
        newest = self._newest_of_others
        trials = patiently(lambda s: study_rows.trials_of_others(s, self.study.id, self.kernel, self.job.id, newest))
        self._newest_of_others = max([newest, *(trial.number for trial in trials)])
        self._others_read_s = time.monotonic()
        return trials

    def settle(self, result: TuneResult) -> Exit:
        """Records the result and ends the job; the process's exit."""
        if result.stopped_by == "cancelled" and not self.cancelled:
            return Exit.STOPPED
        state = JobState.CANCELLED if result.stopped_by == "cancelled" else JobState.DONE

        def write(session: Session) -> None:
            job_row_result = job_result(result)
            error = None
            if state is JobState.DONE:
                error = study_rows.why_nothing_was_right(session, self.job.id) if result.best is None else None
                job = session.get_one(models.TuningJob, self.job.id)
                best = publish_best(session, job, session.get_one(models.Study, self.study.id), result)
                job_row_result["published"] = best is not None
            job_row_result["left_studies"] = study_rows.left_studies(session, self.job.id, self.study.id)
            ended = JobState.FAILED if error else state
            job_progress.end_job(session, self.job.id, self.epoch, ended, result=job_row_result, error=error)

        end(self.job.id, self.epoch, write)
        return Exit.ENDED

    def _record(self, progress: Progress) -> None:
        recorded = patiently(lambda s: record_trial(s, self.context, progress.trial, progress.done, self.elapsed_s))
        self.leases.release(progress.trial.configuration)
        self.done = progress.done
        self.cancelled = self.cancelled or recorded.cancel_requested
        self._looked_s = time.monotonic()
        if self.budget.trials is not None and progress.done >= self.budget.trials:
            patiently(lambda s: job_progress.set_phase(s, self.job.id, self.epoch, "finals"))

    def _should_stop(self) -> bool:
        if time.monotonic() - self._looked_s > LOOK_EVERY_S:
            row = patiently(lambda s: s.get_one(models.TuningJob, self.job.id))
            if row.epoch != self.epoch:
                raise FencedError(f"Job {self.job.id} is no longer this worker's (epoch {self.epoch}).")
            self.cancelled = row.cancel_requested
            self._looked_s = time.monotonic()
        return self.cancelled or self.stop.is_set()


def environment_of(session: Session, job: models.TuningJob, kernel: Kernel, device: Device) -> models.Environment:
    """The row of the environment that the job measures in; the kernel is registered as it is here."""
    registry.register_kernels(session, Catalogue({kernel.name: kernel}))
    environment = registry.environment_row(session, device.environment)
    if job.compiler is None:  # a compiler replaced under a running worker: the device's own has moved on
        registry.set_environment(session, device.uuid, environment)
    if kernel.is_triton:  # it is not the device's compiler that these results depend on
        environment = registry.environment_row(session, device.environment.with_triton(triton_version()))
    return environment


def run(job_id: uuid.UUID, epoch: int, device_name: str, stop: threading.Event) -> Exit:
    """Runs the job; the process's exit."""
    assignment = patiently(lambda session: Assignment.load(session, job_id))
    job, kernel, asked = assignment.job, assignment.kernel, assignment.asked
    try:
        entry = find_device(device_name)
        guesses = first_guesses(job, kernel, asked, entry.uuid)
        with (
            alone_on(entry),
            Preparation(job, epoch) as preparation,
            closing(open_device(device_name, assignment.compiler)) as device,
        ):
            first = [start for guess in guesses for start in guess.starts()]
            if isinstance(asked, Family):
                environment_id = patiently(lambda session: environment_of(session, job, kernel, device).id)
                return FamilyRun(job, kernel, asked, epoch, device, stop).settle(environment_id, preparation, first)
            job_run = Run(assignment, asked, epoch, device, stop, first=first, preparation=preparation)
            if job.verifies:
                return verify_claimed(job_run)
            return job_run.settle(job_run.search())
    except (DeviceLostError, NoDeviceError) as lost:  # the worker had it, so it has failed since
        logger.error("%s", lost)  # noqa: TRY400 - expected: the sentence says it all
        return Exit.DEVICE_LOST
    except TunerError as error:
        # Out of memory, no compiler, no device: another try would fail in the same way.
        reason = storable(str(error))
        end(job_id, epoch, lambda s: job_progress.end_job(s, job_id, epoch, JobState.FAILED, error=reason))
        return Exit.ENDED


def main(arguments: list[str]) -> int:
    """The process: ends with its worker, stops after the running trial on SIGTERM."""
    job_id, epoch, device_name, parent_pid = arguments
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the worker decides
    die_with(int(parent_pid))
    adopt_orphans()
    be_killed_first()
    logs.configure()
    logs.always(job=job_id, device=device_name)
    try:
        return run(uuid.UUID(job_id), int(epoch), device_name, stop)
    except FencedError as fenced:
        logger.warning("%s", fenced)
        return Exit.FENCED
    except DatabaseUnavailableError as away:
        logger.error("%s", away)  # noqa: TRY400 - expected: the sentence says it all
        return Exit.NO_DATABASE
