"""One study's trials as a T4 file or as a Kernel Tuner cache, piece by piece; milliseconds in both."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, defer, joinedload

from tilewright.kernels.kernel import Kernel
from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations.answers import ProblemAnswer
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.exchange.export import compact
from tilewright.service.operations.exchange.foreign import OWN
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.registry import problem_answer
from tilewright.service.operations.studies.rows import ranking_samples
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.recorded.recordings import INVALIDITY

PIECE = 500
"""How many trials one transaction reads."""

KERNEL_TUNER_WORDS = {
    Outcome.CONSTRAINT_VIOLATED: "InvalidConfig",
    Outcome.COMPILE_FAILED: "CompilationFailedConfig",
}
"""Kernel Tuner's word for an outcome; RuntimeFailedConfig for all other failures."""


@dataclass(frozen=True)
class _Exported:
    """The head of a file, before its rows."""

    study_id: int
    problem: ProblemAnswer
    device_model: str
    device_name: str
    sources: dict[str, str]
    samples_pruned: int  # trials whose single times were dropped: their median is the only time

    @property
    def own(self) -> dict[str, Any]:
        """Our own fields, which those formats do not have."""
        problem = self.problem.model_dump(mode="json")
        fields = {"problem": problem, "device_model": self.device_model, "sources": self.sources}
        return fields | ({"samples_pruned": self.samples_pruned} if self.samples_pruned else {})


def export_t4(study_id: int) -> Iterator[str]:
    """The study as a T4 file, in pieces; raises NotFoundError before the first."""
    with transaction() as session:
        exported = _exported(session, study_id)
    return _t4(exported)


def export_kernel_tuner(study_id: int, variant: str | None) -> Iterator[str]:
    """One variant's trials as a cache, in pieces; by default those of the variant with most.

    Raises NotFoundError for an unknown study or variant, before the first piece.
    """
    with transaction() as session:
        exported = _exported(session, study_id)
        chosen = variant or _most_tried(session, study_id)
    kernel = kernel_named(exported.problem.kernel)
    if chosen is None or chosen not in {v.name for v in kernel.variants}:
        raise NotFoundError("variant", str(chosen), [v.name for v in kernel.variants])
    if not kernel.variant(chosen).parameters:
        raise InvalidRequestError("variant", f"{chosen} has no parameters; a cache of it would be empty.")
    return _kernel_tuner(exported, kernel, chosen)


def _t4(exported: _Exported) -> Iterator[str]:
    metadata = {"timeunit": "milliseconds", OWN: exported.own}
    text = compact({"schema_version": "1.0.0", "metadata": metadata})[:-1] + ',"results":[\n'
    between = ""
    for piece in _pieces(exported, None):
        for row in piece:
            text += between + compact(_t4_row(row))
            between = ",\n"
        yield text
        text = ""
    yield text + "\n]}\n"


def _t4_row(row: models.Trial) -> dict[str, Any]:
    figures = (
        ("time", row.time_ms, "ms"),
        ("gflops", row.gflops, "GFLOP/s"),
        ("gb_per_s", row.gb_per_s, "GB/s"),
        ("registers", row.registers, ""),
        ("shared_bytes", row.shared_bytes, "B"),
        ("pack", row.pack_ms, "ms"),
        ("bound_ratio", row.bound_ratio, ""),
    )
    return {
        "timestamp": row.created_at.isoformat(),
        "configuration": row.configuration,
        "objectives": ["time"],
        "times": {"compilation": row.compile_ms or 0.0, "runtimes": ranking_samples(row)},
        "invalidity": INVALIDITY[row.outcome],
        "correctness": 1 if row.outcome is Outcome.MEASURED else 0,
        "measurements": [{"name": n, "value": v, "unit": unit} for n, v, unit in figures if v is not None],
    }


def _kernel_tuner(exported: _Exported, kernel: Kernel, variant: str) -> Iterator[str]:
    parameters = kernel.variant(variant).parameters
    names = [parameter.name for parameter in parameters]
    head = {
        "device_name": exported.device_name,
        "kernel_name": exported.problem.kernel,
        "problem_size": list(exported.problem.shape.values()),
        "tune_params_keys": names,
        "tune_params": {parameter.name: list(parameter.values) for parameter in parameters},
        "objective": "time",
        OWN: exported.own,
    }
    text = compact(head)[:-1] + ',"cache":{\n'
    between, seen = "", set()
    for piece in _pieces(exported, variant):
        for row in piece:
            key = ",".join(str(row.configuration.get(name)) for name in names)
            # A variant whose source changed has been tried twice; a cache has room for the newest.
            if key in seen or row.configuration.keys() - {"variant"} != set(names):
                continue
            seen.add(key)
            text += f"{between}{compact(key)}:{compact(_kernel_tuner_row(row, names))}"
            between = ",\n"
        yield text
        text = ""
    yield text + "\n}}\n"


def _kernel_tuner_row(row: models.Trial, names: list[str]) -> dict[str, Any]:
    samples_ms = ranking_samples(row)
    measured = row.outcome is Outcome.MEASURED
    return {name: row.configuration[name] for name in names} | {
        "time": statistics.fmean(samples_ms)
        if measured
        else KERNEL_TUNER_WORDS.get(row.outcome, "RuntimeFailedConfig"),
        "times": samples_ms,
        "compile_time": row.compile_ms or 0.0,
        "verification_time": 0.0,
        "benchmark_time": 1e3 * row.wall_s,
        "strategy_time": 0.0,
        "framework_time": 0.0,
        "timestamp": row.created_at.isoformat(),
    }


def _exported(session: Session, study_id: int) -> _Exported:
    study = models.Study
    row = None
    if 0 < study_id <= MAX_ROW_ID:
        related = (joinedload(study.problem).joinedload(models.Problem.kernel), joinedload(study.device_model))
        row = session.scalars(select(study).where(study.id == study_id).options(*related)).one_or_none()
    if row is None:
        raise NotFoundError("study", str(study_id))
    problem = problem_answer(row.problem)
    pruned = select(func.count()).where(models.Trial.study_id == row.id, models.Trial.samples_pruned_at.is_not(None))
    return _Exported(
        row.id,
        problem,
        row.device_model.slug,
        row.device_model.name,
        _sources(session, row.id),
        session.scalar(pruned) or 0,
    )


def _sources(session: Session, study_id: int) -> dict[str, str]:
    """The newest source hash of each variant that the study has tried."""
    table = models.KernelVariant
    tried = select(models.Trial.kernel_variant_id).where(models.Trial.study_id == study_id)
    rows = session.execute(select(table.name, table.source_hash).where(table.id.in_(tried)).order_by(table.id))
    return {name: source_hash for name, source_hash in rows}  # noqa: C416 - rows are no pairs to dict()


def _most_tried(session: Session, study_id: int) -> str | None:
    table = models.KernelVariant
    return session.scalar(
        select(table.name)
        .join(models.Trial, models.Trial.kernel_variant_id == table.id)
        .where(models.Trial.study_id == study_id)
        .group_by(table.name)
        .order_by(func.count().desc(), table.name)
        .limit(1)
    )


def _pieces(exported: _Exported, variant: str | None) -> Iterator[list[models.Trial]]:
    """The study's trials, newest first, each piece read in a transaction of its own."""
    table, before = models.Trial, MAX_ROW_ID
    while True:
        query = select(table).where(table.study_id == exported.study_id, table.number < before)
        if variant is not None:
            query = query.where(table.kernel_variant.has(models.KernelVariant.name == variant))
        with transaction() as session:
            piece = list(session.scalars(query.options(defer(table.log)).order_by(table.number.desc()).limit(PIECE)))
        if not piece:
            return
        yield piece
        before = piece[-1].number
