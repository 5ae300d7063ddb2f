"""Whose a job or a schedule is: the key's that asked for it, by name, so that a rotated key keeps what it made."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.service.errors import NotOwnerError
from tilewright.service.operations.caller import Scope, acting
from tilewright.service.store import models


def check_owner(session: Session, what: str, key_id: UUID | None) -> None:
    """Raises NotOwnerError where another key than the caller's asked for it, and the caller is no admin.

    What no key asked for, and what is older than owners, may be changed by everybody whose scope allows changes.
    """
    who = acting()
    if who is None or who.caller.scope is Scope.ADMIN or key_id is None:
        return
    owner = session.scalar(select(models.ApiKey.name).where(models.ApiKey.id == key_id))
    if owner != who.caller.key_name:
        raise NotOwnerError(f"The {what} belongs to the key {owner!r}; change it with that key or one of scope admin.")
