"""export_studies(): what was measured here as a `tilewright/1` document, piece by piece.

Each piece is read in a transaction of its own: a slow reader holds none open. A best that is replaced meanwhile is in
the document as it was when its piece was read. Imported results stay out, so that nothing comes back under another
name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session, defer, joinedload

import tilewright
from tilewright.service.operations.exchange.document import FORMAT, MAX_STUDIES, MAX_TRIALS, EnvironmentPart
from tilewright.service.operations.pages import cursor_of, row_id_of
from tilewright.service.operations.registry import device_model_of, problem_answer
from tilewright.service.operations.staleness.standing import is_current
from tilewright.service.operations.studies.rows import split_configuration
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models

PIECE = 100
"""Studies of one transaction; with all their trials fewer, see `_pieces`."""


@dataclass(frozen=True)
class ExportSelection:
    """The studies to export: those with a current best. `trials`: all their trials, not the best's alone."""

    kernel: str | None = None
    device_model: str | None = None
    trials: bool = False
    limit: int = MAX_STUDIES
    cursor: str | None = None


def export_studies(selection: ExportSelection) -> Iterator[str]:
    """The document in pieces; raises InvalidRequestError for an invalid cursor, before the first."""
    after = 0 if selection.cursor is None else row_id_of(selection.cursor)
    return _document(selection, after)


def compact(value: Any) -> str:
    """The value as JSON on one line."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def device_model_part(row: models.DeviceModel) -> dict[str, Any]:
    """The device model in the document's form."""
    part = asdict(device_model_of(row))
    part["limits"]["features"] = sorted(part["limits"]["features"])
    return part


def trial_part(row: models.Trial) -> dict[str, Any]:
    """The trial in the document's form, without what was not measured."""
    variant, values = split_configuration(row.configuration)
    fields = {
        "variant": variant,
        "configuration": values,
        "source_hash": row.kernel_variant.source_hash,
        "outcome": row.outcome.value,
        "l2": row.ranking_l2,
        "warm_ms": row.warm_ms,
        "warm_spread_ms": row.warm_spread_ms,
        "cold_ms": row.cold_ms,
        "cold_spread_ms": row.cold_spread_ms,
        "registers": row.registers,
        "shared_bytes": row.shared_bytes,
        "spill_bytes": row.spill_bytes,
        "occupancy": row.occupancy,
        "pack_ms": row.pack_ms,
        "bound_ratio": row.bound_ratio,
        "compile_ms": row.compile_ms,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _document(selection: ExportSelection, after: int) -> Iterator[str]:
    head = {
        "format": FORMAT,
        "made_by": f"tilewright {tilewright.__version__}",
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    text = compact(head)[:-1] + ',"studies":[\n'
    described: dict[str, dict[str, Any]] = {}
    left, between = selection.limit, ""
    while left > 0:
        studies, last = _piece(selection, after, min(PIECE, left), described)
        for study in studies:
            text += between + compact(study)
            between = ",\n"
        yield text
        text, left = "", left - len(studies)
        if last is None:
            break
        after = last
    else:
        # As many as were asked for: what follows is asked for by the cursor.
        last = after
    more = cursor_of(last) if last is not None and _has_more(selection, last) else None
    tables = [] if more else _tables(selection, described)
    listed = ',"tables":[\n' + ",\n".join(map(compact, tables)) + "\n]" if tables else ""
    yield f'{text}\n]{listed},"device_models":{compact(list(described.values()))},"next_cursor":{json.dumps(more)}}}\n'


def _piece(
    selection: ExportSelection, after: int, count: int, described: dict[str, dict[str, Any]]
) -> tuple[list[dict[str, Any]], int | None]:
    """The next studies, and the id to continue after; None at the end."""
    if selection.trials:
        count = 1
    with transaction() as session:
        rows = session.scalars(_query(selection, after).limit(count)).all()
        for row in rows:
            if row.device_model.slug not in described:
                described[row.device_model.slug] = device_model_part(row.device_model)
        studies = [_study(row, _trials(session, row) if selection.trials else [row.trial]) for row in rows]
    return studies, rows[-1].id if len(rows) == count else None


def _tables(selection: ExportSelection, described: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The current tables of families tuned here, the last part of a document."""
    table, problem = models.FamilyTable, models.Problem
    query = (
        select(table)
        .join(table.environment)
        .where(table.superseded_by_id.is_(None), models.Environment.origin.is_(None))
        .options(joinedload(table.device_model))
        .order_by(table.id)
        .limit(MAX_STUDIES)
    )
    if selection.kernel is not None:
        query = query.where(table.problem.has(problem.kernel.has(models.Kernel.name == selection.kernel)))
    if selection.device_model is not None:
        query = query.where(table.device_model.has(models.DeviceModel.slug == selection.device_model))
    with transaction() as session:
        rows = session.scalars(query).all()
        described |= {row.device_model.slug: device_model_part(row.device_model) for row in rows}
        return [row.document for row in rows]


def _has_more(selection: ExportSelection, after: int) -> bool:
    with transaction() as session:
        return session.scalars(_query(selection, after).limit(1)).first() is not None


def _query(selection: ExportSelection, after: int) -> Select[models.BestConfiguration]:
    best = models.BestConfiguration
    trial = joinedload(best.trial)
    query = (
        select(best)
        .join(best.environment)
        .where(
            best.id > after,
            is_current(),
            models.Environment.origin.is_(None),
        )
        .options(
            joinedload(best.problem).joinedload(models.Problem.kernel),
            joinedload(best.device_model),
            joinedload(best.environment),
            trial.joinedload(models.Trial.kernel_variant).defer(models.KernelVariant.source),
            trial.joinedload(models.Trial.study),
        )
        .order_by(best.id)
    )
    if selection.kernel is not None:
        query = query.where(best.problem.has(models.Problem.kernel.has(models.Kernel.name == selection.kernel)))
    if selection.device_model is not None:
        query = query.where(best.device_model.has(models.DeviceModel.slug == selection.device_model))
    return query


def _trials(session: Session, best: models.BestConfiguration) -> Sequence[models.Trial]:
    """The study's trials, the fastest first."""
    table = models.Trial
    return session.scalars(
        select(table)
        .where(table.study_id == best.trial.study_id)
        .options(
            joinedload(table.kernel_variant).defer(models.KernelVariant.source),
            defer(table.log),
            defer(table.warm_samples_ms),
            defer(table.cold_samples_ms),
        )
        .order_by(table.time_ms.asc().nulls_last(), table.number)
        .limit(MAX_TRIALS)
    ).all()


def _study(row: models.BestConfiguration, trials: Sequence[models.Trial]) -> dict[str, Any]:
    problem = problem_answer(row.problem)
    environment = {name: getattr(row.environment, name) for name in EnvironmentPart.model_fields}
    return {
        "problem": problem.model_dump(mode="json"),
        "device_model": row.device_model.slug,
        "environment": environment,
        "space_size": row.trial.study.space_size,
        "trials": [trial_part(trial) for trial in trials],
        "best": {
            "trial": next(place for place, trial in enumerate(trials) if trial.id == row.trial_id),
            "time_ms": row.time_ms,
            "ci_ms": [row.ci_low_ms, row.ci_high_ms],
            "default_ms": row.default_ms,
            "slowest_ms": row.slowest_ms,
            "library": _library(row),
            "ties": row.ties,
            "bound_ratio": row.bound_ratio,
            "verified_at": row.verified_at.isoformat(),
        },
    }


def _library(row: models.BestConfiguration) -> dict[str, Any] | None:
    if row.library_name is None or row.library_ms is None:
        return None
    return {
        "name": row.library_name,
        "time_ms": row.library_ms,
        "faster": bool(row.library_faster),
        "bound_ratio": row.library_bound_ratio,
    }
