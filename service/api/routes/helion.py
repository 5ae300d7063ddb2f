"""Helion's remote cache: what its own search has found."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from tilewright.service.api.openapi import refuses
from tilewright.service.api.parameters import Query as QueryString
from tilewright.service.api.problem_types import INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.operations.answers import Page
from tilewright.service.operations.exchange import helion
from tilewright.service.operations.exchange.helion import HelionEntryAnswer, HelionEntryRequest, HelionKey
from tilewright.service.operations.transaction import transaction

router = APIRouter(prefix="/v1/helion/entries", tags=["exchange"])

EntryKey = Annotated[HelionKey, Path(examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"])]


class EntriesQuery(QueryString):
    """A page of entries, which are larger than other items."""

    limit: int = Field(default=10, ge=1, le=10, description="Entries per page.")
    cursor: str | None = Field(default=None, max_length=64, description="`next_cursor` of the previous page.")


@router.get("", operation_id="list_helion_entries", responses=refuses(INVALID, UNAVAILABLE))
def list_helion_entries(query: Annotated[EntriesQuery, Query()]) -> Page[HelionEntryAnswer]:
    """Helion's stored entries, the newest first: configurations without times, which nobody here verified."""
    with transaction() as session:
        return helion.entries(session, limit=query.limit, cursor=query.cursor)


@router.get("/{key}", operation_id="get_helion_entry", responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE))
def get_helion_entry(key: EntryKey) -> HelionEntryAnswer:
    """Helion's entry under a key: a configuration without a time, which nobody here verified."""
    with transaction() as session:
        return helion.entry(session, key)


@router.put("/{key}", operation_id="store_helion_entry", responses=refuses(INVALID, UNAVAILABLE))
def store_helion_entry(key: EntryKey, request: HelionEntryRequest) -> HelionEntryAnswer:
    """Store what Helion has found; it replaces the key's earlier entry. No kernel is ever answered from it.

    A key's name may have 2000 entries; then its oldest go.
    """
    with transaction() as session:
        return helion.store_entry(session, key, request)
