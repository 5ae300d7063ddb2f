"""The report of an import: counts, and the reason for every row that was left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import Field

from tilewright.service.operations.answers import Answer

MAX_ROWS = 1000
"""How many skipped rows are listed; all are counted."""


def printable(text: str) -> str:
    """The text cut to 300 characters, without control characters: names in a document may hold anything."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text[:300])


class Reason(StrEnum):
    """Why a row was left out."""

    UNKNOWN_KERNEL = "unknown-kernel"  # this installation has no such kernel
    INVALID_PROBLEM = "invalid-problem"  # the kernel does not compute that
    UNKNOWN_DEVICE_MODEL = "unknown-device-model"  # neither here nor in the document
    UNKNOWN_VARIANT = "unknown-variant"  # or one that this problem and device do not admit
    UNKNOWN_SOURCE = "unknown-source"  # measured with a source that was never registered here
    NOT_A_CONFIGURATION = "not-a-configuration"  # its values are no whole numbers, or there is no time
    OUTSIDE_THE_SPACE = "outside-the-space"
    NOT_VERIFIED = "not-verified"  # no error bound that was kept
    IMPOSSIBLE_TIME = "impossible-time"  # more operations a second than the device has
    TWICE = "twice"  # the configuration is in the document more than once
    ALREADY_HERE = "already-here"
    NO_BETTER = "no-better"  # than the best that stands


class SkippedRow(Answer):
    """One row that was left out."""

    pointer: str = Field(description="JSON pointer into the document.", examples=["/studies/0/trials/3"])
    reason: Reason
    detail: str


class ImportAnswer(Answer):
    """The result of an import."""

    format: str = Field(description="tilewright/1, T4, Kernel Tuner or KTT.")
    origin: str = Field(description="The installation that the results are said to come from.")
    sha256: str = Field(description="Of the document.")
    dry_run: bool = Field(description="True: nothing was stored.")
    studies: int = Field(description="Studies to which something was added.")
    trials: int = Field(description="Trials added.")
    best: int = Field(description="Best configurations added.")
    tables: int = Field(default=0, description="Tables of families added.")
    skipped: int = Field(description="Rows left out.")
    reasons: dict[Reason, int] = Field(description="The same by reason.")
    rows: list[SkippedRow] = Field(description=f"The first {MAX_ROWS} of them, and the first of each reason.")


@dataclass
class ImportReport:
    """Counts while an import goes on."""

    studies: int = 0
    trials: int = 0
    best: int = 0
    tables: int = 0
    _reasons: Counter[Reason] = field(default_factory=Counter)
    _rows: list[SkippedRow] = field(default_factory=list)

    def skip(self, pointer: str, reason: Reason, detail: str) -> None:
        """Notes a row that is left out."""
        self._reasons[reason] += 1
        if len(self._rows) < MAX_ROWS or self._reasons[reason] == 1:
            self._rows.append(SkippedRow(pointer=printable(pointer), reason=reason, detail=printable(detail)))

    def answer(self, document_format: str, origin: str, sha256: str, *, dry_run: bool) -> ImportAnswer:
        """The counts as callers see them."""
        return ImportAnswer(
            format=document_format,
            origin=origin,
            sha256=sha256,
            dry_run=dry_run,
            studies=self.studies,
            trials=self.trials,
            best=self.best,
            tables=self.tables,
            skipped=sum(self._reasons.values()),
            reasons=dict(sorted(self._reasons.items())),
            rows=self._rows,
        )
