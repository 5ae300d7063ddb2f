"""The columns of a study's trials as few bytes, which `static/columns.js` reads.

Four bytes with the length of a JSON header, the header, then each column that it lists, padded to four bytes. Rising
columns (numbers, seconds) are kept as differences, repeating ones (outcomes, values) as places in a list of the header.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.service.operations.studies.columns import Columns

SPENT_STEPS = 1 << 20
"""Parts of the whole time that the seconds are rounded to: far below a pixel."""

LOW_BITS = 8
"""Bits of a number's 23 that are dropped: a part in 100,000 of it is left out, and as much less to send."""


def packed(columns: Columns) -> bytes:
    """The columns of the chart, packed as bytes."""
    bodies: list[bytes] = []
    listed: list[dict[str, Any]] = []

    def add(name: str, kind: str, column: NDArray[Any], **more: Any) -> None:
        body = column.tobytes()
        listed.append({"name": name, "kind": kind, **more})
        bodies.append(body + b"\0" * (-len(body) % 4))

    add("trial", "rising", _differences(np.array(columns.numbers, dtype=np.int64)), step=1)
    add("time", "number", _rounded(columns.times_ms))
    step = (columns.spent_s[-1] / SPENT_STEPS if columns.spent_s else 0.0) or 1.0
    add("spent", "rising", _differences(np.round(np.array(columns.spent_s, dtype=np.float64) / step)), step=step)
    for name, words in (("outcome", columns.outcomes), ("variant", columns.variants)):
        places, listed_words = _places(words)
        add(name, f"place{places.itemsize}", places, values=listed_words)
    for name, values in columns.values.items():
        places, listed_values = _places(values)
        add(name, f"place{places.itemsize}", places, values=listed_values, is_parameter=True)
    for name, numbers in columns.resources.items():
        add(name, "number", _rounded(numbers))
    header = json.dumps({"rows": len(columns.numbers), "columns": listed}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 4)
    return len(header).to_bytes(4, "little") + header + b"".join(bodies)


def _differences(rising: NDArray[Any]) -> NDArray[np.uint32]:
    """The difference of each number from the one before it."""
    return np.diff(rising, prepend=0).astype("<u4")


def _rounded(values: Sequence[float | None]) -> NDArray[np.float32]:
    """The numbers with their low bits zero, which compress to nothing; NaN for None."""
    bits = np.array([np.nan if value is None else value for value in values], dtype="<f4").view("<u4")
    half, mask = 1 << (LOW_BITS - 1), ~((1 << LOW_BITS) - 1) & 0xFFFFFFFF
    return ((bits + np.uint32(half)) & np.uint32(mask)).view("<f4")


def _places(values: Iterable[Any]) -> tuple[NDArray[Any], list[Any]]:
    """The place of each value in the list of those that occur, and that list: rising, None last."""
    occurring = list(values)
    listed = sorted(set(occurring), key=lambda value: (value is None, value))
    place_of = {value: place for place, value in enumerate(listed)}
    kind = "<u1" if len(listed) < 1 << 8 else "<u2"
    return np.array([place_of[value] for value in occurring], dtype=kind), listed
