"""Transactions that are tried again while the database restarts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.orm import Session

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.store.embedded import EmbeddedPostgresError
from tilewright.service.store.session import revive, session_scope

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S = 60.0
"""A PostgreSQL that recovers from a crash is back within seconds; a minute covers an upgrade of a minor version."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


def patiently(
    work: Callable[[Session], T],
    *,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """The result of `work` in a transaction that was committed; tried again while the database is away.

    It may have been committed although the connection broke before the confirmation: doing it twice must do no harm.
    Raises DatabaseUnavailableError after `patience_s`.
    """
    deadline, pause_s = clock() + patience_s, FIRST_PAUSE_S
    while True:
        try:
            with session_scope() as session:
                return work(session)
        except DatabaseUnavailableError as error:
            if clock() >= deadline:
                raise
            logger.warning("%s Trying again in %.1f s.", error, pause_s)
        try:
            revive()
        except EmbeddedPostgresError as error:
            logger.warning("The embedded database does not start: %s", error)
        sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
