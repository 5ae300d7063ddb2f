"""The calls of the client, answered from this machine's database."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from tilewright.kernels.family import Family
from tilewright.service.operations import catalog, registry
from tilewright.service.operations.answers import (
    BestAnswer,
    Page,
    TrialAnswer,
)
from tilewright.service.operations.best import find as find_best
from tilewright.service.operations.best import results as results_calls
from tilewright.service.operations.best import retractions
from tilewright.service.operations.best.tables import TableAnswer, find_table
from tilewright.service.operations.best_cache.current_answers import ComputedAnswers
from tilewright.service.operations.claims import claims as claims_calls
from tilewright.service.operations.demand import demand as demand_calls
from tilewright.service.operations.demand.demand import TunedDemand
from tilewright.service.operations.fleet import fleet
from tilewright.service.operations.jobs import jobs as jobs_calls
from tilewright.service.operations.jobs import request as request_job
from tilewright.service.operations.requests import DemandJobs
from tilewright.service.operations.schedules import schedules as schedules_calls
from tilewright.service.operations.staleness import comparisons as staleness_comparisons
from tilewright.service.operations.studies import retries
from tilewright.service.operations.transaction import committed, transaction
from tilewright.service.operations.views import attention as attention_calls
from tilewright.service.operations.views.attention import AttentionFilter, AttentionPage


class LocalConnection:
    """The calls of `Client`, answered from the database of the settings, each in one transaction.

    Predictions are made before it.
    """

    request_job = staticmethod(committed(request_job.request_job))
    job = staticmethod(committed(jobs_calls.job))
    jobs = staticmethod(committed(jobs_calls.jobs))
    cancel_job = staticmethod(committed(jobs_calls.cancel_job))
    retry_trials = staticmethod(committed(retries.retry_trials))
    create_schedule = staticmethod(committed(schedules_calls.create_schedule))
    edit_schedule = staticmethod(committed(schedules_calls.edit_schedule))
    schedules = staticmethod(committed(schedules_calls.schedules))
    schedule = staticmethod(committed(schedules_calls.schedule))
    set_enabled = staticmethod(committed(schedules_calls.set_enabled))
    delete_schedule = staticmethod(committed(schedules_calls.delete_schedule))
    run_now = staticmethod(committed(schedules_calls.run_now))
    devices = staticmethod(committed(registry.devices))
    drain_device = staticmethod(committed(fleet.drain_device))
    resume_device = staticmethod(committed(fleet.resume_device))
    device_models = staticmethod(committed(registry.device_models))
    kernels = staticmethod(committed(catalog.kernels))
    kernel = staticmethod(committed(catalog.kernel))
    source = staticmethod(committed(catalog.source))
    results = staticmethod(committed(results_calls.results))
    retract = staticmethod(committed(retractions.retract))
    claims = staticmethod(committed(claims_calls.claims))
    claim = staticmethod(committed(claims_calls.claim_of))
    demand = staticmethod(committed(demand_calls.demand))
    tune_demand = staticmethod(committed(demand_calls.tune_top))
    comparisons = staticmethod(committed(staleness_comparisons.comparisons))

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

    def trials(self, job_id: UUID, *, limit: int = 100, cursor: str | None = None) -> Page[TrialAnswer]:
        """A page of a job's trials."""
        return committed(jobs_calls.trials)(job_id=job_id, limit=limit, cursor=cursor)

    def attention(self, chosen: AttentionFilter, *, limit: int = 50) -> AttentionPage:
        """The first page of what needs attention."""
        known = _requested(chosen)
        return committed(attention_calls.attention)(chosen, limit=limit, known=known)

    def tune_attention(self, request: DemandJobs, chosen: AttentionFilter, *, top: int) -> list[TunedDemand]:
        """Jobs for the most worthwhile problems of that page."""
        known = _requested(chosen)
        return committed(attention_calls.tune_attention)(request, chosen, top=top, known=known)


def _requested(chosen: AttentionFilter) -> ComputedAnswers:
    """Today's answers for the most requested problems."""
    with transaction() as session:
        asked = attention_calls.requested(session, chosen)
    return ComputedAnswers([(row.problem.single, row.device_model) for row in asked])
