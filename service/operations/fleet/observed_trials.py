"""Sums over all trials measured in this installation, kept current by reading only new ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from tilewright.service.store import models

CHUNK = 2_000_000
"""Trials of one look: a new process of a large installation catches up in several, each well under its time limit."""

SETTLED = text("INTERVAL '10 minutes'")
"""Older trials are all committed: an id is taken in a transaction's last step, and visible at its end."""


@dataclass
class TrialSum:
    """Trials of one device model and outcome: number, seconds, how many were compiled and how many from the cache."""

    count: int = 0
    seconds: float = 0.0
    compiled: int = 0
    from_cache: int = 0

    def plus(self, count: int, seconds: float, compiled: int, from_cache: int) -> TrialSum:
        """The sum with these trials added."""
        return TrialSum(
            self.count + count, self.seconds + seconds, self.compiled + compiled, self.from_cache + from_cache
        )


TrialSums = Mapping[tuple[str, str], TrialSum]
"""Sums over trials by device model and outcome."""


class TrialTally:
    """Sums of the trials that workers measured; imported ones were measured elsewhere and do not count.

    Every new process arrives at the same sums, and they only grow: trials are never deleted.
    """

    def __init__(self) -> None:
        self._counted_to = 0  # every trial up to this id is in the sums for good
        self._sums: dict[tuple[str, str], TrialSum] = defaultdict(TrialSum)

    def look(self, session: Session) -> TrialSums | None:
        """The sums as of now; None while this process has not caught up yet."""
        table = models.Trial
        newest = session.scalar(select(func.max(table.id))) or 0
        if newest - self._counted_to > CHUNK:
            self._settle(session, self._counted_to + CHUNK)
            return None
        settled = session.scalar(
            select(func.max(table.id)).where(
                table.id > self._counted_to, table.device_id.is_not(None), table.created_at < func.now() - SETTLED
            )
        )
        if settled is not None:
            self._settle(session, settled)
        return _added(self._sums, session, self._counted_to, newest)

    def _settle(self, session: Session, up_to: int) -> None:
        self._sums = _added(self._sums, session, self._counted_to, up_to)
        self._counted_to = up_to


def _added(
    sums: Mapping[tuple[str, str], TrialSum], session: Session, after: int, up_to: int
) -> dict[tuple[str, str], TrialSum]:
    table, device, model = models.Trial, models.Device, models.DeviceModel
    rows = session.execute(
        select(
            model.slug,
            table.outcome,
            func.count(),
            func.sum(table.wall_s),
            func.count().filter(table.compile_ms > 0),
            func.count().filter(table.compile_ms == 0),
        )
        .join(device, table.device_id == device.id)
        .join(model, device.model_id == model.id)
        .where(table.id > after, table.id <= up_to)
        .group_by(model.slug, table.outcome)
    )
    new_sums = defaultdict(TrialSum, sums)
    for slug, outcome, count, seconds, compiled, from_cache in rows:
        new_sums[slug, outcome.value] = new_sums[slug, outcome.value].plus(count, seconds, compiled, from_cache)
    return new_sums
