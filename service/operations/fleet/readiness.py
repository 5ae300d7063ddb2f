"""Whether this process can serve: the database answers, its migrations are at head, and it takes changes."""

from __future__ import annotations

import logging

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.store import schema
from tilewright.service.store.session import session_scope

logger = logging.getLogger(__name__)


def what_is_missing() -> str | None:
    """One sentence about the first thing that keeps this process from serving, or None when it is ready."""
    try:
        with session_scope() as session:
            session.execute(text("SELECT 1"))
        if not schema.at_head():
            return "The database is not migrated to this version; run `tilewright db upgrade`."
        with session_scope() as session:
            session.execute(text("SET LOCAL lock_timeout = 2000"))
            session.execute(text("UPDATE chore_rounds SET id = id WHERE id = 1"))
    except DatabaseUnavailableError:
        return "The database does not answer."
    except SQLAlchemyError as error:
        logger.warning("The database takes no changes: %s", error)
        return "The database answers but takes no changes: it is read-only, or its disk is full."
    return None
