"""Whether this process can serve: the database answers and its migrations are at head."""

from __future__ import annotations

from sqlalchemy import text

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.store import schema
from tilewright.service.store.session import session_scope


def what_is_missing() -> str | None:
    """One sentence about the first thing that keeps this process from serving, or None when it is ready."""
    try:
        with session_scope() as session:
            session.execute(text("SELECT 1"))
        at_head = schema.at_head()
    except DatabaseUnavailableError:
        return "The database does not answer."
    return None if at_head else "The database is not migrated to this version; run `tilewright db upgrade`."
