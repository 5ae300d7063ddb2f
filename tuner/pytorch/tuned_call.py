"""A call of an operator that launches a tuned kernel: its problem, its outputs, and the launch bound to both."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tilewright.tuner.errors import TunerError
from tilewright.tuner.turns.turns import held

if TYPE_CHECKING:  # a program that imports the operators and calls none does not wait for the launcher
    from tilewright.tuner.pytorch.asked import Asked
    from tilewright.tuner.pytorch.plans import Tally
    from tilewright.tuner.runtime.any_size.launcher import BoundSize
    from tilewright.tuner.runtime.launcher import BoundLaunch


from tilewright.tuner.pytorch.plans import PROCESS
from tilewright.tuner.turns.turns import may_take_turns


class NoKernelError(TunerError):
    """No kernel computes this, whatever is tuned."""


@dataclass(frozen=True)
class Posed:
    """A call as a problem: axes and options by name, arrays in the kernel's order, numbers other than 1.

    `kept`: the places of arrays that are the same in every call of this kind, such as zeros in place of a bias.
    """

    named: Mapping[str, Any]
    arrays: Sequence[Tensor]
    numbers: Mapping[str, float] = field(default_factory=dict)
    kept: frozenset[int] = frozenset()


class Output(NamedTuple):
    """A tensor to fill: a new one like this, or the argument at the place `written`.

    `row_major`: a tensor without memory in that shape, of which a new one is made sooner than of a shape and a device.
    """

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    written: int | None
    row_major: Tensor | None

    @classmethod
    def of(cls, tensor: Tensor, written: int | None) -> Output:
        """The output like a tensor."""
        row_major = None
        if tensor.is_contiguous():
            row_major = tensor.new_empty([1] * tensor.dim()).expand(tensor.shape)
            row_major.untyped_storage().resize_(0)  # what is kept may not lie in the pool of a graph that is captured
        return cls(tensor.shape, tensor.stride(), tensor.dtype, tensor.device, written, row_major)

    def tensor(self, arguments: Sequence[Any]) -> Tensor:
        """The tensor to fill; arguments that do not fit together were refused when the first of their kind came."""
        if self.written is not None:
            return arguments[self.written]
        if self.row_major is not None:
            return torch.empty_like(self.row_major, memory_format=torch.contiguous_format)
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


class TunedCall:
    """A tuned call: it makes the outputs, then launches.

    Where every array of the problem starts where an argument or an output starts, or is the same in every call, the
    launch is bound: later calls have their addresses read and nothing else made of them.
    """

    def __init__(
        self,
        asked: Asked,
        outputs: Sequence[Output],
        pose: Callable[..., Posed],
        tally: Tally,
    ) -> None:
        self.asked, self._outputs, self._pose, self.tally = asked, outputs, pose, tally
        self._launcher, self._device = asked.launcher, torch.cuda.current_device
        self._only = outputs[0] if len(outputs) == 1 else None
        self._bound: BoundLaunch | BoundSize | None = None
        self._places: tuple[int, ...] = ()
        self._kept: tuple[Tensor, ...] = ()
        self._ordinal = outputs[0].device.index if outputs[0].device.type == "cuda" else None
        self._written = [one.written for one in outputs if one.written is not None]
        self._numbers: tuple[int, ...] = ()
        self._scalars: tuple[list[float], tuple[float, ...]] = [], ()  # the last call's numbers, as the kernel has them

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """The output, or the tuple of them; raises TunerError before anything has run."""
        self.tally.ours += 1
        output = self._only.tensor(arguments) if self._only else tuple([one.tensor(arguments) for one in self._outputs])
        first = output if self._only else output[0]
        if self._bound is None or (self._ordinal is not None and self._device() != self._ordinal):
            with on_device_of(first):
                self._launch(output, (output,) if self._only else output, arguments)
        else:
            scalars = self._scalars[1]
            if self._numbers:
                scalars = self._scalars_of(output, arguments)
            held = (*arguments, output, *self._kept) if self._only else (*arguments, *output, *self._kept)
            self._bound(tuple([held[place].data_ptr() for place in self._places]), first, scalars)
        for place in self._written:
            grown(arguments[place])
        return output

    def _scalars_of(self, output: Any, arguments: Sequence[Any]) -> tuple[float, ...]:
        """The numbers of this call as the kernel takes them; mostly they are those of the last call."""
        numbers, scalars = self._scalars  # one look, as other threads call too
        given = [arguments[place] for place in self._numbers]
        if given != numbers:
            scalars = self._launcher.scalars(**self._pose(output, *arguments).numbers)
            self._scalars = given, scalars
        return scalars

    def direct(self, arguments: Sequence[Any]) -> Callable[[Tensor], Any] | None:
        """The call bound for these arguments, of which all but the first stay where they are; None if none was bound.

        It looks at nothing: a replaced module has done so.
        """
        found = self._ends(arguments)
        if found is None or self._bound is None:
            return None
        fixed, first, last = found
        bound, like, ordinal, scalars = self._bound, self._outputs[0].row_major, self._ordinal, self._scalars[1]
        empty, contiguous, device = torch.empty_like, torch.contiguous_format, torch.cuda.current_device
        tally = self.tally

        def call(x: Tensor) -> Tensor:
            if ordinal is not None and device() != ordinal:
                return self((x, *arguments[1:]))
            tally.ours += 1
            y = empty(like, memory_format=contiguous)
            addresses = fixed.copy()
            addresses[first], addresses[last] = x.data_ptr(), y.data_ptr()
            bound(tuple(addresses), y, scalars)
            return y

        return call

    def direct_of_rows(self, arguments: Sequence[Any]) -> Callable[[Tensor, int], Any] | None:
        """A function as of `direct`, for row-major first arguments of any number of such rows; None for other launches.

        The call that it returns gives None where another GPU is the current one.
        """
        found, [output, *_] = self._ends(arguments), self._outputs
        of_size = getattr(self._bound, "of_size", None)
        x = arguments[0]
        if found is None or of_size is None or output.shape[:-1] != x.shape[:-1] or output.dtype != x.dtype:
            return None
        fixed, first, last = found
        columns, ordinal, scalars = output.shape[-1:], self._ordinal, self._scalars[1]
        device, tally = torch.cuda.current_device, self.tally

        def call(x: Tensor, rows: int) -> Tensor | None:
            if ordinal is not None and device() != ordinal:
                return None
            tally.ours += 1
            y = x.new_empty(x.shape[:-1] + columns)
            addresses = fixed.copy()
            addresses[first], addresses[last] = x.data_ptr(), y.data_ptr()
            of_size(rows, tuple(addresses), y, scalars)
            return y

        return call

    def _ends(self, arguments: Sequence[Any]) -> tuple[list[int], int, int] | None:
        """A bound launch's addresses, and the places of the first argument and the new output among them; or None.

        None where there is no such launch, or another kind of output.
        """
        [output, *more] = self._outputs
        if self._bound is None or more or output.row_major is None or output.written is not None or not self._places:
            return None
        count = len(arguments)
        held = (*arguments, None, *self._kept)
        fixed = [0 if place in {0, count} else held[place].data_ptr() for place in self._places]
        first, last = (self._places.index(place) if place in self._places else -1 for place in (0, count))
        return None if min(first, last) < 0 or self._places.count(0) > 1 else (fixed, first, last)

    def _launch(self, output: Any, outputs: Sequence[Tensor], arguments: Sequence[Any]) -> None:
        posed = self._pose(output, *arguments)
        if self._bound is None:
            self._kept = tuple([posed.arrays[place] for place in sorted(posed.kept)])
            self._numbers = tuple([place for place, one in enumerate(arguments) if isinstance(one, float)])
            self._places = _places(posed, arguments, [*outputs, *self._kept])
            if self._places:
                is_fresh = all(one.written is None for one in self._outputs)
                self._bound = self._launcher.bind(*posed.arrays, is_fresh=is_fresh, **posed.numbers)
        with held(ours=True):  # who runs was decided here
            self._launcher(*posed.arrays, **posed.numbers)


def _places(posed: Posed, arguments: Sequence[Any], rest: Sequence[Tensor]) -> tuple[int, ...]:
    """The place of each array among arguments, then outputs and kept ones; empty where one is a copy.

    Whether a reshaped tensor is a view of another is decided by strides, so that it holds for all calls alike. Where
    two arguments start at one address nothing tells which is meant, and another call's may not: empty too.
    """
    held = (*arguments, *rest)
    tensors = [place for place, one in enumerate(arguments) if isinstance(one, Tensor)]
    tensors += [len(arguments) + place for place, one in enumerate(rest) if place_of(arguments, one) is None]
    starts = {held[place].data_ptr(): place for place in tensors}
    found = [starts.get(array.data_ptr(), -1) for array in posed.arrays]
    return tuple(found) if len(starts) == len(tensors) and min(found) >= 0 else ()


def place_of(arguments: Sequence[Any], output: Tensor) -> int | None:
    """The place of the argument that the output is; None for a new tensor."""
    return next((place for place, one in enumerate(arguments) if one is output), None)


def grown(tensor: Tensor) -> None:
    """Tells autograd that the tensor was changed in place, except for inference tensors, of which nobody asks."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


_AS_IT_IS = nullcontext()


def on_device_of(tensor: Tensor) -> Any:
    """Makes the output's GPU the current one in the block, as the launcher needs it."""
    if tensor.is_cuda and tensor.get_device() != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return _AS_IT_IS


def layout_key(arguments: Sequence[Any]) -> list[Hashable]:
    """What selects a plan: a tensor's dtype, shape, strides and device; of a number only whether it is 0.

    They are in one list, as each tuple takes as long as what is in it. Raises RuntimeError for a tensor without
    strides, such as a sparse one.
    """
    key: list[Hashable] = []
    for one in arguments:
        if isinstance(one, Tensor):
            key += one.dtype, one.shape, one.stride(), one.device, one.is_neg()
        elif isinstance(one, float):
            key.append("zero" if one == 0 else "number")
        else:
            key.append(tuple(one) if isinstance(one, list) else one)
    return key


def of_decided_rows(
    runs: Callable[[Tensor, int], Any],
    ours: TunedCall,
    pytorch: Callable[..., Any],
    arguments: Sequence[Any],
    by_rows: dict[int, bool],
) -> Callable[[Tensor], Any]:
    """A function of the first argument: `runs` where ours serves its rows, else PyTorch's; None while undecided.

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
    """Whether ours serves that number of rows, noted where it is certain; None while turns are taken."""
    asked = ours.asked.of_rows(rows)
    verdict = PROCESS.contests.verdict(asked.range)
    if verdict is None and asked.takes_turns:
        return None if may_take_turns() else asked.prefers_ours
    by_rows[rows] = not asked.choice.is_behind if verdict is None else verdict.is_ours
    return by_rows[rows]
