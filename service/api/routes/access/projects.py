"""Projects: listed, created, given quotas; for the scope admin alone."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from tilewright.service.api.openapi import refuses
from tilewright.service.api.problem_types import CONFLICT, INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.operations.access import projects
from tilewright.service.operations.access.projects import ProjectAnswer
from tilewright.service.operations.answers import Page
from tilewright.service.operations.requests import ProjectName, ProjectQuotas, ProjectRequest
from tilewright.service.operations.transaction import committed, transaction

router = APIRouter(prefix="/v1/projects", tags=["access"])

Name = Annotated[ProjectName, Path(description="A project's name.")]


@router.get("", operation_id="list_projects", responses=refuses(UNAVAILABLE))
def list_projects() -> Page[ProjectAnswer]:
    """Every project by name, with its quotas and what it has now."""
    with transaction() as session:
        return Page(items=projects.projects(session))


@router.post("", operation_id="create_project", status_code=201, responses=refuses(INVALID, CONFLICT, UNAVAILABLE))
def create_project(request: ProjectRequest) -> ProjectAnswer:
    """Create a project; keys are then created in it."""
    return committed(projects.create_project)(request)


@router.patch("/{name}", operation_id="change_project", responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE))
def change_project(name: Name, quotas: ProjectQuotas) -> ProjectAnswer:
    """Change the quotas that are given; null takes one away. Open jobs stay."""
    return committed(projects.change_quotas)(name, quotas)
