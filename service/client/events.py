"""Server-sent events of a job, read from a stream of lines (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

FINISHED = frozenset({"done", "failed", "cancelled"})
"""Job states after which nothing more happens."""


@dataclass(frozen=True)
class JobEvent:
    """One event: its id (to resume after), `trial` or `state`, and its data."""

    id: str | None
    event: str
    data: dict[str, Any]

    @property
    def is_last(self) -> bool:
        """Whether the job has ended with it."""
        return self.event == "state" and self.data.get("state") in FINISHED


def parse_events(lines: Iterable[str], last_id: str | None = None) -> Iterator[JobEvent]:
    """Every complete event whose data is a JSON object; comments (a server's keep-alive) are skipped."""
    event, data = "message", list[str]()
    for line in lines:
        if not line:
            if data:
                value = json.loads("\n".join(data))
                yield JobEvent(last_id, event, value if isinstance(value, dict) else {"value": value})
            event, data = "message", []
            continue
        name, _, text = line.partition(":")
        text = text.removeprefix(" ")
        if name == "event":
            event = text
        elif name == "data":
            data.append(text)
        elif name == "id" and "\0" not in text:
            last_id = text
