"""How long recovering took, kept for the table of docs/faults.md where TILEWRIGHT_FAULT_TIMES names a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fleet import QUICK, Fleet

SHOWN = {
    "TILEWRIGHT_HEARTBEAT_S": "heartbeat",
    "TILEWRIGHT_STALLED_AFTER_S": "stalled",
    "TILEWRIGHT_STOP_GRACE_S": "grace",
}


@dataclass
class Recovery:
    """One fault: what it is, what happens then, and how long that took."""

    fault: str
    happens: str
    until: str
    settings: Mapping[str, str] = field(default_factory=lambda: QUICK)
    struck_at: datetime | None = None
    took_s: float | None = None

    def strikes(self) -> None:
        """The fault comes now."""
        self.struck_at = datetime.now(UTC)

    def is_over(self, at: datetime | None = None) -> float:
        """Seconds from the fault until `at`, or until now; written down."""
        self.took_s = ((at or datetime.now(UTC)) - self.struck_at).total_seconds()
        assert self.took_s > 0
        if path := os.environ.get("TILEWRIGHT_FAULT_TIMES"):
            shown = ", ".join(f"{name} {self.settings[key]} s" for key, name in SHOWN.items())
            entry = {
                "fault": self.fault,
                "happens": self.happens,
                "until": self.until,
                "seconds": round(self.took_s, 2),
                "settings": shown,
            }
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        return self.took_s

    def is_over_with_a_trial(self, fleet: Fleet, job_id, epoch: int | None = None, skip: int = 0) -> float:
        """The same, until the first trial recorded after the fault (under that epoch; without the first few)."""

        def first():
            after = [
                trial.created_at
                for trial in fleet.trials(job_id)
                if trial.created_at > self.struck_at and epoch in {None, trial.epoch}
            ]
            return sorted(after)[skip] if len(after) > skip else None

        return self.is_over(fleet.until(first))
