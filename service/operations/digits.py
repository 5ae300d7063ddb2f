"""What digit a drawing shows, by the network that the project ships; computed in this process, by NumPy."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.requests import Request
from tilewright.tuner import digits

FEWEST, MOST = 8, 64
"""Rows and columns of a drawing: at least as many as the network looks at, and no more than anything is gained by."""

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

    @model_validator(mode="after")
    def _square(self) -> Drawing:
        for number, line in enumerate(self.pixels):
            if len(line) != len(self.pixels):
                raise ValueError(
                    f"pixels must be square: row {number} has {len(line)} columns and there are {len(self.pixels)} rows"
                )
        return self


class DigitAnswer(BaseModel):
    """What the network makes of it."""

    model_config = ConfigDict(frozen=True)

    digit: int = Field(ge=0, le=9, description="The most probable digit.")
    probabilities: list[float] = Field(description="Of the digits 0 to 9; they sum to 1.")
    cells: list[list[int]] = Field(
        description="What the network was shown, 8 rows of 8, 0 to 16: the drawing centred, scaled, its strokes evened."
    )


def recognise(drawing: Drawing) -> DigitAnswer:
    """The answer; raises InvalidRequestError where nothing is drawn."""
    cells = digits.cells_of_drawing(np.array(drawing.pixels, np.float32) / 255)
    if cells is None:
        raise InvalidRequestError("pixels", "nothing is drawn: no pixel is above 127")
    probabilities = digits.trained().forward(digits.images(cells[None]))[0].astype(np.float64)
    return DigitAnswer(
        digit=int(probabilities.argmax()),
        probabilities=[float(p) for p in probabilities / probabilities.sum()],
        cells=cells.astype(int).tolist(),
    )
