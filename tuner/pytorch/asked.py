"""An operator's question to a launcher: a problem on a device, and what decides which side computes it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tilewright.tuner.turns import turns
from tilewright.tuner.turns.contest import Contest, Range, Verdict

if TYPE_CHECKING:  # a program that imports the operators and calls none does not wait for the launcher
    from tilewright.kernels.problem import Problem
    from tilewright.tuner.pytorch.plans import Tally
    from tilewright.tuner.runtime.any_size.launcher import AnySizeLauncher
    from tilewright.tuner.runtime.choice import Choice
    from tilewright.tuner.runtime.first_use.first_use import FirstUse
    from tilewright.tuner.runtime.launcher import Launcher


class Asked(NamedTuple):
    """A problem, its device and the launcher for it. `in_tf32`: PyTorch's own call computes it in TF32."""

    operator: str
    launcher: Launcher | AnySizeLauncher
    problem: Problem
    device: str
    in_tf32: bool = False

    @property
    def choice(self) -> Choice:
        """The configuration, with the times at this size."""
        return self.launcher.choice_for(self.problem, self.device)

    @property
    def call(self) -> tuple[str | None, str]:
        """The library's call that is launched instead of the configuration; or None and why, where it was faster."""
        from tilewright.tuner.runtime.launches.library_calls import call_of  # noqa: PLC0415 - see above

        is_of_one_size = getattr(self.launcher, "family", None) is None
        return call_of(self.problem, self.choice) if is_of_one_size else (None, "")

    @property
    def is_named(self) -> bool:
        """Whether a lock or a bundle names the choice."""
        from tilewright.tuner.runtime.choice import NAMED  # noqa: PLC0415 - see above

        return self.choice.origin in NAMED

    @property
    def expected_ms(self) -> float:
        """The time that is expected of the launch at this size, in ms."""
        return (self.choice.library_ms if self.call[0] else self.choice.time_ms) or 1.0

    @property
    def first_use(self) -> FirstUse | None:
        """The check of the choice; None where none is needed, or the launcher does it by itself."""
        return self.launcher.first_use(self.problem, self.device, self.choice)

    @property
    def range(self) -> Range:
        """A key shared by first calls that decide together; a call of the library shares only its problem's."""
        of_range = self.problem if self.call[0] else self.launcher.range_of(self.problem, self.device)
        return self.operator, self.device, of_range

    @property
    def is_beside(self) -> bool:
        """Whether the records count against PyTorch's call: not FP32 where that is TF32, nor the library's calls."""
        return not self.call[0] and (not self.in_tf32 or self.problem.options.get("accuracy") == "tf32")

    @property
    def takes_turns(self) -> bool:
        """Whether first calls decide, on a GPU: not if both were measured here, or somebody named the choice."""
        return turns.has_events(self.device) and self.launcher.takes_turns(self.choice, is_beside=self.is_beside)

    @property
    def prefers_ours(self) -> bool:
        """Whether the records say that ours is faster than PyTorch's call, which turns may correct."""
        return not self.choice.is_behind and self.is_beside

    def of_rows(self, rows: int) -> Asked:
        """The same question for another size along the axis that the launcher leaves open."""
        axis = getattr(self.launcher, "family").axis  # noqa: B009 - only a launcher of every size is asked
        return self._replace(problem=self.problem.with_size(axis, rows))

    def contest(self) -> Contest:
        """The contest of the range; the service is told of its verdict."""
        from tilewright.tuner.pytorch.plans import PROCESS, runtime  # noqa: PLC0415 - see above

        told = partial(runtime().claim_times, self.launcher.kernel, self.problem, self.device, self.choice)
        return PROCESS.contests.of(self.range, prefers_ours=self.prefers_ours, told=told)

    def note(self, verdict: Verdict, tally: Tally) -> str:
        """Keeps the verdict's times for this size; the sentence about them."""
        if verdict.ours is None or verdict.library is None:
            return "the calls were host-bound: too few could be timed"
        tally.ours_ms, tally.pytorch_ms = verdict.ours * self.expected_ms, verdict.library * self.expected_ms
        return f"ours {tally.ours_ms:.4g} ms, PyTorch's {tally.pytorch_ms:.4g} ms, {verdict.calls} calls each"
