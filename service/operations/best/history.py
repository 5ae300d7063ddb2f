"""The history of one problem's best: every settled winner, oldest first, superseded and retracted ones included."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from tilewright.kernels.problem import Problem
from tilewright.service.operations.answers import Answer, EnvironmentAnswer, Page
from tilewright.service.operations.registry import environment_answer
from tilewright.service.operations.staleness.comparisons import TimeInterval, compare
from tilewright.service.operations.studies.rows import split_configuration
from tilewright.service.store import models

MAX_ENTRIES = 500


class HistoryEntry(Answer):
    """One settled winner; what changed since the one before on the same device model, and whether it is faster."""

    result_id: int
    device_model: str
    environment: EnvironmentAnswer
    variant: str
    configuration: dict[str, int]
    source_hash: str
    time_ms: float
    ci_ms: tuple[float, float]
    gflops: float
    study_id: int
    trial_number: int
    verified_at: datetime
    stands: bool = Field(description="Neither superseded nor retracted.")
    retracted_reason: str | None
    changed: list[str] = Field(description="driver, toolkit, compiler, source, configuration: against the one before.")
    verdict: str | None = Field(description="better, same, worse than the one before; null for the first.")
    ratio: float | None = Field(description="Time over that of the one before; below 1 is faster.")


def history(session: Session, problem: Problem, *, device_model: str | None = None) -> Page[HistoryEntry]:
    """The newest MAX_ENTRIES winners of the problem, the oldest of them first."""
    best = models.BestConfiguration
    query = (
        select(best)
        .join(best.problem)
        .join(best.device_model)
        .where(models.Problem.hash == problem.hash)
        .options(
            joinedload(best.device_model),
            joinedload(best.environment),
            joinedload(best.trial).joinedload(models.Trial.kernel_variant),
        )
        .order_by(best.verified_at.desc(), best.id.desc())
        .limit(MAX_ENTRIES)
    )
    if device_model is not None:
        query = query.where(models.DeviceModel.slug == device_model)
    before: dict[int, models.BestConfiguration] = {}
    entries = []
    for row in reversed(session.scalars(query).all()):
        entries.append(_entry(row, before.get(row.device_model_id)))
        before[row.device_model_id] = row
    return Page(items=entries)


def _entry(row: models.BestConfiguration, before: models.BestConfiguration | None) -> HistoryEntry:
    variant, values = split_configuration(row.trial.configuration)
    verdict, ratio = None, None
    if before is not None:
        comparison, ratio, _ = compare(TimeInterval.of(before), TimeInterval.of(row))
        verdict = comparison.value
    return HistoryEntry(
        result_id=row.id,
        device_model=row.device_model.slug,
        environment=environment_answer(row.environment),
        variant=variant,
        configuration=values,
        source_hash=row.trial.kernel_variant.source_hash,
        time_ms=row.time_ms,
        ci_ms=(row.ci_low_ms, row.ci_high_ms),
        gflops=row.gflops,
        study_id=row.trial.study_id,
        trial_number=row.trial.number,
        verified_at=row.verified_at,
        stands=row.superseded_by_id is None and row.retracted_at is None,
        retracted_reason=row.retracted_reason,
        changed=_changed(row, before) if before is not None else [],
        verdict=verdict,
        ratio=ratio,
    )


def _changed(row: models.BestConfiguration, before: models.BestConfiguration) -> list[str]:
    now, then = row.environment, before.environment
    differs = {
        "driver": now.driver != then.driver,
        "toolkit": now.toolkit != then.toolkit,
        "compiler": (now.compiler, now.compiler_version) != (then.compiler, then.compiler_version),
        "source": row.trial.kernel_variant_id != before.trial.kernel_variant_id,
        "configuration": row.trial.configuration != before.trial.configuration,
    }
    return [name for name, is_different in differs.items() if is_different]
