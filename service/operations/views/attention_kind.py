"""The reasons why a problem needs attention."""

from __future__ import annotations

from enum import StrEnum


class AttentionKind(StrEnum):
    """Why a problem needs attention."""

    FAILING = "failing"
    REGRESSED = "regressed"
    BEHIND = "behind"
    REQUESTED = "requested"
    STALE = "stale"
    IMPROVABLE = "improvable"
