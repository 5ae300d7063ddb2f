"""The short way through a replaced module: what was launched before with tensors that lie alike is launched again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch import plans
from tilewright.tuner.pytorch.operator import is_known, is_watched

if TYPE_CHECKING:
    from tilewright.tuner.pytorch.acceleration.call import Call


class Warm:
    """The last kind of call of one module. Looking at its tensors is all that is done before they are launched on.

    A copy, and what is read from a file, has seen no call yet.
    """

    __slots__ = ("_era", "_pictures", "_ready", "_rest")

    def __init__(self) -> None:
        self._pictures: list[Hashable] = []
        self._ready: Callable[[Sequence[Any]], Any] | None = None
        self._rest: tuple[Any, ...] = ()
        self._era = -1

    def __reduce__(self) -> tuple[type[Warm], tuple[()]]:
        """A new one."""
        return Warm, ()

    def run(self, tensors: Sequence[Tensor | None]) -> Any:
        """The result; None where anything is unlike the last call, and the long way has to say what is to be done."""
        if torch.is_grad_enabled() or self._era != plans.era() or is_watched():
            return None
        try:
            if [_picture(one) for one in tensors] != self._pictures or self._ready is None:
                return None
            return self._ready((*tensors, *self._rest))
        except (TunerError, RuntimeError):  # an address, of which the long way warns, or a tensor without strides
            return None

    def learn(self, call: Call, tensors: Sequence[Tensor | None]) -> None:
        """Keeps what this call, which has just been run, was decided to be; its arguments begin with the tensors."""
        if not all(one is None or is_known(one) for one in tensors):
            return
        count = len(tensors)
        begins = len(call.arguments) >= count and all(
            one is other for one, other in zip(tensors, call.arguments, strict=False)
        )
        self._ready = call.operator.plans.ready(*call.arguments) if begins and call.is_bare else None
        self._pictures = [_picture(one) for one in tensors]
        self._rest, self._era = tuple(call.arguments[count:]), plans.era()


def _picture(tensor: Tensor | None) -> Hashable:
    return None if tensor is None else (tensor.__class__, plans.layout_key(tensor))
