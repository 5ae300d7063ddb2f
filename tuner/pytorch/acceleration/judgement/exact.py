"""The same calls in float64, and with the sums of products in other orders: what an error is taken from, or its size.

Both are modes of PyTorch's dispatcher, in which somebody else's code runs as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.tuner.pytorch.acceleration.judgement.trees import called

LOWER = frozenset({torch.float32, torch.float16, torch.bfloat16})
PARTS = (2, 4, 8)
"""The numbers of parts in which every product's k is summed if float64 does not help."""

aten = torch.ops.aten


class _InDouble(TorchDispatchMode):  # type: ignore[misc]
    """Computes every operator in float64: a parameter is cast where it is read, so that only one layer's are there."""

    def __torch_dispatch__(self, function: Any, _types: Any, arguments: Sequence[Any] = (), named: Any = None) -> Any:
        """The operator's result, in float64."""
        arguments, named = list(arguments), dict(named or {})
        written = _written(function)
        kept = {one.dtype for one in _tensors(arguments, named, written) if one.dtype in LOWER}
        cast = partial(_cast, dtype=kept.pop() if kept else torch.float64)
        arguments = [one if at in written else pytree.tree_map(cast, one) for at, one in enumerate(arguments)]
        named = {name: one if name in written else pytree.tree_map(cast, one) for name, one in named.items()}
        return function(*arguments, **named)


@cache
def _written(function: Any) -> frozenset[int | str]:
    """The places and names of the arguments that the operator changes."""
    schema = function._schema.arguments  # noqa: SLF001 - as in operator.py
    found = [(at, one) for at, one in enumerate(schema) if one.alias_info is not None and one.alias_info.is_write]
    return frozenset([at for at, _ in found] + [one.name for _, one in found])


def _tensors(arguments: Sequence[Any], named: Mapping[str, Any], places: frozenset[int | str]) -> list[Tensor]:
    given = [one for at, one in [*enumerate(arguments), *named.items()] if at in places]
    return [one for one in pytree.tree_leaves(given) if isinstance(one, Tensor)]


def _cast(one: Any, dtype: torch.dtype) -> Any:
    if isinstance(one, Tensor):
        return one.to(dtype) if one.dtype in LOWER | {torch.float64} and one.dtype != dtype else one
    return dtype if isinstance(one, torch.dtype) and one in LOWER else one


@contextmanager
def in_double() -> Iterator[None]:
    """Makes floating-point operators compute in float64 in the block, without gradients and autocast."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        # One of attention's fast kernels would be chosen by the dtype of its arguments, and has no float64.
        with torch.no_grad(), _no_autocast("cuda"), _no_autocast("cpu"), sdpa_kernel(SDPBackend.MATH), _InDouble():
            yield
    finally:
        torch.set_default_dtype(default)


def _no_autocast(kind: str) -> Any:
    return torch.autocast(kind, enabled=False)


def computed_in_double(run: Callable[[Any], Any], model: nn.Module | None) -> Any:
    """The result of `run(model)` in float64: the model's code with its parameters cast, or a copy's; passes errors on.

    Without a model it is `run(None)`.
    """
    if model is None:
        with in_double():
            return run(None)
    state = {name: one.double() for name, one in model.named_buffers() if one.dtype in LOWER}
    try:
        return _with(run, lambda *given, **named: functional_call(model, state, given, named))
    except Exception:  # noqa: BLE001 - code may ask for its parameters' dtype, as nn.LSTM does
        return _with(run, copy.deepcopy(model).double())


def _with(run: Callable[[Any], Any], code: Callable[..., Any]) -> Any:
    """The result of `run` for the code, whose arguments are in float64."""
    with in_double():
        return run(lambda *given, **named: called(code, given, named, partial(_cast, dtype=torch.float64)))


class InParts(TorchDispatchMode):  # type: ignore[misc]
    """Sums each product's k in so many parts."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def __torch_dispatch__(self, function: Any, _types: Any, arguments: Sequence[Any] = (), named: Any = None) -> Any:
        """The operator's result; a product's k is summed in `_count` parts."""
        named = dict(named or {})
        known = _PRODUCTS.get(function.overloadpacket)
        is_special = function.overloadpacket is aten.convolution and (arguments[6] or arguments[8] != 1)
        if known is None or is_special:  # transposed, or in groups
            return function(*arguments, **named)
        product, first, along_a, along_b = known
        given = list(arguments)
        parts = zip(given[first].chunk(self._count, along_a), given[first + 1].chunk(self._count, along_b), strict=True)
        a, b = next(parts)
        result = function(*given[:first], a, b, *given[first + 2 :], **named)
        for a, b in parts:
            part = product(a, b, None, *given[3:]) if product is aten.convolution else product(a, b)
            result = result + part * named.get("alpha", 1)
        return result


_PRODUCTS: Mapping[Any, tuple[Any, int, int, int]] = {
    aten.mm: (aten.mm, 0, 1, 0),
    aten.bmm: (aten.bmm, 0, 2, 1),
    aten.addmm: (aten.mm, 1, 1, 0),
    aten.baddbmm: (aten.bmm, 1, 2, 1),
    aten.linear: (aten.linear, 0, -1, -1),
    aten.convolution: (aten.convolution, 0, 1, 1),
}
"""For each product: the operator that adds a part, the place of the first operand, and k's dimension in both."""
