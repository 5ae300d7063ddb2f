"""The transaction that API, pages and command line open around operations, so that they need not import the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import event, insert
from sqlalchemy.orm import ORMExecuteState, Session

from tilewright.service.operations.caller import Acting, acting
from tilewright.service.store import models
from tilewright.service.store.session import refuse_in_transaction, session_scope

__all__ = ["Reading", "committed", "note_written", "refuse_in_transaction", "transaction"]

P = ParamSpec("P")
R = TypeVar("R")

Reading = Callable[[], AbstractContextManager[Session]]
"""Opens a short transaction for one read, so that what is computed from it is computed outside: `transaction`."""

UNRECORDED = frozenset({"asked_shelves", "audit_entries", "browser_sessions", "demand", "predictors"})
"""Tables that the record of changes leaves out."""

_CHANGED = "tilewright_changed"


@contextmanager
def transaction() -> Iterator[Session]:
    """A session that commits at the end of the block and rolls back on an error.

    Rows written for a caller (operations/caller.py) are recorded as a change in the same transaction.
    """
    who = acting()
    with session_scope() as session:
        if who is None:
            yield session
            return
        changed = _watch(session)
        yield session
        session.flush()
        if changed:
            session.execute(insert(models.AuditEntry.__table__).values(_entry(who, changed)))  # type: ignore[arg-type]


def committed(operation: Callable[Concatenate[Session, P], R]) -> Callable[P, R]:
    """The operation without its session argument: each call has its own transaction, committed before it returns."""

    @wraps(operation)
    def call(*args: P.args, **named: P.kwargs) -> R:
        with transaction() as session:
            return operation(session, *args, **named)

    return call


def note_written(session: Session, table: str) -> None:
    """Counts a row that was written by a SELECT with an INSERT inside, which `_watch` does not see."""
    changed = session.info.get(_CHANGED)
    if changed is not None:
        _count(changed, table)


def _entry(who: Acting, changed: Counter[str]) -> dict[str, Any]:
    caller = who.caller
    return {
        "actor": caller.name,
        "key_id": caller.key_id,
        "action": who.action,
        "request_id": who.request_id,
        "changed": dict(sorted(changed.items())),
    }


def _watch(session: Session) -> Counter[str]:
    """A counter, by table, of the rows and statements that the session writes from now on."""
    changed: Counter[str] = Counter()
    session.info[_CHANGED] = changed

    @event.listens_for(session, "after_flush")
    def flushed(session: Session, _context: Any) -> None:
        for row in (*session.new, *session.dirty, *session.deleted):
            _count(changed, row.__tablename__)

    @event.listens_for(session, "do_orm_execute")
    def executed(state: ORMExecuteState) -> None:
        if state.is_insert or state.is_update or state.is_delete:
            mapper = state.bind_mapper
            _count(changed, mapper.local_table.name if mapper is not None else "rows")  # type: ignore[attr-defined]

    return changed


def _count(changed: Counter[str], table: str) -> None:
    if table not in UNRECORDED:
        changed[table] += 1
