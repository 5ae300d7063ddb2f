"""Saved views of the dashboard."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from tilewright.service.api.openapi import refuses
from tilewright.service.api.problem_types import BY_ERROR, INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.errors import CeilingError
from tilewright.service.operations.answers import Page
from tilewright.service.operations.requests import ViewName, ViewRequest
from tilewright.service.operations.transaction import committed, transaction
from tilewright.service.operations.views import notes
from tilewright.service.operations.views.notes import ViewAnswer

router = APIRouter(prefix="/v1/views", tags=["views"])


@router.get("", operation_id="list_views", responses=refuses(UNAVAILABLE))
def list_views() -> Page[ViewAnswer]:
    """Every saved view of the dashboard, by name."""
    with transaction() as session:
        return Page(items=notes.saved_views(session))


@router.post("", operation_id="save_view", responses=refuses(INVALID, BY_ERROR[CeilingError], UNAVAILABLE))
def save_view(request: ViewRequest) -> ViewAnswer:
    """Save an address of the dashboard under a name, in place of the one that had it."""
    return committed(notes.save_view)(request)


@router.delete(
    "/{name}", operation_id="delete_view", status_code=204, responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE)
)
def delete_view(name: Annotated[ViewName, Path(description="A view's name.")]) -> None:
    """Delete a saved view."""
    with transaction() as session:
        notes.delete_view(session, name)
