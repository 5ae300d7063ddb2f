"""The report of a check of one's own kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "note"]
"""An error: it will not be tuned rightly. A note: it can be tuned, and something about it is worth to know."""

Part = Literal["declaration", "space", "compile", "result", "memory"]


@dataclass(frozen=True)
class Finding:
    """One line: what is wrong, where it was seen first, and in how many places altogether."""

    severity: Severity
    part: Part
    where: str
    message: str
    places: int = 1

    def __str__(self) -> str:
        more = f" (and {self.places - 1} more)" if self.places > 1 else ""
        where = f"{self.where}{more}: " if self.where else ""
        return f"{self.part}: {where}{self.message}"


@dataclass(frozen=True)
class SpaceSize:
    """How many configurations a variant has for the example: all combinations, and those that constraints leave."""

    variant: str
    dtype: str
    target: str  # an architecture, such as sm_90, or cpu
    before: int
    after: int


@dataclass
class KernelCheckReport:
    """All findings of a check, which tries some configurations and not all: it is right as far as these."""

    kernel: str
    findings: list[Finding] = field(default_factory=list)
    spaces: list[SpaceSize] = field(default_factory=list)
    compiled: int = 0
    verified: int = 0
    sanitized: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is nothing worse than a note."""
        return all(finding.severity != "error" for finding in self.findings)

    def add(self, findings: Iterable[Finding]) -> None:
        """Adds findings; one that says the same of the same part elsewhere is counted, not repeated."""
        for new in findings:
            for place, known in enumerate(self.findings):
                if (known.severity, known.part, known.message) == (new.severity, new.part, new.message):
                    counted = Finding(known.severity, known.part, known.where, known.message, known.places + new.places)
                    self.findings[place] = counted
                    break
            else:
                self.findings.append(new)
