"""A registered device model without a device behind it, and jobs taken as a worker takes them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sqlalchemy.orm import Session

from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.service.operations.jobs.record_trial import RecordedTrial, TrialContext, record_trial
from tilewright.service.operations.requests import BudgetRequest, JobRequest
from tilewright.service.store import models
from tilewright.tuner.devices.device import DeviceModel, Environment
from tilewright.tuner.loop.tune import Trial
from tilewright.tuner.outcome import Evaluation, Outcome, Timing

LIMITS = Limits(compute_capability=(9, 0), multiprocessors=132, memory_bytes=1 << 30)
MODEL = DeviceModel("test-gpu", "Test GPU", "cuda", LIMITS, 50 << 20, {"float32": 60_000.0}, 4000.0)
ENVIRONMENT = Environment("580.1", "13.0", "nvrtc", "13.0.88", "PyCUDA 2026.1", "default")
SHAPE = {"m": 64, "n": 48, "k": 80}


def request(trials: int = 10, **more) -> JobRequest:
    return JobRequest(**{"kernel": "gemm", "shape": SHAPE, "budget": BudgetRequest(trials=trials)} | more)


def measured(time_ms: float, **more) -> Evaluation:
    return Evaluation(Outcome.MEASURED, warm=Timing(time_ms, time_ms / 50, (time_ms,) * 3, "warm"), **more)


@dataclass
class Desk:
    """One taken job, and a hand to write its trials with."""

    session: Session
    job_id: uuid.UUID
    epoch: int
    study: models.Study
    context: TrialContext
    configurations: tuple[Configuration, ...]

    def record(self, place: int, evaluation: Evaluation, done: int | None = None) -> RecordedTrial:
        trial = Trial(place, self.configurations[place], evaluation, 0.5 * place, 0.5)
        return record_trial(self.session, self.context, trial, place + 1 if done is None else done, 0.5 * place + 0.5)

    @property
    def row(self) -> models.TuningJob:
        return self.session.get_one(models.TuningJob, self.job_id, populate_existing=True)
