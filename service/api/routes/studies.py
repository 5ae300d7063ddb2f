"""Routes of studies and their trials."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from tilewright.service.api.csv_pages import CSV_TOO, listed
from tilewright.service.api.openapi import refuses
from tilewright.service.api.parameters import PageQuery, ResultQuery, StudyId
from tilewright.service.api.problem_types import BY_ERROR, CONFLICT, INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.errors import CeilingError
from tilewright.service.operations.answers import Page, StudyAnswer, TrialAnswer
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.requests import NoteRequest
from tilewright.service.operations.studies import studies
from tilewright.service.operations.transaction import committed, transaction
from tilewright.service.operations.views import notes
from tilewright.service.operations.views.notes import NoteAnswer

router = APIRouter(prefix="/v1/studies", tags=["studies"])


@router.get(
    "", operation_id="list_studies", response_model=Page[StudyAnswer], responses=CSV_TOO | refuses(INVALID, UNAVAILABLE)
)
def list_studies(request: Request, query: Annotated[ResultQuery, Query()]) -> Page[StudyAnswer] | Response:
    """Studies, newest first."""
    return listed(request, query, lambda page: committed(studies.studies)(**page.model_dump(exclude={"format"})))


@router.get("/{study_id}", operation_id="get_study", responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE))
def get_study(study_id: StudyId) -> StudyAnswer:
    """One study and the outcomes of its trials."""
    return committed(studies.study)(study_id)


@router.get(
    "/{study_id}/trials",
    operation_id="list_study_trials",
    response_model=Page[TrialAnswer],
    responses=CSV_TOO | refuses(INVALID, NOT_FOUND, UNAVAILABLE),
)
def list_study_trials(
    request: Request, study_id: StudyId, query: Annotated[PageQuery, Query()]
) -> Page[TrialAnswer] | Response:
    """The study's trials, in the order in which they were recorded."""
    return listed(
        request, query, lambda page: committed(jobs.trials)(study_id=study_id, limit=page.limit, cursor=page.cursor)
    )


@router.get("/{study_id}/notes", operation_id="list_notes", responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE))
def list_notes(study_id: StudyId) -> Page[NoteAnswer]:
    """The notes on a study, oldest first."""
    with transaction() as session:
        return Page(items=notes.notes(session, [studies.study(session, study_id).id]))


@router.post(
    "/{study_id}/notes",
    operation_id="add_note",
    status_code=201,
    responses=refuses(INVALID, NOT_FOUND, CONFLICT, BY_ERROR[CeilingError], UNAVAILABLE),
)
def add_note(study_id: StudyId, request: NoteRequest) -> NoteAnswer:
    """Write a note on a study, which may acknowledge that its best has regressed."""
    return committed(notes.add_note)(study_id, request)


@router.delete(
    "/{study_id}/notes/{note_id}",
    operation_id="delete_note",
    status_code=204,
    responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE),
)
def delete_note(
    study_id: StudyId, note_id: Annotated[int, Path(ge=1, le=MAX_ROW_ID, description="A note's id.", examples=[1])]
) -> None:
    """Delete a note; a regression that it acknowledged counts again."""
    with transaction() as session:
        notes.delete_note(session, study_id, note_id)
