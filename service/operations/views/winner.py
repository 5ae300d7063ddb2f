"""The surroundings of a study's winner: the finals, its own trial, and the trials one step away from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from tilewright.service.operations.answers import TrialAnswer
from tilewright.service.operations.best.results import ResultAnswer
from tilewright.service.operations.jobs.jobs import trial_answer
from tilewright.service.store import models


@dataclass(frozen=True)
class Step:
    """One parameter of the winner, changed to the nearest value that was tried below or above, all others alike.

    `time_ms` is None where that trial was not measured.
    """

    parameter: str
    value: int
    number: int
    time_ms: float | None


@dataclass(frozen=True)
class Winner:
    """A study's settled winner: its trial, the finalists of its job as stored, and its neighbours."""

    trial: TrialAnswer
    finalists: Sequence[dict[str, Any]]
    steps: Sequence[Step]


def winner(session: Session, result: ResultAnswer) -> Winner:
    """The finals, the trial and the neighbours of this result of a study."""
    best, trial, job = models.BestConfiguration, models.Trial, models.TuningJob
    own, finals = session.execute(
        select(trial, job.result)
        .join(best, best.trial_id == trial.id)
        .join(job, job.id == best.job_id)
        .where(best.id == result.id)
    ).one()
    finalists = (finals or {}).get("finalists") or []
    return Winner(trial_answer(own), finalists, _steps(session, own))


def _steps(session: Session, own: models.Trial) -> list[Step]:
    """The nearest tried values of each parameter, below and above the winner's."""
    trial, values = models.Trial, own.configuration
    names = [name for name in values if name != "variant"]
    others = {name: {key: value for key, value in values.items() if key != name} for name in names}
    if not names:
        return []
    alike = or_(*(trial.configuration.op("-")(name) == rest for name, rest in others.items()))
    query = select(trial.number, trial.configuration, trial.time_ms)
    rows = session.execute(query.where(trial.study_id == own.study_id, alike, trial.id != own.id)).all()
    found: list[Step] = []
    for name in sorted(names):
        changed = [row for row in rows if row.configuration.get(name) != values[name] and name in row.configuration]
        below = [row for row in changed if row.configuration[name] < values[name]]
        above = [row for row in changed if row.configuration[name] > values[name]]
        near = [max(below, key=lambda row: row.configuration[name])] if below else []
        near += [min(above, key=lambda row: row.configuration[name])] if above else []
        found += [Step(name, row.configuration[name], row.number, row.time_ms) for row in near]
    return found
