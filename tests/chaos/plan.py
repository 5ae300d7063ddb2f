"""What strikes when: the same seed gives the same faults in the same order, with the same pauses."""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = (
    "kill API",
    "kill worker",
    "kill runner",
    "kill database",
    "kill a connection's process",
    "freeze API",
    "freeze worker",
    "freeze runner",
    "freeze worker with all it started",
    "freeze database",
    "restart worker",
    "restart database, fast",
    "restart database, immediate",
)
SETTINGS = {
    "TILEWRIGHT_REQUIRE_KEYS": "true",
    "TILEWRIGHT_HEARTBEAT_S": "0.5",
    "TILEWRIGHT_STALLED_AFTER_S": "2",
    "TILEWRIGHT_STOP_GRACE_S": "15",
}
FREEZE_S = (0.3, 3.7)
"""Around the 2 s after which a silent worker is given up."""
DOWN_S = (0.0, 1.0)
BEFORE_S = (0.0, 0.6)
TWO_AT_ONCE = 0.25


@dataclass(frozen=True)
class Blow:
    """One fault: after `before_s`, on the target that `which` picks (0 to 1), undone after `hold_s`."""

    kind: str
    which: float
    before_s: float
    hold_s: float


def plan(seed: int, cycles: int) -> list[list[Blow]]:
    """The blows of each cycle, one or two that overlap; every kind comes as often as any other."""
    chance = random.Random(seed)
    deck: list[str] = []

    def draw() -> Blow:
        if not deck:
            deck.extend(chance.sample(KINDS, len(KINDS)))
        kind = deck.pop()
        hold = FREEZE_S if kind.startswith("freeze") else DOWN_S
        return Blow(kind, chance.random(), chance.uniform(*BEFORE_S), chance.uniform(*hold))

    return [[draw() for _ in range(1 + (chance.random() < TWO_AT_ONCE))] for _ in range(cycles)]
