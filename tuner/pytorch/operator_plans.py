"""An operator's plans for tensors of certain layouts: launch a tuned kernel, or call PyTorch's own operator.

The decision is made once for each operator, layouts and numbers, and kept until the process ends or `use` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tilewright.kernels.errors import KernelError
from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch.asked import Asked
from tilewright.tuner.pytorch.plans import PROCESS, Decision, FallbackWarning, Tally, Use, runtime
from tilewright.tuner.pytorch.precision import asks_for_more, may_be_tf32, without_tf32
from tilewright.tuner.pytorch.tuned_call import (
    NoKernelError,
    Output,
    Posed,
    TunedCall,
    layout_key,
    of_decided_rows,
    on_device_of,
    place_of,
)
from tilewright.tuner.turns.contest import Verdict
from tilewright.tuner.turns.opponents import PytorchEvent
from tilewright.tuner.turns.turns import Run, Search, Turns, may_take_turns, wants_ours

if TYPE_CHECKING:  # a program that imports the operators and calls none does not wait for the launcher
    from tilewright.kernels.problem import Problem
    from tilewright.tuner.runtime.any_size.launcher import AnySizeLauncher
    from tilewright.tuner.runtime.choice import Choice
    from tilewright.tuner.runtime.launcher import Launcher


class Found(NamedTuple):
    """The launcher for a call, the call as its problem, and the configuration that would be launched."""

    launcher: Launcher | AnySizeLauncher
    posed: Posed
    choice: Choice


class Plans:
    """The plans of one operator.

    `result(*arguments)` is an output to be filled in, the tensor that the call writes to, or a tuple of outputs;
    `pose(output, *arguments)` raises NoKernelError for what no kernel computes; `pytorch(*arguments)` is PyTorch's own
    operator, with a result of the same layout; `in_tf32()`: whether that computes float32 in TF32 now.
    """

    def __init__(
        self,
        name: str,
        kernel: str,
        result: Callable[..., Any],
        pose: Callable[..., Posed],
        pytorch: Any,
        in_tf32: Callable[[], bool] | None = None,
    ) -> None:
        self._name, self._kernel, self.in_tf32 = name, kernel, in_tf32
        self._result, self._pose, self._pytorch = result, pose, pytorch
        self._by_layout: dict[Hashable, Run | None] = {}
        self._by_rows: dict[Hashable, dict[int, bool]] = {}
        self._found: dict[Hashable, Asked] = {}  # by threads, for calls that are to be decided
        self._era = PROCESS.era

    def run(self, *arguments: Any) -> Any:
        """The operator's result, by what was decided for calls of this layout."""
        if self._era != PROCESS.era:
            self._by_layout, self._by_rows, self._found, self._era = {}, {}, {}, PROCESS.era
        if PROCESS.is_off:
            PROCESS.calls_off[self._name] += 1
            return self._pytorch(*arguments)
        try:
            key = self._key(arguments)
        except RuntimeError:  # a tensor without strides
            return self._pytorch(*arguments)
        ready = self._by_layout.get(key, _undecided)
        if ready is _undecided:
            ready = self._decided(key, arguments)
        if ready is None:
            self._tally(key).pytorch += 1
            return self._pytorch(*arguments)
        try:
            return ready(arguments)
        except TunerError as error:  # an address, which is of one call, or code that does not load
            self._note(key, arguments, error)
            self._tally(key).pytorch += 1
            return self._pytorch(*arguments)

    def _key(self, arguments: Sequence[Any]) -> Hashable:
        """A key shared by calls of one kind; raises RuntimeError for a tensor without strides."""
        key = layout_key(arguments)
        if self.in_tf32 is not None and may_be_tf32(arguments[0]):
            key.append(self.in_tf32())
        return tuple(key)

    def direct_of_rows(self, *arguments: Any, is_timed: bool) -> Callable[[Tensor], Any] | None:
        """A function as of `direct`, for row-major first arguments of any number of rows; None where launches fix it.

        It returns None for numbers of rows that are not decided on yet. `is_timed`: this one is, for ours.
        """
        ready = self._ready(arguments)
        ours = ready.ours if isinstance(ready, Turns) else ready
        if not isinstance(ours, TunedCall):
            return None
        runs = ours.direct_of_rows(arguments)
        if runs is None:
            return None
        by_rows = self._rows_of(ours)
        if is_timed:
            by_rows[arguments[0].numel() // arguments[0].shape[-1]] = True
        return of_decided_rows(runs, ours, self._pytorch, arguments, by_rows)

    def _rows_of(self, ours: TunedCall) -> dict[int, bool]:
        """Whether ours serves each number of rows, as far as it is known, for all layers of that problem."""
        asked = ours.asked
        return self._by_rows.setdefault((asked.launcher, asked.device, asked.in_tf32), {})

    def direct(self, *arguments: Any) -> Callable[[Tensor], Any] | None:
        """A call that ran before as a function of its first argument, which must lie alike; the rest stays as it is.

        It raises TunerError before anything has run. None where PyTorch's own operator does it, or may.
        """
        ready = self._ready(arguments)
        ours = ready.ours if isinstance(ready, Turns) else ready
        if ours is None or isinstance(ours, Search):
            return None
        rest = arguments[1:]
        return (ours.direct(arguments) if isinstance(ours, TunedCall) else None) or (lambda x: ours((x, *rest)))

    def _ready(self, arguments: Sequence[Any]) -> Run | None:
        """The decision for calls of this layout; None where it is PyTorch's, not made yet, or all is off."""
        if self._era != PROCESS.era or PROCESS.is_off:
            return None
        return self._by_layout.get(self._key(arguments))

    def posed(self, *arguments: Any) -> Posed:
        """The call as a problem; raises NoKernelError, and RuntimeError for arguments that do not fit together."""
        return self._pose(self._result(*arguments), *arguments)

    def find(self, *arguments: Any) -> Found:
        """The launcher and the configuration for this call; raises TunerError or KernelError if there are none."""
        output = self._result(*arguments)
        with on_device_of(_first(output)):
            asked, posed = self._asked(output, arguments)
            return Found(asked.launcher, posed, asked.choice)

    def _decided(
        self, key: Hashable, arguments: Sequence[Any], error: Exception | None = None, *, may_search: bool = True
    ) -> Run | None:
        """The run of calls of this layout from now on, None for PyTorch's own; `error`: why nothing was found.

        `may_search`: whether a thread may look for it first.
        """
        ready: Run | None = None
        result = self._result(*arguments)
        outputs = result if isinstance(result, tuple) else (result,)
        if outputs[0].numel() and all(one.numel() for one in arguments if isinstance(one, Tensor)):
            try:
                if error is not None:
                    raise error
                may_search = may_search and outputs[0].is_cuda and may_take_turns()
                may_search = may_search and not self._may_be_coarser(arguments)
                with on_device_of(outputs[0]):
                    found = self._found.pop(key, None) or self._asked_at_once(may_search, result, arguments)
                    ready = (
                        self._search(key, result, arguments)
                        if found is None
                        else self._chosen(key, found, outputs, arguments)
                    )
            except (TunerError, KernelError) as reason:
                self._note(key, arguments, reason)
        if ready is None and self._may_be_coarser(arguments):
            ready = self._as_pytorch(key, is_exact=True)
        self._by_layout[key] = ready
        return ready

    def _may_be_coarser(self, arguments: Sequence[Any]) -> bool:
        """Whether PyTorch's own call would compute in TF32 although the caller asks for FP32."""
        is_tf32 = self.in_tf32 is not None and may_be_tf32(arguments[0]) and self.in_tf32()
        return is_tf32 and asks_for_more(arguments)

    def _chosen(self, key: Hashable, asked: Asked, outputs: Sequence[Tensor], arguments: Sequence[Any]) -> Run | None:
        choice, use, (call, why_not) = asked.choice, asked.first_use, asked.call
        words = f"{choice.configuration} ({choice.match}, from {choice.origin})"
        shown = f"{call}, which was faster than {words}" if call else words
        tally = self._tally(key)
        tally.ours_ms, tally.pytorch_ms = choice.time_ms, choice.library_ms
        ours = TunedCall(asked, [Output.of(one, place_of(arguments, one)) for one in outputs], self._pose, tally)
        ready: Run | None = ours
        if (asked.in_tf32 and asks_for_more(arguments)) or (call and asked.is_named):  # PyTorch's computes another
            self._keep(key, arguments, "", shown)
        elif asked.takes_turns:
            reason = f"takes turns with PyTorch's own call: {shown}"
            self._keep(key, arguments, "" if asked.prefers_ours else "turns", reason)
            ready = self._in_turns(key, ours)
        elif choice.is_behind and not self._was_faster(asked):
            told, more = "was" if choice.is_measured else "is expected to be", f"; {why_not}" if why_not else ""
            self._keep(key, arguments, "library_faster", f"the library {told} faster than {words}{more}")
            return None
        else:
            self._keep(key, arguments, "", words)
        uses = PROCESS.uses.setdefault((self._name, key), [])
        if use is not None and all(one.use is not use for one in uses):
            uses.append(Use(use, asked.launcher, asked.problem, asked.device))  # type: ignore[arg-type]  # no other has uses
        return ready

    @staticmethod
    def _was_faster(asked: Asked) -> bool:
        """Whether ours was, in a comparison of this process, whatever is expected."""
        verdict = PROCESS.contests.verdict(asked.range)
        return verdict is not None and verdict.is_ours

    def _asked_at_once(self, may_search: bool, output: Any, arguments: Sequence[Any]) -> Asked | None:
        """The call's question to a launcher; None where a thread may look for the answer.

        Configurations that a bundle, a lock or the application names are launched from the first call on.
        """
        if may_search and (not PROCESS.is_ready or not runtime().has_named):
            return None
        asked, _ = self._asked(output, arguments)
        return asked if not may_search or asked.launcher.is_known(asked.problem, asked.device) else None

    def _search(self, key: Hashable, output: Any, arguments: Sequence[Any]) -> Search:
        self._keep(key, arguments, "not_found_yet", "PyTorch's own call, until a configuration is found")
        find = partial(self._find, key, output, arguments)
        return Search(find, self._as_pytorch(key), partial(self._decided, key, may_search=False))

    def _find(self, key: Hashable, output: Any, arguments: Sequence[Any]) -> None:
        """Finds the answer for calls of this layout, and loads it unless they take turns; for a thread."""
        found = self._found
        runtime()
        with on_device_of(_first(output)):
            asked, _ = self._asked(output, arguments)
            if not asked.launcher.is_known(asked.problem, asked.device):
                asked.launcher.look_for(asked.problem, asked.device)
            is_launched = not asked.takes_turns and (asked.call[0] or not asked.choice.is_behind)
            load = asked.launcher.loading_of(asked.problem, asked.device) if is_launched else None
            if load is not None:
                with suppress(TunerError, KernelError):  # the first launch says what failed
                    load()
        found[key] = asked

    def _in_turns(self, key: Hashable, ours: TunedCall) -> Run | None:
        """Ours and PyTorch's call, until times of their range decide; the decision then replaces the records'.

        Where it was decided, and nothing takes turns now, who won; None for PyTorch's call.
        """
        era, tally, asked = PROCESS.era, self._tally(key), ours.asked
        if asked.call[0]:  # of which the records say nothing beside PyTorch's
            tally.ours_ms, tally.pytorch_ms = asked.choice.library_ms, None

        def decided(verdict: Verdict) -> None:
            if era != PROCESS.era:
                return
            self._by_layout[key] = ours if verdict.is_ours else None
            before, reason = PROCESS.decisions[self._name, key], asked.note(verdict, tally)
            words, fallback = before.reason.partition(": ")[2], "" if verdict.is_ours else "slower"
            PROCESS.decisions[self._name, key] = before._replace(
                is_ours=verdict.is_ours, reason=f"{reason}; {words}", fallback=fallback
            )

        verdict = asked.contest().verdict
        if verdict is not None and not may_take_turns() and not wants_ours():
            decided(verdict)
            return ours if verdict.is_ours else None
        return Turns(
            ours,
            self._as_pytorch(key),
            asked.contest(),
            load=asked.launcher.loading_of(asked.problem, asked.device),
            decided=decided,
            event=partial(PytorchEvent, asked.device),
            expected_ms=asked.expected_ms,
        )

    def wait(self) -> None:
        """Waits until all that takes turns is loaded."""
        for ready in list(self._by_layout.values()):
            if isinstance(ready, Turns):
                ready.wait()

    def settle(self, problem: Problem, device: str, ours_ms: float, pytorch_ms: float) -> None:
        """Ends the turns of a range: others have timed both calls at this problem, and ours is faster."""
        named = {**problem.stated_shape, **problem.options}
        launcher = runtime().operator_launcher(self._kernel, named, problem.dtype)
        asked = Asked(self._name, launcher, problem, device)
        ours, pytorch = (time_ms / asked.expected_ms for time_ms in (ours_ms, pytorch_ms))
        asked.contest().verdict = Verdict(is_ours=True, ours=ours, library=pytorch)

    def _as_pytorch(self, key: Hashable, *, is_exact: bool = False) -> Run:
        tally = self._tally(key)

        def run(arguments: Sequence[Any]) -> Any:
            tally.pytorch += 1
            with without_tf32() if is_exact else nullcontext():
                return self._pytorch(*arguments)

        return run

    def _tally(self, key: Hashable) -> Tally:
        return PROCESS.tallies.setdefault((self._name, key), Tally())

    def _asked(self, output: Any, arguments: Sequence[Any]) -> tuple[Asked, Posed]:
        """The call's question to a launcher, and its arrays; raises TunerError or KernelError without a kernel."""
        first = _first(output)
        if first.device.type not in {"cpu", "cuda"}:
            raise NoKernelError(f"kernels run on CUDA GPUs and on the CPU, not on {first.device.type}")
        for one in arguments:
            if isinstance(one, Tensor) and (one.layout is not torch.strided or one.is_neg() or one.is_conj()):
                raise NoKernelError("what lies in memory is not the matrix: it is sparse, negated or conjugated")
        posed = self._pose(output, *arguments)
        dtype = str(first.dtype).removeprefix("torch.")
        launcher = runtime().operator_launcher(self._kernel, posed.named, dtype)
        in_tf32 = self.in_tf32 is not None and may_be_tf32(first) and self.in_tf32()
        return Asked(self._name, launcher, *launcher.posed(*posed.arrays), in_tf32), posed

    def _keep(self, key: Hashable, arguments: Sequence[Any], fallback: str, reason: str) -> None:
        shown = [tuple(one.shape) if isinstance(one, Tensor) else one for one in arguments]
        first = next(one for one in arguments if isinstance(one, Tensor))
        call = f"{', '.join(map(str, shown))} {str(first.dtype).removeprefix('torch.')}"
        PROCESS.decisions[self._name, key] = Decision(
            self._name, call, str(first.device), not fallback, reason, fallback=fallback
        )

    def _note(self, key: Hashable, arguments: Sequence[Any], error: Exception) -> None:
        """Keeps the reason, and warns of the first of its kind; what nobody tunes any more is not looked up again."""
        from tilewright.tuner.runtime.errors import UntunedError, warn  # noqa: PLC0415 - see above

        if isinstance(error, UntunedError):
            self._by_layout[key] = None
        self._keep(key, arguments, _FALLBACKS.get(type(error).__name__, "failed"), str(error))
        if PROCESS.warned.setdefault((self._name, type(error)), error) is error:
            warn(
                f"tilewright::{self._name} runs as PyTorch's own operator: {error} "
                "(The first case of its kind; tilewright.torch.status() lists them all.)",
                FallbackWarning,
                through=("tilewright.", "torch."),
            )


_FALLBACKS = {"UntunedError": "untuned", "NoKernelError": "no_kernel", "NoRoomError": "no_memory"}
"""Words by the name of an error's class, as these are not imported here; others are failures."""


def _undecided(_arguments: Sequence[Any]) -> Any:
    """A mark in the place of what runs a call that comes for the first time."""
    raise NotImplementedError


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output
