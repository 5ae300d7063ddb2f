"""The transaction that faces open around operations, so that none of them imports the store."""

from __future__ import annotations

from contextlib import AbstractContextManager

from sqlalchemy.orm import Session

from tilewright.service.store.session import session_scope


def transaction() -> AbstractContextManager[Session]:
    """A session that commits at the end of the block and rolls back on an error."""
    return session_scope()
