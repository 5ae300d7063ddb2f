"""Whether a best is ahead of the library, level with it or behind it: the verdict that every page and filter uses."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import ColumnElement, case, literal, null

from tilewright.service.store import models


class AgainstLibrary(StrEnum):
    """The verdict of the finals, which time both in the same rounds; `level`: the noise does not tell them apart."""

    AHEAD = "ahead"
    LEVEL = "level"
    BEHIND = "behind"

    @classmethod
    def of(cls, library_ms: float, ci_high_ms: float, *, is_library_faster: bool) -> AgainstLibrary:
        """The verdict on a best whose interval ends at `ci_high_ms`."""
        if is_library_faster:
            return cls.BEHIND
        return cls.AHEAD if library_ms > ci_high_ms else cls.LEVEL


def against_library() -> ColumnElement[str | None]:
    """The same in the database; null where no library was timed."""
    best = models.BestConfiguration
    return case(
        (best.library_ms.is_(None), null()),
        (best.library_faster.is_(True), literal(AgainstLibrary.BEHIND.value)),
        (best.library_ms > best.ci_high_ms, literal(AgainstLibrary.AHEAD.value)),
        else_=literal(AgainstLibrary.LEVEL.value),
    )
