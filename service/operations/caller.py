"""Who asks, for the length of one request or command: what they may do, and under which name a change is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class Scope(StrEnum):
    """What a key allows; each holds what stands before it."""

    READ = "read"
    TUNE = "tune"  # jobs, schedules, retractions
    ADMIN = "admin"  # keys, imports, webhooks, draining

    def allows(self, wanted: Scope) -> bool:
        """Whether this scope is at least the wanted one."""
        order = list(Scope)
        return order.index(self) >= order.index(wanted)


@dataclass(frozen=True)
class Ceilings:
    """The most that one may ask for; None: what the settings allow."""

    max_trials: int | None = None
    max_seconds: float | None = None
    max_open_jobs: int | None = None


@dataclass(frozen=True)
class Caller:
    """Who asks. `key_id` and `key_name` are None on this machine, where no key is needed.

    What belongs to a caller belongs to its key's name, so that it stays whoever's it was when the key is rotated.
    """

    name: str
    scope: Scope
    key_id: UUID | None = None
    ceilings: Ceilings = Ceilings()
    key_name: str | None = None

    @property
    def is_stranger(self) -> bool:
        """Whether nobody stands for it: it asks from elsewhere and shows no key."""
        return self.key_id is None and self.scope is not Scope.ADMIN


@dataclass(frozen=True)
class Acting:
    """A caller and what the change it may make is to be recorded as."""

    caller: Caller
    action: str
    request_id: str | None = None


THIS_MACHINE = Caller("this machine", Scope.ADMIN)
COMMAND_LINE = Caller("command line", Scope.ADMIN)

_current: ContextVar[Acting | None] = ContextVar("tilewright_acting", default=None)


def acting() -> Acting | None:
    """Who asks now; None outside requests and commands: workers and chores."""
    return _current.get()


def ceilings() -> Ceilings:
    """Those of who asks now."""
    found = _current.get()
    return found.caller.ceilings if found else Ceilings()


@contextmanager
def acting_as(caller: Caller, action: str, request_id: str | None = None) -> Iterator[None]:
    """Makes `caller` the one who asks, inside the block."""
    token = _current.set(Acting(caller, action, request_id))
    try:
        yield
    finally:
        _current.reset(token)
