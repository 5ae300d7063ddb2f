"""Views of the dashboard that were saved: a name, and the address with its filters and order."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from tilewright.service.errors import CeilingError, NotFoundError
from tilewright.service.operations.answers import Answer
from tilewright.service.operations.caller import author
from tilewright.service.operations.requests import ViewRequest
from tilewright.service.store import models

MOST_VIEWS = 100
"""The page shows all of them."""


class ViewAnswer(Answer):
    """A saved view."""

    name: str
    address: str
    saved_by: str
    saved_at: datetime


def saved_views(session: Session) -> list[ViewAnswer]:
    """Every saved view, by name."""
    return [ViewAnswer.model_validate(row) for row in session.scalars(select(models.SavedView).order_by("name"))]


def save_view(session: Session, request: ViewRequest) -> ViewAnswer:
    """The view under that name, in place of the one that had it. Raises CeilingError."""
    view = models.SavedView
    others = session.scalar(select(func.count()).select_from(view).where(view.name != request.name)) or 0
    if others >= MOST_VIEWS:
        raise CeilingError(f"There are {MOST_VIEWS} saved views already; delete one first.")
    values = {"address": request.address, "saved_by": author(), "saved_at": func.now()}
    statement = insert(view).values(name=request.name, **values)
    row = session.scalars(statement.on_conflict_do_update(index_elements=["name"], set_=values).returning(view)).one()
    return ViewAnswer.model_validate(row)


def delete_view(session: Session, name: str) -> None:
    """Removes the view; raises NotFoundError."""
    view = models.SavedView
    if session.scalar(delete(view).where(view.name == name).returning(view.name)) is None:
        raise NotFoundError("view", name)
