"""The page of schedules. Its form and buttons call the API, which alone judges what may be stored."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import views
from tilewright.service.dashboard.rendering import PageRoute, page
from tilewright.service.operations import registry, schedules
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/schedules")
def schedule_list() -> HTMLResponse:
    """Every schedule with its next due times, and a form for another."""
    with transaction() as session:
        found = schedules.schedules(session)
        models = registry.device_models(session)
    return page(
        "schedules.html",
        refresh_s=30 if any(schedule.enabled for schedule in found) else None,
        schedules=[{"schedule": schedule, "budget": views.budget_text(schedule.budget)} for schedule in found],
        models=sorted(models, key=lambda model: (model.kind == "cpu", model.slug)),  # the first is chosen: a GPU
        kernels=sorted(catalogue().by_name),
    )
