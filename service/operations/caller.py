"""The caller of the present request or command: what it may do, and the name that its changes are recorded under."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

DEFAULT_PROJECT_ID = 1
"""Id of the project `default`, which migration 0026 creates; what is made without a key belongs to it."""


class Scope(StrEnum):
    """The rights of a key; each scope includes those before it."""

    READ = "read"
    TUNE = "tune"  # jobs, schedules, claims, retractions of its own results
    ADMIN = "admin"  # keys, imports, webhooks, draining

    def allows(self, needed: Scope) -> bool:
        """Whether this scope includes the needed one."""
        order = list(Scope)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True)
class Ceilings:
    """The largest jobs that a caller may request; None: what the settings allow."""

    max_trials: int | None = None
    max_seconds: float | None = None
    max_open_jobs: int | None = None


@dataclass(frozen=True)
class Caller:
    """The sender of a request. `key_id` and `key_name` are None on this machine, where no key is needed.

    Jobs and schedules belong to the key's name, so that a rotated key keeps them.
    """

    name: str
    scope: Scope
    key_id: UUID | None = None
    ceilings: Ceilings = Ceilings()
    key_name: str | None = None
    project_id: int | None = None  # of the key

    @property
    def is_stranger(self) -> bool:
        """Whether the caller is on another machine and shows no key."""
        return self.key_id is None and self.scope is not Scope.ADMIN


@dataclass(frozen=True)
class Acting:
    """A caller, and the action and request id that its changes are recorded with."""

    caller: Caller
    action: str
    request_id: str | None = None


THIS_MACHINE = Caller("this machine", Scope.ADMIN)
COMMAND_LINE = Caller("command line", Scope.ADMIN)

_current: ContextVar[Acting | None] = ContextVar("tilewright_acting", default=None)


def acting() -> Acting | None:
    """The present caller; None outside requests and commands, as in workers and chores."""
    return _current.get()


def acting_project_id() -> int:
    """The project for what the present caller makes: its key's, else the default one."""
    present = _current.get()
    return (present and present.caller.project_id) or DEFAULT_PROJECT_ID


def author() -> str:
    """The name of the present caller, to write beside what it adds."""
    return (_current.get() or Acting(COMMAND_LINE, "")).caller.name


def ceilings() -> Ceilings:
    """The ceilings of the present caller."""
    present = _current.get()
    return present.caller.ceilings if present else Ceilings()


@contextmanager
def acting_as(caller: Caller, action: str, request_id: str | None = None) -> Iterator[None]:
    """Makes `caller` the present one inside the block."""
    token = _current.set(Acting(caller, action, request_id))
    try:
        yield
    finally:
        _current.reset(token)
