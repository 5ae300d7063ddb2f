"""What an operator does with tensors of certain layouts: launch a tuned kernel, or call PyTorch's own operator.

The decision is made once for each operator, layouts and numbers, and kept until the process ends or `use` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tilewright.kernels.errors import KernelError
from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch.turns import Run, Search, Turns, held, may_take_turns
from tilewright.tuner.switches import is_on

if TYPE_CHECKING:  # a program that imports the operators and calls none does not wait for the launcher
    from tilewright.kernels.problem import Problem
    from tilewright.tuner.runtime.any_size.launcher import AnySizeLauncher, BoundSize
    from tilewright.tuner.runtime.choice import Choice
    from tilewright.tuner.runtime.first_use.first_use import FirstUse
    from tilewright.tuner.runtime.launcher import BoundLaunch, Launcher
    from tilewright.tuner.runtime.runtime import Runtime


class FallbackWarning(UserWarning):
    """An operator runs as PyTorch's own; the message says why."""


class NoKernelError(TunerError):
    """No kernel computes this, whatever is tuned."""


@dataclass(frozen=True)
class Posed:
    """A call as a problem: axes and options by name, the arrays in the kernel's order, numbers that are not 1.

    `kept`: the places of arrays that are the same in every call of this kind, such as zeros in place of a bias.
    """

    named: Mapping[str, Any]
    arrays: Sequence[Tensor]
    numbers: Mapping[str, float] = field(default_factory=dict)
    kept: frozenset[int] = frozenset()


class Decision(NamedTuple):
    """What an operator does for one kind of call, and why. `is_ours`: it launches a tuned kernel.

    `check`: of configurations that were never verified at their shape whether that was checked, is pending, or why one
    was withdrawn; empty where there is nothing to check.
    """

    operator: str
    call: str
    device: str
    is_ours: bool
    reason: str
    check: str = ""


class _Use(NamedTuple):
    """A configuration that was decided on, and what has to be asked to have it verified."""

    use: FirstUse
    launcher: Launcher
    problem: Problem
    device: str


class _Process:
    """What was decided in this process, and by which runtime."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self.decisions: dict[Hashable, Decision] = {}
        self.uses: dict[Hashable, list[_Use]] = {}  # by the same keys, all that were not verified at their shape
        self.is_listening = False
        self.warned: dict[tuple[str, type[Exception]], Exception] = {}
        self.era = 0  # plans of an earlier one are made anew
        self.is_off = is_on("TILEWRIGHT_OFF")
        self.is_ready = False  # the launcher is imported and its runtime made, which takes a quarter of a second


_PROCESS = _Process()


def use(runtime: Runtime | None) -> None:
    """Takes configurations from this runtime from now on; None: from the environment's, as at the start.

    Make it with `only_tuned=True`: otherwise problems without a result run with a kernel's default configuration.
    """
    _PROCESS.runtime = runtime
    _PROCESS.is_ready = _PROCESS.is_ready or runtime is not None
    _PROCESS.decisions, _PROCESS.uses, _PROCESS.warned = {}, {}, {}
    look_again()


def look_again() -> None:
    """Makes every plan anew: the runtime in use knows other configurations than before."""
    _PROCESS.era += 1


def era() -> int:
    """A number that changes with `look_again` and `use`."""
    return _PROCESS.era


def runtime() -> Runtime:
    """The runtime in use; raises TunerError where the environment's settings are wrong."""
    from tilewright.tuner.runtime.runtime import default_runtime  # noqa: PLC0415 - see above

    if not _PROCESS.is_listening:
        from tilewright.tuner.runtime.first_use.first_use import LISTENERS  # noqa: PLC0415 - see above

        _PROCESS.is_listening = True
        LISTENERS.append(lambda _use, _finding: look_again())  # the next answer may say that the library is faster
    found = _PROCESS.runtime or default_runtime(only_tuned=True)
    _PROCESS.is_ready = True
    return found


def off() -> None:
    """Makes every operator PyTorch's own from the next call on, and `on` undoes it; `TILEWRIGHT_OFF=1` begins so."""
    _PROCESS.is_off = True
    look_again()


def is_off() -> bool:
    """Whether `off` holds."""
    return _PROCESS.is_off


def on() -> None:
    """Makes operators launch tuned kernels again."""
    _PROCESS.is_off = False
    look_again()


def status() -> list[Decision]:
    """Every kind of call so far, what runs it, and what was checked."""
    return [decision._replace(check=_checks(key)) for key, decision in _PROCESS.decisions.items()]


def _checks(key: Hashable) -> str:
    return "; ".join(str(one.use) for one in _PROCESS.uses.get(key, ()))


MOST_REPEATS = 8
"""Of a function whose configurations are wrong one after another."""


def prepare(function: Callable[..., Any] | None = None, *arguments: Any, **named: Any) -> list[Decision]:
    """Calls the function, then verifies what its operators decided on; returns `status()`.

    The function is a model or anything else that calls operators; None: what was decided in calls before. Waits until
    all that was never verified at its shape was launched on random numbers and compared; where something was wrong, and
    so withdrawn, the function is called once more. For programs that capture CUDA graphs, in which nothing is checked.
    """
    from tilewright.tuner.runtime.errors import LaunchError  # noqa: PLC0415 - see above

    for _ in range(MOST_REPEATS):
        if function is not None:
            with held():  # what is decided is decided now
                function(*arguments, **named)
        before = era()
        for one in [use for uses in list(_PROCESS.uses.values()) for use in uses if use.use.state not in _SETTLED]:
            with suppress(LaunchError):  # there is no other configuration; the next call runs as PyTorch's own
                one.launcher.prepare_for(one.problem, one.device)
        if function is None or era() == before:
            break
    return status()


_SETTLED = {"right", "wrong"}


def layout_key(argument: Any) -> Hashable:
    """What selects a plan: a tensor's dtype, shape, strides and device; of a number only whether it is 0.

    Raises RuntimeError for a tensor without strides, such as a sparse one.
    """
    if isinstance(argument, Tensor):
        one = argument
        return one.dtype, one.shape, one.stride(), one.device, one.layout, one.is_neg()
    if isinstance(argument, float):
        return "zero" if argument == 0 else "number"
    return tuple(argument) if isinstance(argument, list) else argument


class Found(NamedTuple):
    """The launcher for a call, the call as its problem, and the configuration that would be launched."""

    launcher: Launcher | AnySizeLauncher
    posed: Posed
    choice: Choice


class _Output(NamedTuple):
    """A tensor to be filled in: a new one like this, or the argument at the place `written`.

    `row_major`: a tensor without memory in that shape, of which a new one is made sooner than of a shape and a device.
    """

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    written: int | None
    row_major: Tensor | None

    @classmethod
    def of(cls, tensor: Tensor, written: int | None) -> _Output:
        """That of a tensor."""
        row_major = None
        if tensor.is_contiguous():
            row_major = tensor.new_empty([1] * tensor.dim()).expand(tensor.shape)
            row_major.untyped_storage().resize_(0)  # what is kept may not lie in the pool of a graph that is captured
        return cls(tensor.shape, tensor.stride(), tensor.dtype, tensor.device, written, row_major)

    def tensor(self, arguments: Sequence[Any]) -> Tensor:
        """The tensor to fill; what does not go together was refused when the first of its kind came."""
        if self.written is not None:
            return arguments[self.written]
        if self.row_major is not None:
            return torch.empty_like(self.row_major, memory_format=torch.contiguous_format)
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


class _Ready:
    """What a tuned call does: outputs, then a launch.

    Where every array of the problem starts where an argument or an output starts, or is the same in every call, the
    launch is bound: later calls have their addresses read and nothing else made of them.
    """

    def __init__(
        self, launcher: Launcher | AnySizeLauncher, outputs: Sequence[_Output], pose: Callable[..., Posed]
    ) -> None:
        self._launcher, self._outputs, self._pose = launcher, outputs, pose
        self._bound: BoundLaunch | BoundSize | None = None
        self._places: tuple[int, ...] = ()
        self._kept: tuple[Tensor, ...] = ()
        self._ordinal = outputs[0].device.index if outputs[0].device.type == "cuda" else None
        self._written = [one.written for one in outputs if one.written is not None]
        self._numbers: tuple[int, ...] = ()
        self._scalars: tuple[list[float], tuple[float, ...]] = [], ()  # the last call's numbers, as the kernel has them

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """The output, or the tuple of them; raises TunerError before anything has run."""
        outputs = [one.tensor(arguments) for one in self._outputs]
        output = outputs[0] if len(outputs) == 1 else tuple(outputs)
        if self._bound is None or (self._ordinal is not None and torch.cuda.current_device() != self._ordinal):
            with on_device_of(outputs[0]):
                self._launch(output, outputs, arguments)
        else:
            numbers, scalars = self._scalars  # one look, as other threads call too
            given = [arguments[place] for place in self._numbers]
            if given != numbers:
                scalars = self._launcher.scalars(**self._pose(output, *arguments).numbers)
                self._scalars = given, scalars
            held = (*arguments, *outputs, *self._kept)
            self._bound(tuple([held[place].data_ptr() for place in self._places]), outputs[0], scalars)
        for place in self._written:
            grown(arguments[place])
        return output

    def direct(self, arguments: Sequence[Any]) -> Callable[[Tensor], Tensor] | None:
        """The call that was bound for these arguments, of which all but the first stay where they are; None for others.

        It looks at nothing: a replaced module has done so.
        """
        bound, [output, *more] = self._bound, self._outputs
        if bound is None or more or output.row_major is None or output.written is not None or not self._places:
            return None
        count = len(arguments)
        held = (*arguments, None, *self._kept)
        fixed = [0 if place in {0, count} else held[place].data_ptr() for place in self._places]
        first, last = (self._places.index(place) if place in self._places else -1 for place in (0, count))
        if min(first, last) < 0 or self._places.count(0) > 1:
            return None
        like, ordinal, scalars = output.row_major, self._ordinal, self._scalars[1]
        empty, contiguous, device = torch.empty_like, torch.contiguous_format, torch.cuda.current_device

        def call(x: Tensor) -> Tensor:
            if ordinal is not None and device() != ordinal:
                return self((x, *arguments[1:]))
            y = empty(like, memory_format=contiguous)
            addresses = fixed.copy()
            addresses[first], addresses[last] = x.data_ptr(), y.data_ptr()
            bound(tuple(addresses), y, scalars)
            return y

        return call

    def _launch(self, output: Any, outputs: Sequence[Tensor], arguments: Sequence[Any]) -> None:
        posed = self._pose(output, *arguments)
        if self._bound is None:
            self._kept = tuple([posed.arrays[place] for place in sorted(posed.kept)])
            self._numbers = tuple([place for place, one in enumerate(arguments) if isinstance(one, float)])
            self._places = _places(posed, arguments, [*outputs, *self._kept])
            if self._places:
                is_fresh = all(one.written is None for one in self._outputs)
                self._bound = self._launcher.bind(*posed.arrays, is_fresh=is_fresh, **posed.numbers)
        self._launcher(*posed.arrays, **posed.numbers)


def _places(posed: Posed, arguments: Sequence[Any], rest: Sequence[Tensor]) -> tuple[int, ...]:
    """Where each array starts among arguments, then outputs and kept ones; empty where one is a copy.

    Whether a reshaped tensor is a view of another is decided by strides, so that it holds for all calls alike. Where
    two arguments start at one address nothing tells which is meant, and another call's may not: empty too.
    """
    held = (*arguments, *rest)
    tensors = [place for place, one in enumerate(arguments) if isinstance(one, Tensor)]
    tensors += [len(arguments) + place for place, one in enumerate(rest) if _place(arguments, one) is None]
    starts = {held[place].data_ptr(): place for place in tensors}
    found = [starts.get(array.data_ptr(), -1) for array in posed.arrays]
    return tuple(found) if len(starts) == len(tensors) and min(found) >= 0 else ()


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
        self._era = _PROCESS.era

    def run(self, *arguments: Any) -> Any:
        """The operator's result."""
        if self._era != _PROCESS.era:
            self._by_layout, self._era = {}, _PROCESS.era
        if _PROCESS.is_off:
            return self._pytorch(*arguments)
        try:
            key = tuple([layout_key(one) for one in arguments])
        except RuntimeError:  # a tensor without strides
            return self._pytorch(*arguments)
        ready = self._by_layout[key] if key in self._by_layout else self._decided(key, arguments)
        if ready is None:
            return self._pytorch(*arguments)
        try:
            return ready(arguments)
        except TunerError as error:  # an address, which is of one call, or code that does not load
            self._note(key, arguments, error)
            return self._pytorch(*arguments)

    def direct(self, *arguments: Any) -> Callable[[Tensor], Any] | None:
        """What a call that ran before does with another first argument that lies alike, the rest staying as it is.

        It raises TunerError before anything has run. None where it is PyTorch's own operator that does it, or may be.
        """
        if self._era != _PROCESS.era or _PROCESS.is_off:
            return None
        ready = self._by_layout.get(tuple([layout_key(one) for one in arguments]))
        ours = ready.ours if isinstance(ready, Turns) else ready
        if ours is None or isinstance(ours, Search):
            return None
        rest = arguments[1:]
        return (ours.direct(arguments) if isinstance(ours, _Ready) else None) or (lambda x: ours((x, *rest)))

    def posed(self, *arguments: Any) -> Posed:
        """The call as a problem; raises NoKernelError, and RuntimeError for what does not go together."""
        return self._pose(self._result(*arguments), *arguments)

    def find(self, *arguments: Any) -> Found:
        """The configuration for this call; raises TunerError or KernelError where there is none."""
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
        if may_search and not _PROCESS.is_ready:
            return self._search(key, arguments, runtime)
        from tilewright.tuner.runtime.any_size.launcher import AnySizeLauncher  # noqa: PLC0415 - see above

        launcher, posed = self._launcher(output, arguments)
        if may_search and not isinstance(launcher, AnySizeLauncher):
            problem, device = launcher.posed(*posed.arrays)
            if not launcher.is_known(problem, device):
                return self._search(key, arguments, partial(launcher.look_for, problem, device))
        choice = launcher.choice(*posed.arrays)
        words = f"{choice.configuration} ({choice.match}, from {choice.origin})"
        ours = _Ready(launcher, [_Output.of(one, _place(arguments, one)) for one in outputs], self._pose)
        use: _Use | None = None
        if not isinstance(launcher, AnySizeLauncher):  # which checks each of its configurations itself
            problem, device = launcher.posed(*posed.arrays)
            first_use = launcher.first_use(problem, device, choice)
            use = None if first_use is None else _Use(first_use, launcher, problem, device)
        if use is not None and outputs[0].is_cuda:
            load = partial(use.launcher.load_for, use.problem, use.device)
            reason = f"takes turns with PyTorch's own call: {words}"
            self._keep(key, arguments, is_ours=not choice.library_faster, reason=reason)
            ready: Run | None = self._in_turns(key, ours, load, is_first=not choice.library_faster)
        elif choice.library_faster:
            told = "was" if use is None else "is expected to be"
            self._keep(key, arguments, is_ours=False, reason=f"the library {told} faster than {words}")
            return None
        else:
            self._keep(key, arguments, is_ours=True, reason=words)
            ready = ours
        uses = _PROCESS.uses.setdefault((self._name, key), [])
        if use is not None and all(one.use is not use.use for one in uses):
            uses.append(use)
        return ready

    def _search(self, key: Hashable, arguments: Sequence[Any], find: Callable[[], object]) -> Search:
        self._keep(key, arguments, is_ours=False, reason="PyTorch's own call, until a configuration is found")
        return Search(find, self._as_pytorch, partial(self._decided, key))

    def _in_turns(self, key: Hashable, ours: _Ready, load: Callable[[], None], *, is_first: bool) -> Turns:
        """Ours and PyTorch's call, until their times decide; what is decided then holds as what the records say."""
        era = _PROCESS.era

        def decided(is_ours: bool, reason: str) -> None:
            if era == _PROCESS.era:
                self._by_layout[key] = ours if is_ours else None
                before = _PROCESS.decisions[self._name, key]
                words = before.reason.partition(": ")[2]
                _PROCESS.decisions[self._name, key] = before._replace(is_ours=is_ours, reason=f"{reason}; {words}")

        return Turns(ours, self._as_pytorch, prefers_ours=is_first, load=load, decided=decided)

    def _as_pytorch(self, arguments: Sequence[Any]) -> Any:
        return self._pytorch(*arguments)

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

    def _keep(self, key: Hashable, arguments: Sequence[Any], *, is_ours: bool, reason: str) -> None:
        shown = [tuple(one.shape) if isinstance(one, Tensor) else one for one in arguments]
        first = next(one for one in arguments if isinstance(one, Tensor))
        call = f"{', '.join(map(str, shown))} {str(first.dtype).removeprefix('torch.')}"
        _PROCESS.decisions[self._name, key] = Decision(self._name, call, str(first.device), is_ours, reason)

    def _note(self, key: Hashable, arguments: Sequence[Any], error: Exception) -> None:
        """Keeps the reason, and warns of the first of its kind; what is not tuned any more is not looked for again."""
        from tilewright.tuner.runtime.errors import UntunedError, warn  # noqa: PLC0415 - see above

        if isinstance(error, UntunedError):
            self._by_layout[key] = None
        self._keep(key, arguments, is_ours=False, reason=str(error))
        if _PROCESS.warned.setdefault((self._name, type(error)), error) is error:
            warn(
                f"tilewright::{self._name} runs as PyTorch's own operator: {error} "
                "(The first case of its kind; tilewright.torch.status() lists them all.)",
                FallbackWarning,
                through=("tilewright.", "torch."),
            )


def _place(arguments: Sequence[Any], output: Tensor) -> int | None:
    return next((place for place, one in enumerate(arguments) if one is output), None)


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def grown(tensor: Tensor) -> None:
    """Lets autograd know that the tensor was changed in place; of an inference tensor nobody asks."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


_AS_IT_IS = nullcontext()


def on_device_of(tensor: Tensor) -> Any:
    """The launcher works on the current GPU; PyTorch's operators on that of their tensors."""
    if tensor.is_cuda and tensor.get_device() != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return _AS_IT_IS
