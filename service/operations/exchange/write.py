"""Writes an import's additions: many studies with few statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, insert, select, tuple_, update
from sqlalchemy.orm import Session

from tilewright.service.operations.exchange.document import BestPart
from tilewright.service.operations.exchange.rows import CurrentBest, NewTrial, Source, StudyKey
from tilewright.service.store import models
from tilewright.service.store.models import JobState

QUEUE = "import"
"""The queue of jobs that stand for imports; no worker reads it."""


@dataclass(frozen=True)
class NewBest:
    """A best configuration to add; `trial` exists already or is among the new ones."""

    part: BestPart
    trial: NewTrial
    figures: Mapping[str, float | None]
    standing: CurrentBest | None  # whose place it takes


@dataclass(frozen=True)
class Addition:
    """The rows that one study gets: trials from the number `first` on, and a best. `variant_ids` name the sources that
    the trials were measured with. `work`: FLOPs and bytes of one launch.
    """

    key: StudyKey
    study_id: int
    first: int
    trials: Sequence[NewTrial]
    best: NewBest | None
    variant_ids: Mapping[Source, int]
    work: tuple[int | None, int | None]
    result: Mapping[str, Any]


def write(session: Session, additions: Sequence[Addition]) -> None:
    """Adds it all; a finished job for each study stands for the import."""
    if not additions:
        return
    job_ids = [models.uuid7() for _ in additions]
    session.execute(
        insert(models.TuningJob), [_job(addition, job_id) for addition, job_id in zip(additions, job_ids, strict=True)]
    )
    trials = [
        _trial(trial, addition, place) | {"job_id": job_id}
        for addition, job_id in zip(additions, job_ids, strict=True)
        for place, trial in enumerate(addition.trials)
    ]
    if trials:
        session.execute(insert(models.Trial), trials)
    session.execute(
        update(models.Study),
        [{"id": addition.study_id, "next_number": addition.first + len(addition.trials)} for addition in additions],
    )
    with_best = [
        (addition, addition.best, job_id) for addition, job_id in zip(additions, job_ids, strict=True) if addition.best
    ]
    if with_best:
        _add_bests(session, with_best)


def job_result(best: NewBest | None) -> dict[str, Any]:
    """The imported best as a job's result, in the form of one that was measured here."""
    result: dict[str, Any] = {"stopped_by": "import", "finalists": [], "dropped": [], "ties": 0, "library": None}
    if best is None:
        absent = ("best", "default_ms", "slowest_ms", "gain_over_default", "gain_over_slowest")
        return result | dict.fromkeys(absent)
    part, library = best.part, best.part.library
    configuration = best.trial.configuration.as_json()
    return result | {
        "best": {"configuration": configuration, "time_ms": part.time_ms, "ci_ms": list(part.ci_ms)},
        "default_ms": part.default_ms,
        "slowest_ms": part.slowest_ms,
        "gain_over_default": part.default_ms and part.default_ms / part.time_ms,
        "gain_over_slowest": part.slowest_ms and part.slowest_ms / part.time_ms,
        "library": library and library.model_dump() | {"speedup": library.time_ms / part.time_ms},
        "ties": part.ties,
    }


def _add_bests(session: Session, wanted: Sequence[tuple[Addition, NewBest, Any]]) -> None:
    count = func.generate_series(1, len(wanted)).table_valued("place")
    ids = session.scalars(select(func.nextval("best_configurations_id_seq")).select_from(count)).all()
    replaced = [
        {"id": best.standing.id, "superseded_by_id": best_id}
        for (_, best, _), best_id in zip(wanted, ids, strict=True)
        if best.standing is not None
    ]
    if replaced:  # old rows leave the index of current ones before the new ones enter
        session.execute(update(models.BestConfiguration), replaced)
    table = models.Trial
    named = [(addition.study_id, best.trial.hash) for addition, best, _ in wanted]
    rows = session.execute(
        select(table.study_id, table.id).where(tuple_(table.study_id, table.configuration_hash).in_(named))
    )
    trial_ids = {study_id: trial_id for study_id, trial_id in rows}  # noqa: C416 - rows are no pairs to dict()
    session.execute(
        insert(models.BestConfiguration),
        [
            _best(addition, best) | {"id": best_id, "job_id": job_id, "trial_id": trial_ids[addition.study_id]}
            for (addition, best, job_id), best_id in zip(wanted, ids, strict=True)
        ],
    )


def _job(addition: Addition, job_id: Any) -> dict[str, Any]:
    count, now = len(addition.trials), datetime.now(UTC)
    return {
        "id": job_id,
        "problem_id": addition.key[0],
        "device_model_id": addition.key[1],
        "study_id": addition.study_id,
        "queue": QUEUE,
        "sampler": QUEUE,
        "budget_trials": max(1, count),
        "state": JobState.DONE,
        "phase": "finished",
        "trials_done": count,
        "revision": count,
        "result": dict(addition.result),
        "started_at": now,
        "finished_at": now,
    }


def _trial(trial: NewTrial, addition: Addition, place: int) -> dict[str, Any]:
    part, (flops, bytes_moved) = trial.part, addition.work
    same = part.model_dump(exclude={"variant", "configuration", "source_hash", "l2"})
    return same | {
        "study_id": addition.study_id,
        "number": addition.first + place,
        "job_revision": place + 1,
        "epoch": 0,
        "kernel_variant_id": addition.variant_ids[trial.source],
        "configuration": trial.configuration.as_json(),
        "configuration_hash": trial.hash,
        "ranking_l2": part.l2,
        "time_ms": part.time_ms,
        "gflops": None if part.time_ms is None or flops is None else flops / part.time_ms / 1e6,
        "gb_per_s": None if part.time_ms is None or bytes_moved is None else bytes_moved / part.time_ms / 1e6,
    }


def _best(addition: Addition, best: NewBest) -> dict[str, Any]:
    part, library = best.part, best.part.library
    return {
        "problem_id": addition.key[0],
        "device_model_id": addition.key[1],
        "environment_id": addition.key[2],
        "time_ms": part.time_ms,
        "ci_low_ms": part.ci_ms[0],
        "ci_high_ms": part.ci_ms[1],
        "l2": best.trial.part.l2,
        "default_ms": part.default_ms,
        "slowest_ms": part.slowest_ms,
        "library_name": library.name if library else None,
        "library_ms": library.time_ms if library else None,
        "library_faster": library.faster if library else None,
        "library_bound_ratio": library.bound_ratio if library else None,
        "ties": part.ties,
        "bound_ratio": part.bound_ratio,
        "verified_at": part.verified_at,
        **best.figures,
    }
