"""Element types by name: their size, their accuracy, and what they are called in a source."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import ml_dtypes  # noqa: F401 - NumPy knows bfloat16 by its name from then on

HALF = ("bfloat16", "float16")
"""Types of 16 bits. They are stored and moved; sums of them are made in float32."""

ITEM_BYTES = {
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}
"""Bytes of one element. A problem is in one of the floating dtypes; an argument may have any of its own."""

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Half the distance from 1 to the next number."""

SMALLEST_NORMAL = {"float32": 2.0**-126, "float64": 2.0**-1022, "bfloat16": 2.0**-126, "float16": 2.0**-14}
"""Below it numbers lose digits or are flushed to zero: no relative error bound holds there."""

LARGEST = {"float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308, "bfloat16": 3.3895313892515355e38}
LARGEST |= {"float16": 65504.0}
"""The largest finite number, by dtype."""

REAL = {"float32": "float", "float64": "double", "bfloat16": "__nv_bfloat16", "float16": "__half"}
"""The C type that `REAL` stands for in a source."""

C_TYPES = REAL | {
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
}
"""The C type of an argument."""


@dataclass(frozen=True)
class Rounding:
    """The error of storing a sum in a narrower type than it was computed in; none where the types are the same.

    At most `unit_roundoff` times the sum, or times `smallest_normal` where that is more; from `overflow` on it becomes
    infinite.
    """

    unit_roundoff: float = 0.0
    smallest_normal: float = 0.0
    overflow: float = math.inf


ROUNDING = {
    dtype: Rounding(
        UNIT_ROUNDOFF[dtype],
        SMALLEST_NORMAL[dtype],
        # Exponents reach as far above 2 as below it, and the largest significand is 2 less two unit roundoffs.
        (2 - UNIT_ROUNDOFF[dtype]) * 2 / SMALLEST_NORMAL[dtype],
    )
    for dtype in HALF
}
"""The largest number of each type that sums are not made in: the first that overflows is half a place above the
largest."""


CUT_OFF = 2.0**-23 / 16
"""The error of a sum for each of its terms: a tensor core adds 16 products of half types and cuts off less than a place
of
float32. On an H200 a sum of 1,032 terms of one sign was off by 0.84 of that."""


def rounding_of(dtype: str, terms: int = 0) -> Rounding:
    """The error of storing a sum of so many terms as this dtype, with the truncation by tensor cores before."""
    stored = ROUNDING.get(dtype)
    return replace(stored, unit_roundoff=stored.unit_roundoff + terms * CUT_OFF) if stored else Rounding()


def sum_dtype(dtype: str) -> str:
    """The dtype in which sums of elements of this dtype are computed."""
    return "float32" if dtype in HALF else dtype


def is_integer(dtype: str) -> bool:
    """Whether it is one of the integers among C_TYPES: results of those are compared exactly."""
    return dtype not in REAL


def real_macros(dtype: str) -> dict[str, str]:
    """The macros that make a source's element type this dtype: REAL, REAL_BYTES, and for half types which it is."""
    macros = {"REAL": REAL[dtype], "REAL_BYTES": str(ITEM_BYTES[dtype])}
    return macros | ({f"REAL_IS_{dtype.upper()}": "1"} if dtype in HALF else {})
