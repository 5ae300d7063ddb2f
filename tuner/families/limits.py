"""The limits of tuning a family, and its callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.kernels.family import Family
from tilewright.tuner.errors import TunerError
from tilewright.tuner.families.representative import FIRST, spread


@dataclass(frozen=True)
class FamilyBudget:
    """How long each of the first sizes is searched: seconds, trials, or whichever comes first.

    With 0 seconds none is: all that is measured is what records of other problems let expect.
    """

    seconds: float | None = 3.0
    trials: int | None = None
    sizes: int = FIRST

    @classmethod
    def of_all(cls, family: Family, trials: int | None, seconds: float | None) -> FamilyBudget:
        """Each size's budget, from limits of all searches together; there are fewer sizes than trials."""
        sizes = max(2, min(FIRST, trials or FIRST))
        count = len(spread(family.low, family.high, sizes))
        return cls(seconds and seconds / count, trials and max(1, trials // count), sizes)


class FamilyStoppedError(TunerError):
    """The tuning was stopped before its table was verified."""


@dataclass(frozen=True)
class FamilyHooks:
    """Callbacks of the tuning of a family: a line now and then, the number of trials, and whether to stop."""

    say: Callable[[str], None] = lambda _line: None
    on_trial: Callable[[int], None] = lambda _count: None
    should_stop: Callable[[], bool] = lambda: False


NO_HOOKS = FamilyHooks()
