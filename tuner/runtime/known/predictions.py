"""Predictions from shipped records, kept on disk, since each takes about a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.runtime.choice import Choice, TargetDevice
from tilewright.tuner.runtime.first_use.first_use import FirstUses
from tilewright.tuner.runtime.known.answers import AnswerCache

Predict = Callable[[Kernel, Problem, TargetDevice], Mapping[str, Any] | None]

NO_GPU = (0, 0)
"""The compute capability of a CPU device, of which nothing is shipped: to find that out takes half a second."""


class Predictions:
    """Predictions in that folder; none where there is no folder."""

    def __init__(self, folder: Path | None, uses: FirstUses) -> None:
        self._kept, self._uses = AnswerCache(folder) if folder else None, uses

    def of(
        self, kernel: Kernel, problem: Problem, place: TargetDevice, predict: Predict | None = None
    ) -> Choice | None:
        """The prediction, made unless it is kept; None where shipped records have none."""
        if self._kept is None or place.limits.compute_capability == NO_GPU:
            return None
        known = self.kept(kernel, problem, place)
        if known is None:
            from tilewright.tuner.runtime.known.shipped import shipped_answer  # noqa: PLC0415 - seldom needed

            answer = (predict or shipped_answer)(kernel, problem, place)
            if answer is None:
                return None
            self._kept.put(problem, place, answer)
            known = Choice.from_facts(answer, "shipped")
        elif self._uses.is_withdrawn(kernel, problem, place, known):
            return None
        return replace(known, origin="shipped")

    def make(self, kernel: Kernel, problems: Iterable[Problem], place: TargetDevice) -> None:
        """Makes and keeps the predictions for these problems, several at once if there are cores for that."""
        from tilewright.tuner.runtime.known.prediction_process import answers_at_once  # noqa: PLC0415 - seldom needed

        if self._kept is None or place.limits.compute_capability == NO_GPU:
            return
        missing = [one for one in problems if self.kept(kernel, one, place) is None]
        for problem, answer in answers_at_once(kernel, missing, place).items():
            if answer is not None:
                self._kept.put(problem, place, answer)

    def kept(self, kernel: Kernel, problem: Problem, place: TargetDevice) -> Choice | None:
        """The prediction on disk."""
        return None if self._kept is None else self._kept.get(kernel, problem, place)
