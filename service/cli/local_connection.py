"""The calls of the client, answered from this machine's database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack
from uuid import UUID

from tilewright.kernels.family import Family
from tilewright.service.operations import catalog, registry
from tilewright.service.operations.answers import (
    BestAnswer,
    DeviceAnswer,
    DeviceModelAnswer,
    JobAnswer,
    KernelAnswer,
    Page,
    ScheduleAnswer,
    SourceAnswer,
    TrialAnswer,
)
from tilewright.service.operations.best import find as find_best
from tilewright.service.operations.best import results, retractions
from tilewright.service.operations.best.results import ResultAnswer, WhichResults
from tilewright.service.operations.best.tables import TableAnswer, find_table
from tilewright.service.operations.best_cache.current_answers import ComputedAnswers
from tilewright.service.operations.claims import claims
from tilewright.service.operations.claims.claims import ClaimAnswer
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.demand import DemandAnswer, TunedDemand
from tilewright.service.operations.fleet import fleet
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.jobs import request as request_job
from tilewright.service.operations.requests import DemandJobs, JobRequest, ScheduleChanges, ScheduleRequest
from tilewright.service.operations.schedules import schedules
from tilewright.service.operations.staleness import comparisons as staleness_comparisons
from tilewright.service.operations.staleness.comparisons import ComparisonAnswer
from tilewright.service.operations.studies import retries
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views import attention
from tilewright.service.operations.views.attention import AttentionFilter, AttentionPage


class LocalConnection:
    """The calls of `Client`, answered from the database of the settings, each in one transaction.

    What has to be predicted is predicted before it.
    """

    def best(
        self, kernel: str, device_model: str, shape: dict[str, int], dtype: str, options: dict[str, bool | str]
    ) -> BestAnswer:
        """The best known configuration."""
        return find_best.find_best(kernel, device_model, shape, dtype, options)

    def table(
        self,
        kernel: str,
        device_model: str | None,
        shape: Mapping[str, int | str],
        dtype: str = "float32",
        options: Mapping[str, bool | str] | None = None,
    ) -> TableAnswer:
        """The table of a family."""
        declared = catalog.kernel_named(kernel)
        family = Family.of(declared, shape, dtype, options)
        with transaction() as session:
            slug = device_model or registry.default_device_model(session)
            return find_table(session, declared, family, slug)

    def request_job(self, request: JobRequest) -> tuple[JobAnswer, bool]:
        """The job, and whether it is new."""
        with transaction() as session:
            return request_job.request_job(session, request)

    def job(self, job_id: UUID) -> JobAnswer:
        """The job as it stands."""
        with transaction() as session:
            return jobs.job(session, job_id)

    def jobs(self, *, state: str | None = None, limit: int = 50, cursor: str | None = None) -> Page[JobAnswer]:
        """A page of jobs, newest first."""
        with transaction() as session:
            return jobs.jobs(session, state=state, limit=limit, cursor=cursor)

    def cancel_job(self, job_id: UUID) -> JobAnswer:
        """The job after the request to stop."""
        with transaction() as session:
            return jobs.cancel_job(session, job_id)

    def retry_trials(self, job_id: UUID, trial: int | None = None) -> JobAnswer:
        """The job that tries the failed trials of that job's study again, or the one of that number."""
        with transaction() as session:
            return retries.retry_trials(session, job_id, trial)

    def trials(self, job_id: UUID, *, limit: int = 100, cursor: str | None = None) -> Page[TrialAnswer]:
        """A page of a job's trials."""
        with transaction() as session:
            return jobs.trials(session, job_id=job_id, limit=limit, cursor=cursor)

    def create_schedule(self, request: ScheduleRequest) -> ScheduleAnswer:
        """The schedule; sent again, the same one."""
        with transaction() as session:
            return schedules.create_schedule(session, request)

    def edit_schedule(self, schedule_id: int, changes: ScheduleChanges) -> ScheduleAnswer:
        """The schedule with those fields changed."""
        with transaction() as session:
            return schedules.edit_schedule(session, schedule_id, changes)

    def schedules(self) -> list[ScheduleAnswer]:
        """Every schedule, by name."""
        with transaction() as session:
            return schedules.schedules(session)

    def schedule(self, schedule_id: int) -> ScheduleAnswer:
        """One schedule."""
        with transaction() as session:
            return schedules.schedule(session, schedule_id)

    def set_enabled(self, schedule_id: int, enabled: bool) -> ScheduleAnswer:
        """The schedule paused or going on."""
        with transaction() as session:
            return schedules.set_enabled(session, schedule_id, enabled=enabled)

    def delete_schedule(self, schedule_id: int) -> None:
        """Removes the schedule."""
        with transaction() as session:
            schedules.delete_schedule(session, schedule_id)

    def run_now(self, schedule_id: int) -> list[JobAnswer]:
        """The jobs of a fire outside the due times."""
        with transaction() as session:
            return schedules.run_now(session, schedule_id)

    def devices(self) -> list[DeviceAnswer]:
        """Every registered device."""
        with transaction() as session:
            return registry.devices(session)

    def drain_device(self, uuid: str) -> DeviceAnswer:
        """The device, which takes no more jobs."""
        with transaction() as session:
            return fleet.drain_device(session, uuid)

    def resume_device(self, uuid: str) -> DeviceAnswer:
        """The device, which takes jobs again."""
        with transaction() as session:
            return fleet.resume_device(session, uuid)

    def device_models(self) -> list[DeviceModelAnswer]:
        """Every registered device model."""
        with transaction() as session:
            return registry.device_models(session)

    def kernels(self) -> list[KernelAnswer]:
        """Every kernel."""
        with transaction() as session:
            return catalog.kernels(session)

    def kernel(self, name: str) -> KernelAnswer:
        """One kernel's declaration."""
        with transaction() as session:
            return catalog.kernel(session, name)

    def source(self, kernel: str, variant: str | None) -> SourceAnswer:
        """A variant's source."""
        with transaction() as session:
            return catalog.source(session, kernel, variant)

    def results(self, **which: Unpack[WhichResults]) -> Page[ResultAnswer]:
        """The first page of results, newest first."""
        with transaction() as session:
            return results.results(session, **which)

    def retract(self, result_id: int, reason: str) -> ResultAnswer:
        """The retracted result."""
        with transaction() as session:
            return retractions.retract(session, result_id, reason)

    def claims(self, *, state: str | None = None, limit: int = 50, cursor: str | None = None) -> Page[ClaimAnswer]:
        """A page of claims, newest first."""
        with transaction() as session:
            return claims.claims(session, state=state, limit=limit, cursor=cursor)

    def claim(self, claim_id: int) -> ClaimAnswer:
        """One claim, and what came of it."""
        with transaction() as session:
            return claims.claim_of(session, claim_id)

    def demand(
        self, *, kernel: str | None = None, device_model: str | None = None, limit: int = 50
    ) -> Page[DemandAnswer]:
        """The first page of requested problems that are not tuned yet."""
        with transaction() as session:
            return demand.demand(session, kernel=kernel, device_model=device_model, limit=limit)

    def tune_demand(
        self, request: DemandJobs, *, top: int, kernel: str | None = None, device_model: str | None = None
    ) -> list[TunedDemand]:
        """The jobs for the most requested problems."""
        with transaction() as session:
            return demand.tune_top(session, request, top=top, kernel=kernel, device_model=device_model)

    def attention(self, chosen: AttentionFilter, *, limit: int = 50) -> AttentionPage:
        """The first page of what needs attention."""
        known = _requested(chosen)
        with transaction() as session:
            return attention.attention(session, chosen, limit=limit, known=known)

    def tune_attention(self, request: DemandJobs, chosen: AttentionFilter, *, top: int) -> list[TunedDemand]:
        """The jobs for the most worthwhile of it."""
        known = _requested(chosen)
        with transaction() as session:
            return attention.tune_attention(session, request, chosen, top=top, known=known)

    def comparisons(self, schedule_id: int, *, verdict: str | None = None, limit: int = 50) -> Page[ComparisonAnswer]:
        """The first page of a schedule's comparisons."""
        with transaction() as session:
            return staleness_comparisons.comparisons(session, schedule_id, verdict=verdict, limit=limit)


def _requested(chosen: AttentionFilter) -> ComputedAnswers:
    """How the most requested problems are answered now."""
    with transaction() as session:
        asked = attention.requested(session, chosen)
    return ComputedAnswers([(row.problem.single, row.device_model) for row in asked])
