"""Notes on studies, which may acknowledge a slower best, and saved views of the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import Field
from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from tilewright.service.errors import CeilingError, ConflictError, NotFoundError
from tilewright.service.operations.answers import Answer
from tilewright.service.operations.best.results import settled
from tilewright.service.operations.caller import author
from tilewright.service.operations.requests import NoteRequest, ViewRequest
from tilewright.service.operations.studies import studies
from tilewright.service.store import models

MOST_NOTES = 100
"""The most notes on a study: its page shows all of them."""


class NoteAnswer(Answer):
    """A note on a study."""

    id: int
    study_id: int
    text: str
    acknowledged_result_id: int | None = Field(
        description="The regressed result that it acknowledges, which then no longer counts as regressed."
    )
    written_by: str
    written_at: datetime


def notes(session: Session, study_ids: Sequence[int]) -> list[NoteAnswer]:
    """Every note on these studies, the oldest first."""
    note = models.StudyNote
    rows = session.scalars(select(note).where(note.study_id.in_(study_ids)).order_by(note.id))
    return [NoteAnswer.model_validate(row) for row in rows]


def add_note(session: Session, study_id: int, request: NoteRequest) -> NoteAnswer:
    """The new note. Raises NotFoundError, CeilingError, or ConflictError where there is nothing to acknowledge."""
    studies.study(session, study_id)
    note = models.StudyNote
    count = session.scalar(select(func.count()).select_from(note).where(note.study_id == study_id)) or 0
    if count >= MOST_NOTES:
        raise CeilingError(f"The study has {MOST_NOTES} notes already; delete one first.")
    best = settled(session, study_id) if request.acknowledges else None
    if request.acknowledges and (best is None or best.slowdown is None):
        raise ConflictError("The best of this study has not regressed, or that is acknowledged; omit `acknowledges`.")
    row = note(
        study_id=study_id,
        acknowledged_result_id=best.id if best else None,
        text=request.text,
        written_by=author(),
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return NoteAnswer.model_validate(row)


def delete_note(session: Session, study_id: int, note_id: int) -> None:
    """Removes the note; a regression that it acknowledged counts again. Raises NotFoundError."""
    note = models.StudyNote
    gone = session.scalar(delete(note).where(note.id == note_id, note.study_id == study_id).returning(note.id))
    if gone is None:
        raise NotFoundError("note", f"{note_id} of study {study_id}")


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
