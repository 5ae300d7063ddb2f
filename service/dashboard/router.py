"""All pages of the dashboard as one router."""

from __future__ import annotations

from fastapi import APIRouter

from tilewright.service.dashboard.pages import (
    access,
    ask,
    attention,
    compare,
    demand,
    fleet,
    jobs,
    overview,
    problems,
    results,
    saved,
    schedules,
    studies,
    trials,
)

PAGES = (
    results,
    overview,
    attention,
    studies,
    ask,
    compare,
    jobs,
    fleet,
    demand,
    saved,
    problems,
    schedules,
    trials,
    access,
)


def pages() -> APIRouter:
    """The pages, and what they load while they are open."""
    router = APIRouter()
    for module in PAGES:
        router.include_router(module.router)
    return router
