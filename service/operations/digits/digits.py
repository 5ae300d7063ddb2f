"""Recognises a drawn digit by the network that comes with Tilewright, with NumPy in this process or on a device."""

from __future__ import annotations

import time
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, JsonValue, model_validator

from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.answers import Answer, EnvironmentAnswer
from tilewright.service.operations.digits import post as digit_post
from tilewright.service.operations.digits.places import API, place_named
from tilewright.service.operations.digits.post import LayerAnswer
from tilewright.service.operations.requests import Request
from tilewright.service.operations.transaction import transaction
from tilewright.tuner.network import digits

FEWEST, MOST = 8, 64
"""Rows and columns of a drawing: at least as many as the network reads; more than 64 gain nothing."""

SMALL_SEVEN: list[JsonValue] = [
    [255 if (y in (1, 2) and 0 < x < 7) or (y > 2 and 0 <= x + y // 2 - 6 < 2) else 0 for x in range(8)]
    for y in range(8)
]

Ink = Annotated[int, Field(ge=0, le=255)]
Line = Annotated[list[Ink], Field(min_length=FEWEST, max_length=MOST)]


class Drawing(Request):
    """A square picture of one digit, ink on paper."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"pixels": SMALL_SEVEN}]})

    pixels: list[Line] = Field(
        min_length=FEWEST,
        max_length=MOST,
        description="Rows from the top, as many as columns: 0 for paper to 255 for ink. Size and place do not matter.",
    )
    on: str = Field(
        default=API,
        min_length=1,
        max_length=128,
        description="Where to compute it: `api` (NumPy, in the API's process), a device's UUID or a device model, as "
        "`GET /v1/digits/places` lists them.",
    )

    @model_validator(mode="after")
    def _square(self) -> Drawing:
        for number, line in enumerate(self.pixels):
            if len(line) != len(self.pixels):
                raise ValueError(
                    f"pixels must be square: row {number} has {len(line)} columns and there are {len(self.pixels)} rows"
                )
        return self


class Computed(Answer):
    """Where the answer was computed, and how long that took."""

    on: str = Field(description="`api`, or the device's UUID.")
    device_model: str | None = None
    host: str | None = None
    environment: EnvironmentAnswer | None = Field(None, description="The device's.")
    layers: list[LayerAnswer] = Field(default=[], description="The device's launches, in order.")
    kernels_us: float | None = Field(
        None, description="Time of all kernels, between two events of the GPU; null where the device is not a GPU."
    )
    pass_us: float = Field(description="Wall time of the network there, with copies to a GPU and back.")
    total_ms: float = Field(
        description="Time of the whole answer by the API's clock, with the way to the device and its queue."
    )


class DigitAnswer(Answer):
    """The digit that the network recognises."""

    digit: int = Field(ge=0, le=9, description="The most probable digit.")
    probabilities: list[float] = Field(description="Of the digits 0 to 9; they sum to 1.")
    cells: list[list[int]] = Field(
        description="The network's input, 8 rows of 8 from 0 to 16: the drawing centred, scaled, its strokes evened."
    )
    computed: Computed


def recognise(drawing: Drawing) -> DigitAnswer:
    """The answer; raises InvalidRequestError where nothing is drawn, or `on` is unknown.

    For a device also raises DeviceUnavailableError, and NoAnswerError after `digit_post.WITHIN_S`.
    """
    began = time.perf_counter()
    cells = digits.cells_of_drawing(np.array(drawing.pixels, np.float32) / 255)
    if cells is None:
        raise InvalidRequestError("pixels", "nothing is drawn: no pixel is above 127.")
    outputs, facts = _here(cells) if drawing.on == API else _there(drawing.on, cells)
    probabilities = np.asarray(outputs, np.float64)
    return DigitAnswer(
        digit=int(probabilities.argmax()),
        probabilities=[float(p) for p in probabilities / probabilities.sum()],
        cells=cells.astype(int).tolist(),
        computed=Computed(**facts, total_ms=(time.perf_counter() - began) * 1e3),
    )


def _here(cells: digits.Cells) -> tuple[NDArray[Any], dict[str, Any]]:
    x = digits.images(cells[None])
    began = time.perf_counter()
    probabilities = digits.trained().forward(x)[0]
    return probabilities, {"on": API, "pass_us": (time.perf_counter() - began) * 1e6}


def _there(on: str, cells: digits.Cells) -> tuple[list[float], dict[str, Any]]:
    with transaction() as session:
        place, asked_at = place_named(session, on), digit_post.clock_s(session)
    work = digit_post.ask(place.on, cells.astype(int).ravel().tolist(), asked_at)
    facts = {name: getattr(work, name) for name in ("environment", "layers", "kernels_us", "pass_us")}
    return work.probabilities, {"on": place.on, "device_model": place.device_model, "host": place.host, **facts}
