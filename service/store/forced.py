"""Changes that must not wait for what they are to stop: whoever holds their rows for long is ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

logger = logging.getLogger(__name__)

WAITS_S = 0.4
"""Our own transactions take milliseconds: one that holds a row for longer hangs, or does somebody's bidding."""
LONGEST_WAIT_MS = 3000
"""After this the change is refused: the holder belongs to a database role that this process may not end."""

_END_HOLDERS = text(
    "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE pid = ANY (pg_blocking_pids(:waiting)) AND pg_has_role(usesysid, 'MEMBER')"
)


@contextmanager
def forced(session: Session) -> Iterator[None]:
    """Inside the block the session waits for a lock no longer than WAITS_S; then the connections that hold it end.

    What they did is rolled back. Raises the driver's error where a holder may not be ended.
    """
    waiting = session.scalar(text("SELECT pg_backend_pid()"))
    session.execute(text(f"SET LOCAL lock_timeout = {LONGEST_WAIT_MS}"))
    is_over = threading.Event()
    watch = threading.Thread(
        target=_end_holders, args=(session.get_bind().engine, waiting, is_over), name="forced", daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        is_over.set()
        watch.join()
    session.execute(text("SET LOCAL lock_timeout = 0"))


def _end_holders(engine: Engine, waiting: int, is_over: threading.Event) -> None:
    while not is_over.wait(WAITS_S):
        try:
            with engine.connect() as connection:
                ended = connection.execute(_END_HOLDERS, {"waiting": waiting}).all()
        except SQLAlchemyError as error:
            logger.warning("The holders of a lock could not be ended: %s", error)
            return
        for pid, _ in ended:
            logger.warning("The connection %d was ended: it held rows that a change could not wait for.", pid)
