"""The short way through a replaced module: what was launched before with tensors that lie alike is launched again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch import plans
from tilewright.tuner.pytorch.operator import is_known, is_watched_in_eager_mode
from tilewright.tuner.pytorch.precision import may_be_tf32

if TYPE_CHECKING:
    from tilewright.tuner.pytorch.acceleration.recognition.call import Call

_records = torch.is_grad_enabled
Look = tuple["Tensor | None", int, "torch.dtype | None", tuple[int, ...]]
"""A parameter, where it lies, and how."""


class Warm:
    """The last kind of call of one module, for which only the tensors are checked before the launch.

    A copy, and what is read from a file, has seen no call yet.
    """

    __slots__ = ("_call", "_era", "_in_tf32", "_input", "_parameters", "_was_tf32")

    def __init__(self) -> None:
        self._call: Callable[[Tensor], Any] | None = None
        self._input: tuple[Any, ...] = ()
        self._parameters: list[Look] = []
        self._era = -1
        self._in_tf32: Callable[[], bool] | None = None  # what PyTorch's own does, where that may change
        self._was_tf32 = False

    def __reduce__(self) -> tuple[type[Warm], tuple[()]]:
        """Pickles as a new one: what was captured belongs to this process."""
        return Warm, ()

    def run(self, x: Tensor, parameters: Iterable[Tensor | None]) -> Any:
        """The result; None where anything differs from the last call, and the long way has to decide.

        The caller has asked whether a compiler is at work. It is one function, as each costs as much as a look.
        """
        if self._call is None or self._era != plans.era() or _records() or is_watched_in_eager_mode():
            return None
        if self._in_tf32 is not None and self._in_tf32() is not self._was_tf32:
            return None
        kind, dtype, shape, strides, device = self._input
        try:
            if strides is None:  # any number of rows
                is_unlike = x.dim() != len(shape) or x.shape[-1] != shape[-1] or not x.is_contiguous()
            else:
                is_unlike = x.shape != shape or x.stride() != strides
            if is_unlike or x.__class__ is not kind or x.dtype is not dtype:
                return None
            for one, (known, address, own_dtype, own_strides) in zip(parameters, self._parameters, strict=True):
                is_moved = one is not known or (one is not None and one.data_ptr() != address)
                if is_moved or (one is not None and (one.dtype is not own_dtype or one.stride() != own_strides)):
                    return None
            return None if x.get_device() != device or x.is_neg() else self._call(x)
        except (TunerError, RuntimeError):  # an address, of which the long way warns, or a tensor without strides
            return None

    def learn(
        self, call: Call, x: Tensor, parameters: Sequence[Tensor | None], *, any_rows: bool, is_timed: bool
    ) -> None:
        """Keeps the decision on this call, which has just run; `any_rows`: for any number of rows.

        Its arguments begin with the input and what lies where the parameters do. `is_timed`: ours was the faster one.
        """
        self._call = None
        if not call.is_bare or not all(one is None or is_known(one) for one in (x, *parameters)):
            return
        given = call.arguments
        begins = len(given) > len(parameters) and given[0] is x and x.layout is torch.strided
        if begins and all(_is_of(one, other) for one, other in zip(given[1:], parameters, strict=False)):
            plans_of, of_rows = call.operator.plans, None
            if any_rows and x.is_contiguous():
                of_rows = plans_of.direct_of_rows(*given, is_timed=is_timed)
            self._call = of_rows or (plans_of.direct(*given) if is_timed else None)
            self._in_tf32 = plans_of.in_tf32 if may_be_tf32(x) else None
            self._was_tf32 = self._in_tf32 is not None and self._in_tf32()
            self._input = type(x), x.dtype, x.shape, None if of_rows else x.stride(), x.get_device()
            self._parameters = [_look(one) for one in parameters]
            self._era = plans.era()


def _is_of(argument: Any, parameter: Tensor | None) -> bool:
    """Whether the argument is the parameter itself, or all of it in another form."""
    if argument is parameter:
        return True
    if not isinstance(argument, Tensor) or parameter is None:
        return False
    return bool(argument.data_ptr() == parameter.data_ptr() and argument.numel() == parameter.numel())


def _look(one: Tensor | None) -> Look:
    return (None, 0, None, ()) if one is None else (one, one.data_ptr(), one.dtype, one.stride())
