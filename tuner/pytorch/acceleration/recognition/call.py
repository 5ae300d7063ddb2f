"""A call of PyTorch's as one of an operator of ours, and what of it decides whether it is one that was accepted."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tilewright.tuner.pytorch.operator import Operator, is_known
from tilewright.tuner.pytorch.operators.attention import ATTENTION
from tilewright.tuner.pytorch.precision import ALLOWED, may_be_tf32, setting
from tilewright.tuner.turns.turns import held

TENSOR_FACTS = 5
"""The number of facts in the entry of a tensor."""


class Call(NamedTuple):
    """An operator of ours with its arguments.

    `shape`: the result's, where it is another view of the operator's, of which `order` permutes the dimensions.
    `added`: a tensor that is added to it, times a number.
    """

    operator: Operator
    arguments: tuple[Any, ...]
    shape: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    added: tuple[Tensor, float] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether no tensor has a class of its own, whose author could not know our operator."""
        return all(is_known(one) for one in self.arguments if isinstance(one, Tensor))

    def run(self, *, is_timed: bool = True) -> Any:
        """The result; `is_timed`: by ours, since the caller has timed it at this size, or is about to."""
        if torch.compiler.is_compiling() or not is_timed:  # a graph has the operator, which holds by itself
            result = self.operator(*self.arguments)
        else:
            with held(ours=True):
                result = self.operator(*self.arguments)
        if self.shape is not None:
            result = result.reshape(self.shape)
        if self.order is not None:
            result = result.permute(self.order)
        if self.added is not None:
            add = torch.add if torch.is_grad_enabled() else torch.Tensor.add_
            result = add(result, self.added[0].to(result.dtype), alpha=self.added[1])  # which autocast may have made
        return result

    @property
    def is_bare(self) -> bool:
        """Whether the operator's result is the call's."""
        return self.shape is None and self.order is None and self.added is None


def entry(argument: Any) -> Hashable:
    """The argument's key, the same in all calls of one accepted kind; no GPU's number, as ranks have each one.

    Beside device, type, shape and strides of a tensor it holds the precision: autocast's, or for float32 on a GPU the
    one that the program allows PyTorch's products, where that is not PyTorch's default.
    """
    if isinstance(argument, Tensor):
        if argument.layout is not torch.strided:
            return str(argument.layout)
        kind = argument.device.type
        precision: Hashable = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        if precision is None and may_be_tf32(argument):
            precision = setting() or None
        return kind, argument.dtype, tuple(argument.shape), tuple(argument.stride()), precision
    if argument == ALLOWED:  # what that is today the tensors' entries say; locks have it by this name
        return "fp32"
    return tuple(argument) if isinstance(argument, list) else argument


def entries(call: Call) -> tuple[Hashable, ...]:
    """The key of every argument, with the result's shape.

    Attention's tensors count without their strides: layers that are joined hand it views of one product.
    """
    if call.operator is ATTENTION:
        return *[_without_strides(one) for one in call.arguments], call.shape
    rest: list[Hashable] = [] if call.order is None else [call.order]
    rest += [] if call.added is None else [(entry(call.added[0]), call.added[1])]
    return *[entry(one) for one in call.arguments], call.shape, *rest


def opened(key: Hashable) -> Hashable:
    """The key without the sizes of row-major tensors but the last: calls with any number of rows share it."""
    if not isinstance(key, tuple):
        return key
    if len(key) == TENSOR_FACTS and isinstance(key[1], torch.dtype):
        kind, dtype, shape, strides, autocast = key
        dense = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
        is_dense = all(own == stride or size == 1 for own, stride, size in zip(strides, dense, shape, strict=True))
        return (kind, dtype, len(shape), shape[-1:], autocast) if is_dense else key
    return tuple(opened(one) for one in key)


def _without_strides(argument: Any) -> Hashable:
    found = entry(argument)
    if not isinstance(argument, Tensor) or not isinstance(found, tuple):
        return found
    kind, dtype, shape, _, autocast = found
    return kind, dtype, shape, autocast
