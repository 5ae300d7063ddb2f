"""Calls of a replaced layer with any number of rows: who computes each was decided by its range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from tilewright.tuner.pytorch.plans import PROCESS
from tilewright.tuner.pytorch.tuned_call import TunedCall
from tilewright.tuner.turns.turns import may_take_turns


def of_decided_rows(
    runs: Callable[[Tensor, int], Any],
    ours: TunedCall,
    pytorch: Callable[..., Any],
    arguments: Sequence[Any],
    by_rows: dict[int, bool],
) -> Callable[[Tensor], Any]:
    """What `runs` does where ours serves the rows, PyTorch's call where that does, None where the next calls decide.

    `arguments`: of the operator, of which only the first changes. `by_rows`: whether ours serves them, where known.
    """
    length, rest, tally = arguments[0].shape[-1], arguments[1:], ours.tally

    def call(x: Tensor) -> Any:
        rows = x.numel() // length
        is_ours = by_rows.get(rows)
        if is_ours is None:
            is_ours = _is_ours(ours, rows, by_rows) if rows else None
        if is_ours is None:
            return None
        if is_ours:
            return runs(x, rows)
        tally.pytorch += 1
        return pytorch(x, *rest)

    return call


def _is_ours(ours: TunedCall, rows: int, by_rows: dict[int, bool]) -> bool | None:
    """Whether ours serves that number of rows, which is noted where it is certain; None while turns are taken."""
    asked = ours.asked.of_rows(rows)
    verdict = PROCESS.contests.verdict(asked.range)
    if verdict is None and asked.takes_turns:
        return None if may_take_turns() else asked.prefers_ours
    by_rows[rows] = not asked.choice.is_behind if verdict is None else verdict.is_ours
    return by_rows[rows]
