"""Leases on the configurations that a worker is measuring: advisory locks, which end with its connection."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from tilewright.kernels.space import Configuration
from tilewright.service.store.session import engine

logger = logging.getLogger(__name__)

HEARD_S = 2.0
"""How long a lease is kept after its trial is stored; by then other workers have read it (four times a second)."""


class Leases:
    """Leases of one worker on a connection of their own: a worker that dies or is cut off holds none.

    They save work and protect nothing: a trial that two workers did is stored once. Without a database all are granted.
    """

    def __init__(self, study_id: int) -> None:
        self._study_id = study_id
        self._connection: Connection | None = None
        self._stored: deque[tuple[float, Configuration]] = deque()

    def claim(self, configuration: Configuration) -> bool:
        """Whether no other worker measures the job; then this one holds the lease until HEARD_S after `release`."""
        while self._stored and time.monotonic() - self._stored[0][0] > HEARD_S:
            self._ask("SELECT pg_advisory_unlock(:key)", self._stored.popleft()[1])
        return self._ask("SELECT pg_try_advisory_lock(:key)", configuration)

    def release(self, configuration: Configuration) -> None:
        """Says that the configuration's trial is stored."""
        self._stored.append((time.monotonic(), configuration))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._connection is not None:
            with suppress(SQLAlchemyError):  # the server lets go of a closed connection's locks only some time later
                self._connection.execute(text("SELECT pg_advisory_unlock_all()"))
        self._drop()

    def _ask(self, question: str, configuration: Configuration) -> bool:
        try:
            if self._connection is None:
                self._connection = engine().connect().execution_options(isolation_level="AUTOCOMMIT")
            return bool(self._connection.execute(text(question), {"key": self._key(configuration)}).scalar_one())
        except SQLAlchemyError as error:
            logger.warning("Configurations cannot be leased now: %s", error)
            self._drop()
            return True

    def _drop(self) -> None:
        if self._connection is not None:
            # Not back into the pool: the locks belong to the connection and must end with it.
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
        self._stored.clear()

    def _key(self, configuration: Configuration) -> int:
        digest = hashlib.sha256(f"study {self._study_id}: {configuration}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)
