"""Notes that people write on a study; one may acknowledge that its best is slower than the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import Field
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from tilewright.service.errors import CeilingError, ConflictError, NotFoundError
from tilewright.service.operations.answers import Answer
from tilewright.service.operations.best.results import settled
from tilewright.service.operations.caller import author
from tilewright.service.operations.requests import NoteRequest
from tilewright.service.operations.studies import studies
from tilewright.service.store import models

MOST_NOTES = 100
"""Of a study: its page shows all of them."""


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
