"""Owners of jobs and schedules: the name of the key that created them, so that a rotated key keeps them."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.service.errors import NotOwnerError
from tilewright.service.operations.caller import Scope, acting
from tilewright.service.store import models


def check_owner(session: Session, what: str, key_id: UUID | None) -> None:
    """Raises NotOwnerError where another key than the caller's created it, and the caller is not an admin.

    What was created without a key, or before there were owners, every caller may change whose scope allows changes.
    """
    who = acting()
    if who is None or who.caller.scope is Scope.ADMIN or key_id is None:
        return
    owner = session.scalar(select(models.ApiKey.name).where(models.ApiKey.id == key_id))
    if owner != who.caller.key_name:
        raise NotOwnerError(f"The {what} belongs to the key {owner!r}; change it with that key or one of scope admin.")
