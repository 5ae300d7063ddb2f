"""Recognising a drawn digit: the network on this process's CPU, for the page that shows what the kernels are for."""

from __future__ import annotations

from fastapi import APIRouter

from tilewright.service.operations.digits import DigitAnswer, Drawing, recognise

router = APIRouter(prefix="/v1", tags=["digits"])


@router.post("/digits", operation_id="recognise_digit")
def recognise_digit(drawing: Drawing) -> DigitAnswer:
    """Which digit a drawing shows, with the probability of each.

    Computed by NumPy in the API's own process; nothing is stored, and a key that may read is enough.
    """
    return recognise(drawing)
