"""Recognising a drawn digit, in this process or on a device: a demonstration of what the kernels are for."""

from __future__ import annotations

from fastapi import APIRouter

from tilewright.service.api.openapi import refuses
from tilewright.service.api.problem_types import NO_ANSWER, NO_DEVICE, UNAVAILABLE
from tilewright.service.operations.answers import Page
from tilewright.service.operations.digits import places as digit_places
from tilewright.service.operations.digits.digits import DigitAnswer, Drawing, recognise
from tilewright.service.operations.digits.places import DigitPlace
from tilewright.service.operations.transaction import transaction

router = APIRouter(prefix="/v1", tags=["digits"])


@router.post("/digits", operation_id="recognise_digit", responses=refuses(UNAVAILABLE, NO_DEVICE, NO_ANSWER))
def recognise_digit(drawing: Drawing) -> DigitAnswer:
    """Which digit a drawing shows, with the probability of each.

    Computed by NumPy in the API's own process, or where `on` says. A device answers between two trials, never during
    one; if it does not within 2 s, the request is refused. Nothing is stored, and a key with scope read is enough.
    """
    return recognise(drawing)


@router.get("/digits/places", operation_id="list_digit_places", responses=refuses(UNAVAILABLE))
def list_digit_places() -> Page[DigitPlace]:
    """The devices that can recognise drawings now: those whose worker is alive and not drained."""
    with transaction() as session:
        return Page(items=digit_places.places(session))
