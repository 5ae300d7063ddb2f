"""All pages of the dashboard as one router."""

from __future__ import annotations

from fastapi import APIRouter

from tilewright.service.dashboard.pages import (
    access,
    ask,
    attention,
    compare,
    demand,
    families,
    fleet,
    guide,
    history,
    jobs,
    overview,
    problems,
    results,
    saved,
    schedules,
    sign_in,
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
    history,
    saved,
    families,
    problems,
    schedules,
    trials,
    access,
    sign_in,
    guide,
)


def pages() -> APIRouter:
    """The pages, and what they load while they are open."""
    router = APIRouter()
    for module in PAGES:
        router.include_router(module.router)
    return router
