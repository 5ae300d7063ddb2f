"""A job that verifies one configuration for claims: no search, no finals; every kind of inputs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

from sqlalchemy.orm import Session

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.publish import job_result
from tilewright.service.operations.claims.claims import claimed_source, settle_claims
from tilewright.service.operations.jobs import progress as job_progress
from tilewright.service.operations.jobs.record_trial import TrialContext, record_trial, storable
from tilewright.service.store import models
from tilewright.service.store.models import JobState
from tilewright.service.store.patience import patiently
from tilewright.service.worker.ending import Exit, Preparation, end
from tilewright.tuner.devices.device import Device
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop.finals import DroppedFinalist
from tilewright.tuner.loop.measure import ContextLostError
from tilewright.tuner.loop.study import Trial, TuneResult
from tilewright.tuner.loop.verify import verify_configuration
from tilewright.tuner.outcome import Evaluation, Outcome

WRONG = frozenset({Outcome.WRONG_RESULT, Outcome.LAUNCH_FAILED})
"""Outcomes that are the configuration's own; others say nothing of its results: a compiler or a device that failed."""


class Verified(Protocol):
    """The part of a `runner.Run` that a verification needs."""

    job: models.TuningJob
    kernel: Kernel
    problem: Problem
    epoch: int
    device: Device
    context: TrialContext
    preparation: Preparation

    @property
    def elapsed_s(self) -> float:
        """Seconds since this job began."""


def verify_claimed(run: Verified) -> Exit:
    """Verifies the job's first start, records the trial and settles the claims; the process's exit."""
    configuration = Configuration.from_json((run.job.starts or [])[0])
    source = patiently(lambda session: claimed_source(session, run.job.id))
    if source is None or not run.kernel.has_source(configuration.variant, source):
        return _fail(run, f"The source of {run.kernel.name}/{configuration.variant} has changed since the claim.")
    begun_s = time.monotonic()
    evaluation = _evaluation(run, configuration)
    if evaluation.outcome not in WRONG | {Outcome.MEASURED}:
        return _fail(run, f"{evaluation.outcome}: {evaluation.log}")
    is_wrong = evaluation.outcome in WRONG
    found = evaluation.log if is_wrong else "It is right with every kind of inputs."
    dropped = (DroppedFinalist(configuration, f"{evaluation.outcome}: {evaluation.log}"),) if is_wrong else ()
    result = job_result(TuneResult(None, (), None, None, None, "trials", dropped))
    trial = Trial(0, configuration, evaluation, 0.0, time.monotonic() - begun_s)

    def write(session: Session) -> None:
        record_trial(session, run.context, trial, 1, run.elapsed_s)
        job_progress.end_job(session, run.job.id, run.epoch, JobState.DONE, result=result)
        settle_claims(session, run.job.id, is_wrong=is_wrong, found=f"{found} (device {run.device.uuid})")

    end(run.job.id, run.epoch, write)
    return Exit.ENDED


def _evaluation(run: Verified, configuration: Configuration) -> Evaluation:
    """The trial of the configuration; wrong if it is wrong with any kind of inputs."""
    bench = run.device.bench(run.kernel, run.problem, run.job.seed)
    run.preparation.is_over()
    try:
        evaluation = bench.evaluate(configuration, run.kernel.l2_of(run.problem))
        if evaluation.outcome is not Outcome.MEASURED:
            return evaluation
        try:
            verification = verify_configuration(bench, bench.compile(configuration))
        except TrialFailure as failure:
            return replace(evaluation, outcome=failure.outcome, warm=None, cold=None, log=failure.log)
        if verification.is_right:
            return replace(evaluation, bound_ratio=verification.bound_ratio)
        wrong = replace(evaluation, outcome=Outcome.WRONG_RESULT, warm=None, cold=None, log=verification.message())
        return replace(wrong, bound_ratio=verification.bound_ratio)
    except ContextLostError as lost:
        return lost.evaluation or Evaluation(Outcome.LAUNCH_FAILED, log=str(lost))
    finally:
        bench.close()


def _fail(run: Verified, error: str) -> Exit:
    """Ends the job without an outcome; its claims stay unverified."""
    reason = storable(error)
    end(
        run.job.id,
        run.epoch,
        lambda session: job_progress.end_job(session, run.job.id, run.epoch, JobState.FAILED, error=reason),
    )
    return Exit.ENDED
