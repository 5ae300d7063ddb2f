"""The outcomes of a comparison."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """Whether the best's time improved."""

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"
    MISSING = "missing"
