"""The page of access and changes: keys, projects, browsers that are signed in, the record of changes, imports."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import views
from tilewright.service.dashboard.rendering import PageRoute, address, may, page
from tilewright.service.operations.access import audit, keys, projects, sessions
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.webhooks import webhooks

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN_CHANGES, SHOWN_IMPORTS = 50, 20


@router.get("/access")
def access(
    request: Request,
    actor: Annotated[str | None, Query(max_length=128)] = None,
    cursor: Annotated[str | None, Query(max_length=64)] = None,
) -> HTMLResponse:
    """Keys, projects, sessions, changes, imports and webhooks; for the scope admin alone."""
    if not may(request, Scope.ADMIN):
        return page("access.html", is_admin=False)
    with transaction() as session:
        changes = audit.entries(session, actor=actor or None, limit=SHOWN_CHANGES, cursor=cursor or None)
        own_keys, signed_in = keys.keys(session), sessions.open_sessions(session)
        teams = projects.projects(session)
        imports = [views.job_line(job) for job in jobs.imports(session, SHOWN_IMPORTS)]
        hooks = webhooks.webhooks(session)
    next_path = address("/access", {"actor": actor, "cursor": changes.next_cursor}) if changes.next_cursor else None
    return page(
        "access.html",
        is_admin=True,
        actor=actor or None,
        changes=changes.items,
        first=address("/access", {"actor": actor}) if cursor else None,
        next=f"{next_path}#changes" if next_path else None,
        keys=own_keys,
        projects=teams,
        sessions=signed_in,
        imports=imports,
        webhooks=hooks,
    )
