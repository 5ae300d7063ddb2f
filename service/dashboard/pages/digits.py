"""The page to draw a digit and see how the network recognises it."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard.rendering import PageRoute, page
from tilewright.tuner.network import digits

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SAMPLES = 56
"""Rows and columns of the drawing as sent: four times the network's input along each axis, without margins."""


@router.get("/digits")
def draw() -> HTMLResponse:
    """The drawing area, and a place for the answer."""
    network = digits.trained()
    return page("digits.html", sizes="-".join(map(str, network.sizes)), about=network.about, samples=SAMPLES)
