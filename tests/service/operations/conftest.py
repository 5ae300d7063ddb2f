"""A registered device, and jobs taken as a worker takes them."""

from __future__ import annotations

import uuid

import pytest
from desk import ENVIRONMENT, LIMITS, MODEL, SHAPE, Desk, request
from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.kernels.catalogue import catalogue
from tilewright.service.operations import registry
from tilewright.service.operations.jobs import progress as job_progress
from tilewright.service.operations.jobs.record_trial import TrialContext
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import JobRequest
from tilewright.service.operations.studies import rows as study_rows
from tilewright.service.store import models


@pytest.fixture
def device(session: Session) -> models.Device:
    registry.register_kernels(session, catalogue())
    return registry.register_device(session, MODEL, "GPU-1", "host-a", 0, ENVIRONMENT)


@pytest.fixture
def take(session: Session, device: models.Device):
    """Takes a job (a new one unless named) as a worker would; the desk to work at."""

    def take(job_id: uuid.UUID | None = None, wanted: JobRequest | None = None) -> Desk:
        job_id = job_id or request_job(session, wanted or request())[0].id
        row = session.get_one(models.TuningJob, job_id, populate_existing=True)
        epoch = job_progress.take_job(session, job_id, row.engine_id, "worker-1")
        assert epoch is not None
        kernel = catalogue().get("gemm")
        problem = kernel.problem(SHAPE)
        space = kernel.space(problem, LIMITS, ["naive", "tiled"])
        environment_id = session.scalar(select(models.Environment.id))
        study = study_rows.study_row(session, row.problem_id, device.model_id, environment_id, space)
        job_progress.begin_study(session, job_id, epoch, study.id)
        ids = registry.kernel_variant_ids(session, kernel)
        context = TrialContext(job_id, epoch, study.id, device.id, kernel, problem, ids)
        return Desk(session, job_id, epoch, study, context, space.feasible)

    return take
