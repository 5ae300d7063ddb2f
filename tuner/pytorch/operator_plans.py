"""What an operator does with tensors of certain layouts: launch a tuned kernel, or call PyTorch's own operator.

The decision is made once for each operator, layouts and numbers, and kept until the process ends or `use` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tilewright.kernels.errors import KernelError
from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch.contest import Verdict, range_of
from tilewright.tuner.pytorch.plans import PROCESS, Decision, FallbackWarning, Tally, Use, runtime
from tilewright.tuner.pytorch.precision import ALLOWED, allowed
from tilewright.tuner.pytorch.tuned_call import NoKernelError, Output, Posed, TunedCall, on_device_of, place_of
from tilewright.tuner.pytorch.turns import Run, Search, Turns, may_take_turns

if TYPE_CHECKING:  # a program that imports the operators and calls none does not wait for the launcher
    from tilewright.kernels.problem import Problem
    from tilewright.tuner.runtime.any_size.launcher import AnySizeLauncher
    from tilewright.tuner.runtime.choice import Choice
    from tilewright.tuner.runtime.launcher import Launcher


def layout_key(argument: Any) -> Hashable:
    """What selects a plan: a tensor's dtype, shape, strides and device; of a number only whether it is 0.

    Raises RuntimeError for a tensor without strides, such as a sparse one.
    """
    if isinstance(argument, Tensor):
        one = argument
        return one.dtype, one.shape, one.stride(), one.device, one.layout, one.is_neg()
    if isinstance(argument, float):
        return "zero" if argument == 0 else "number"
    if argument == ALLOWED:
        return argument, allowed()
    return tuple(argument) if isinstance(argument, list) else argument


class Found(NamedTuple):
    """The launcher for a call, the call as its problem, and the configuration that would be launched."""

    launcher: Launcher | AnySizeLauncher
    posed: Posed
    choice: Choice


class Launched(NamedTuple):
    """What a launcher of one problem launches for a call: its configuration, or the library's `call` in its place.

    `why_not`: why there is none where the library was faster. `use`: what has to be asked to have it verified.
    """

    launcher: Launcher
    problem: Problem
    device: str
    call: str | None
    why_not: str
    use: Use | None

    @classmethod
    def of(cls, launcher: Launcher, posed: Posed, choice: Choice) -> Launched:
        """That of a choice for this call."""
        from tilewright.tuner.runtime.library_calls import call_of  # noqa: PLC0415 - see above

        problem, device = launcher.posed(*posed.arrays)
        first_use = launcher.first_use(problem, device, choice)
        use = None if first_use is None else Use(first_use, launcher, problem, device)
        return cls(launcher, problem, device, *call_of(problem, choice), use)


class Plans:
    """The plans of one operator.

    `result(*arguments)` is an output to be filled in, the tensor that the call writes to, or a tuple of outputs;
    `pose(output, *arguments)` raises NoKernelError for what no kernel computes; `pytorch(*arguments)` is PyTorch's own
    operator, with a result of the same layout.
    """

    def __init__(
        self, name: str, kernel: str, result: Callable[..., Any], pose: Callable[..., Posed], pytorch: Any
    ) -> None:
        self._name, self._kernel = name, kernel
        self._result, self._pose, self._pytorch = result, pose, pytorch
        self._by_layout: dict[Hashable, Run | None] = {}
        self._era = PROCESS.era

    def run(self, *arguments: Any) -> Any:
        """The operator's result."""
        if self._era != PROCESS.era:
            self._by_layout, self._era = {}, PROCESS.era
        if PROCESS.is_off:
            PROCESS.calls_off[self._name] += 1
            return self._pytorch(*arguments)
        try:
            key = tuple([layout_key(one) for one in arguments])
        except RuntimeError:  # a tensor without strides
            return self._pytorch(*arguments)
        ready = self._by_layout[key] if key in self._by_layout else self._decided(key, arguments)
        if ready is None:
            self._tally(key).pytorch += 1
            return self._pytorch(*arguments)
        try:
            return ready(arguments)
        except TunerError as error:  # an address, which is of one call, or code that does not load
            self._note(key, arguments, error)
            self._tally(key).pytorch += 1
            return self._pytorch(*arguments)

    def direct_of_rows(self, *arguments: Any) -> Callable[[Tensor], Any] | None:
        """As `direct`, for row-major first arguments of any number of rows; None where the launch is for one number."""
        ours = self._ready(arguments)
        return ours.direct_of_rows(arguments) if isinstance(ours, TunedCall) else None

    def direct(self, *arguments: Any) -> Callable[[Tensor], Any] | None:
        """What a call that ran before does with another first argument that lies alike, the rest staying as it is.

        It raises TunerError before anything has run. None where it is PyTorch's own operator that does it, or may be.
        """
        ready = self._ready(arguments)
        ours = ready.ours if isinstance(ready, Turns) else ready
        if ours is None or isinstance(ours, Search):
            return None
        rest = arguments[1:]
        return (ours.direct(arguments) if isinstance(ours, TunedCall) else None) or (lambda x: ours((x, *rest)))

    def _ready(self, arguments: Sequence[Any]) -> Run | None:
        """What was decided for calls of this layout; None where that is PyTorch's, not decided yet, or all is off."""
        if self._era != PROCESS.era or PROCESS.is_off:
            return None
        return self._by_layout.get(tuple([layout_key(one) for one in arguments]))

    def posed(self, *arguments: Any) -> Posed:
        """The call as a problem; raises NoKernelError, and RuntimeError for what does not go together."""
        return self._pose(self._result(*arguments), *arguments)

    def find(self, *arguments: Any) -> Found:
        """The launcher and the configuration for this call; raises TunerError or KernelError if there are none."""
        output = self._result(*arguments)
        with on_device_of(_first(output)):
            return self._found(output, arguments)

    def _decided(self, key: Hashable, arguments: Sequence[Any], error: Exception | None = None) -> Run | None:
        """What calls of this layout run from now on, None for PyTorch's own; `error`: why nothing was found."""
        ready: Run | None = None
        result = self._result(*arguments)
        outputs = result if isinstance(result, tuple) else (result,)
        if outputs[0].numel() and all(one.numel() for one in arguments if isinstance(one, Tensor)):
            try:
                if error is not None:
                    raise error
                with on_device_of(outputs[0]):
                    ready = self._chosen(key, result, outputs, arguments)
            except (TunerError, KernelError) as reason:
                self._note(key, arguments, reason)
        self._by_layout[key] = ready
        return ready

    def _chosen(self, key: Hashable, output: Any, outputs: Sequence[Tensor], arguments: Sequence[Any]) -> Run | None:
        may_search = outputs[0].is_cuda and may_take_turns()
        if may_search and not PROCESS.is_ready:
            return self._search(key, arguments, runtime)
        from tilewright.tuner.runtime.any_size.launcher import AnySizeLauncher  # noqa: PLC0415 - see above

        launcher, posed = self._launcher(output, arguments)
        if may_search and not isinstance(launcher, AnySizeLauncher):
            problem, device = launcher.posed(*posed.arrays)
            if not launcher.is_known(problem, device):
                return self._search(key, arguments, partial(launcher.look_for, problem, device))
        choice = launcher.choice(*posed.arrays)
        tally = self._tally(key)
        tally.ours_ms, tally.pytorch_ms = choice.time_ms, choice.library_ms
        ours = TunedCall(launcher, [Output.of(one, place_of(arguments, one)) for one in outputs], self._pose, tally)
        # A launcher of every size checks each of its configurations itself.
        launched = None if isinstance(launcher, AnySizeLauncher) else Launched.of(launcher, posed, choice)
        words, use = f"{choice.configuration} ({choice.match}, from {choice.origin})", launched and launched.use
        called = f"{launched.call}, which was faster than {words}" if launched is not None and launched.call else ""
        if called and choice.origin == "pinned":  # a lock names it
            self._keep(key, arguments, "", called)
            ready: Run | None = ours
        elif launched is not None and (use is not None or called) and outputs[0].is_cuda:
            reason = f"takes turns with PyTorch's own call: {called or words}"
            self._keep(key, arguments, "turns" if choice.is_behind else "", reason)
            ready = self._in_turns(key, ours, launched, choice)
        elif choice.is_behind:
            faster = "was" if choice.is_measured else "is expected to be"
            why_not = f"; {launched.why_not}" if launched is not None and launched.why_not else ""
            self._keep(key, arguments, "library_faster", f"the library {faster} faster than {words}{why_not}")
            return None
        else:
            self._keep(key, arguments, "", words)
            ready = ours
        uses = PROCESS.uses.setdefault((self._name, key), [])
        if use is not None and all(one.use is not use.use for one in uses):
            uses.append(use)
        return ready

    def _search(self, key: Hashable, arguments: Sequence[Any], find: Callable[[], object]) -> Search:
        self._keep(key, arguments, "not_found_yet", "PyTorch's own call, until a configuration is found")
        return Search(find, self._as_pytorch(key), partial(self._decided, key))

    def _in_turns(self, key: Hashable, ours: TunedCall, launched: Launched, choice: Choice) -> Turns:
        """Ours and PyTorch's call, until the times of their range decide; that then holds as what the records say.

        Of a call of the library the records say nothing beside PyTorch's, and its range is its problem alone.
        """
        era, tally = PROCESS.era, self._tally(key)
        launcher, problem, device = launched[:3]
        if launched.call:
            tally.ours_ms, tally.pytorch_ms = choice.library_ms, None
        expected_ms = (choice.library_ms if launched.call else choice.time_ms) or 1.0
        has_range = choice.time_ms is not None and not launched.call
        of_range = range_of(launcher.kernel, problem, choice.configuration) if has_range else key
        contest = PROCESS.contests.of((self._name, device, of_range), prefers_ours=not choice.is_behind)

        def decided(verdict: Verdict) -> None:
            if era != PROCESS.era:
                return
            self._by_layout[key] = ours if verdict.is_ours else None
            reason = "the calls were host-bound: too few could be timed"
            if verdict.ours is not None and verdict.pytorch is not None:
                tally.ours_ms, tally.pytorch_ms = verdict.ours * expected_ms, verdict.pytorch * expected_ms
                times = f"ours {tally.ours_ms:.4g} ms, PyTorch's {tally.pytorch_ms:.4g} ms"
                reason = f"{times}, {verdict.calls} calls each"
            before = PROCESS.decisions[self._name, key]
            words, fallback = before.reason.partition(": ")[2], "" if verdict.is_ours else "slower"
            PROCESS.decisions[self._name, key] = before._replace(
                is_ours=verdict.is_ours, reason=f"{reason}; {words}", fallback=fallback
            )

        load = partial(launcher.load_for, problem, device)
        return Turns(ours, self._as_pytorch(key), contest, load=load, decided=decided, expected_ms=expected_ms)

    def _as_pytorch(self, key: Hashable) -> Run:
        tally = self._tally(key)

        def run(arguments: Sequence[Any]) -> Any:
            tally.pytorch += 1
            return self._pytorch(*arguments)

        return run

    def _tally(self, key: Hashable) -> Tally:
        return PROCESS.tallies.setdefault((self._name, key), Tally())

    def _found(self, output: Any, arguments: Sequence[Any]) -> Found:
        launcher, posed = self._launcher(output, arguments)
        return Found(launcher, posed, launcher.choice(*posed.arrays))

    def _launcher(self, output: Any, arguments: Sequence[Any]) -> tuple[Launcher | AnySizeLauncher, Posed]:
        first = _first(output)
        if first.device.type not in {"cpu", "cuda"}:
            raise NoKernelError(f"kernels run on CUDA GPUs and on the CPU, not on {first.device.type}")
        for one in arguments:
            if isinstance(one, Tensor) and (one.layout is not torch.strided or one.is_neg() or one.is_conj()):
                raise NoKernelError("what lies in memory is not the matrix: it is sparse, negated or conjugated")
        posed = self._pose(output, *arguments)
        dtype = str(first.dtype).removeprefix("torch.")
        return runtime().operator_launcher(self._kernel, posed.named, dtype), posed

    def _keep(self, key: Hashable, arguments: Sequence[Any], fallback: str, reason: str) -> None:
        shown = [tuple(one.shape) if isinstance(one, Tensor) else one for one in arguments]
        first = next(one for one in arguments if isinstance(one, Tensor))
        call = f"{', '.join(map(str, shown))} {str(first.dtype).removeprefix('torch.')}"
        PROCESS.decisions[self._name, key] = Decision(
            self._name, call, str(first.device), not fallback, reason, fallback=fallback
        )

    def _note(self, key: Hashable, arguments: Sequence[Any], error: Exception) -> None:
        """Keeps the reason, and warns of the first of its kind; what is not tuned any more is not looked for again."""
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
"""By the kind of error, whose classes are not imported here; others are failures."""


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output
