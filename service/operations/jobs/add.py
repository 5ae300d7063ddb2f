"""Adds an accepted job and its queue entry by one statement, or joins the open job that does the same work."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Select, Table, bindparam, select, text, true
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.errors import ConflictError
from tilewright.service.operations.answers import JobAnswer, TunedFor
from tilewright.service.operations.caller import acting, acting_project_id
from tilewright.service.operations.jobs.jobs import COLUMNS, answer_of, job
from tilewright.service.operations.jobs.turns import engine_priority, next_turn
from tilewright.service.operations.registry import problem_row, row_hash
from tilewright.service.operations.requests import JobRequest
from tilewright.service.operations.transaction import note_written
from tilewright.service.store import models
from tilewright.service.store.engine_queue import drop_entry, new_entry, queue_of_device, queue_of_model

_JOB: Table = models.TuningJob.__table__  # type: ignore[assignment]
_IS_OPEN = text("state IN ('queued', 'running') AND NOT cancel_requested")
"""The unique index's own condition, in constants: a prepared statement finds the index by them."""
_ASKED = (
    "id",
    "key_id",
    "project_id",
    "device_model_id",
    "device_id",
    "queue",
    "compiler",
    "sampler",
    "seed",
    "variants",
    "starts",
    "verifies",
    "budget_trials",
    "budget_seconds",
    "budget_target_ms",
    "priority",
    "coalesce_hash",
)


@dataclass(frozen=True)
class AcceptedRequest:
    """A request that has passed every check."""

    request: JobRequest
    kernel: Kernel
    asked: Problem | Family
    model: models.DeviceModel
    device: models.Device | None
    starts: tuple[Configuration, ...] = ()
    verifies: bool = False  # only the first start, without a search

    @property
    def problem(self) -> Problem:
        """The problem; a family's largest."""
        return self.asked.largest if isinstance(self.asked, Family) else self.asked

    @property
    def stated(self) -> dict[str, object]:
        """The problem of a job, as callers state and see it."""
        return self.asked.stated if isinstance(self.asked, Family) else self.asked.as_json()

    @property
    def queue(self) -> str:
        """The engine's queue for it."""
        return queue_of_device(self.device.uuid) if self.device else queue_of_model(self.model.slug)

    @property
    def coalesce_hash(self) -> str:
        """A hash that is equal for requests of the same work; the first of them sets the priority."""
        request = self.request
        work = [
            row_hash(self.asked),
            self.queue,
            sorted(request.variants) if request.variants else None,
            request.budget.model_dump(),
            "verifies" if self.verifies else [request.compiler, request.sampler, request.seed],
        ]
        return sha256([*work, [str(start) for start in self.starts]] if self.starts else work)


def sha256(value: object) -> str:
    """SHA-256 of the value's JSON, hexadecimal."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def join_or_add(session: Session, accepted: AcceptedRequest) -> tuple[JobAnswer, bool]:
    """The job and whether it is new; raises ConflictError where the job to join ends at that moment."""
    coalesce_hash = accepted.coalesce_hash
    values = _values(accepted, coalesce_hash)
    for _ in range(2):  # a problem may be new, and an open job may end before it is read
        row = session.execute(_adding(), values).one_or_none()
        if row is not None and row.id is not None:
            note_written(session, _JOB.name)
            return _answer(accepted, row), True
        if row is not None:  # its twin came first by a moment
            drop_entry(session, row.engine_id)
        open_id = open_job(session, coalesce_hash)
        if open_id is not None:
            return job(session, open_id), False
        problem_row(session, accepted.asked)
    raise ConflictError("An identical job is just ending; send the request again.")


def open_job(session: Session, coalesce_hash: str) -> uuid.UUID | None:
    """The open job of that work, if there is one."""
    return session.scalar(select(_JOB.c.id).where(_JOB.c.coalesce_hash == coalesce_hash, _IS_OPEN))


@cache
def _adding() -> Select[Any]:
    """The statement that adds entry and job; no row where the problem is new or an open job does the same work.

    The row is the job's, or has only an `engine_id` where such a job was committed meanwhile.
    """
    problem: Table = models.Problem.__table__  # type: ignore[assignment]
    asked = {name: bindparam(f"asked_{name}", type_=_JOB.c[name].type) for name in _ASKED}
    twin = select(_JOB.c.id).where(_JOB.c.coalesce_hash == asked["coalesce_hash"], _IS_OPEN)
    turns = next_turn(asked["device_model_id"], asked["key_id"], asked["project_id"]).cte("turns")
    entry_id = new_entry(asked["id"], asked["queue"], engine_priority(asked["priority"], turns.c.turn))
    entry = (
        select(problem.c.id.label("problem_id"), entry_id.label("engine_id"), turns.c.turn)
        .join(turns, true())
        .where(problem.c.hash == bindparam("problem_hash"), ~twin.exists())
        .cte("entry")
    )
    row = select(*asked.values(), entry.c.problem_id, entry.c.engine_id, entry.c.turn)
    added = (
        insert(_JOB)
        .from_select([*_ASKED, "problem_id", "engine_id", "turn"], row)
        .on_conflict_do_nothing()
        .returning(*(_JOB.c[name] for name in COLUMNS))
        .cte("added")
    )
    return select(entry.c.engine_id, *added.c).select_from(entry.outerjoin(added, true()))


def _values(accepted: AcceptedRequest, coalesce_hash: str) -> dict[str, Any]:
    request, who = accepted.request, acting()
    row = {
        "id": models.uuid7(),
        "key_id": who.caller.key_id if who else None,
        "project_id": acting_project_id(),
        "device_model_id": accepted.model.id,
        "device_id": accepted.device.id if accepted.device else None,
        "queue": accepted.queue,
        "compiler": request.compiler,
        "sampler": request.sampler,
        "seed": request.seed,
        "variants": request.variants,
        "starts": [start.as_json() for start in accepted.starts] or None,
        "verifies": accepted.verifies,
        "budget_trials": request.budget.trials,
        "budget_seconds": request.budget.seconds,
        "budget_target_ms": request.budget.target_ms,
        "priority": request.priority,
        "coalesce_hash": coalesce_hash,
    }
    return {f"asked_{name}": row[name] for name in _ASKED} | {"problem_hash": row_hash(accepted.asked)}


def _answer(accepted: AcceptedRequest, row: Any) -> JobAnswer:
    """The new job's answer, without reading the problem's and the device's rows."""
    answer = TunedFor.model_validate(accepted.stated)
    return answer_of(row, answer, accepted.model.slug, accepted.device, best_ms=None)
