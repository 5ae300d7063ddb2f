"""Drawings sent to a device as a page does it: whoever gets no answer in time asks again."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from drawn_digits import ink

from tilewright.service.errors import NoAnswerError
from tilewright.service.operations.digits.digits import DigitAnswer, Drawing, recognise


def drawing(digit: int, on: str = "api") -> Drawing:
    return Drawing(pixels=(ink(digit, 28) * 255).astype(int).tolist(), on=on)


def answered(on: str, digit: int, within_s: float = 150.0) -> DigitAnswer:
    """While the device prepares the network, or is in the middle of a trial, there is none yet."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with suppress(NoAnswerError):
            return recognise(drawing(digit, on))
    pytest.fail(f"{on} did not answer within {within_s:g} s")
