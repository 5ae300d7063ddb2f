"""Layers of one input as one product: their parameters in one piece of memory, each layer's result a view."""

from __future__ import annotations

import dis
from collections.abc import Callable, Hashable, Iterable, Sequence
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from tilewright.tuner.pytorch.acceleration.judgement.trees import version_of
from tilewright.tuner.pytorch.acceleration.recognition.call import entry, opened
from tilewright.tuner.pytorch.operator import is_known, is_watched
from tilewright.tuner.pytorch.operators.products import LINEAR
from tilewright.tuner.pytorch.precision import ALLOWED
from tilewright.tuner.turns.turns import held

_TURNED: Any = WeakIdKeyDictionary()
"""The matrices whose memory holds them column by column."""

_JOINED: Any = WeakIdKeyDictionary()
"""The parameters that were moved, with the tensor of all. What is installed may change and they stay, so that a CUDA
graph can read them."""


def join(parameters: Sequence[Tensor]) -> Tensor:
    """All parameters as one tensor, to whose memory their numbers are moved; each stays the same object.

    So whatever changes one of them, its optimizer or a loaded state, changes the piece. It is the same tensor every
    time, as torch.compile makes its code for an object.
    """
    whole, kept = view(parameters), _JOINED.get(parameters[0])
    if whole is not None and kept is not None and (kept.data_ptr(), kept.shape) == (whole.data_ptr(), whole.shape):
        return kept
    with torch.inference_mode(mode=False), torch.no_grad():
        if whole is None:
            moved = torch.cat([one.detach() for one in parameters])
            for one, part in zip(parameters, moved.split([len(one) for one in parameters]), strict=True):
                one.data = part
        joined = (
            parameters[0]
            .detach()
            .as_strided((sum(map(len, parameters)), *parameters[0].shape[1:]), parameters[0].stride())
        )
    for one in parameters:
        _JOINED[one] = joined
    torch._dynamo.mark_static_address(joined)  # noqa: SLF001 - CUDA graphs of torch.compile read it where it lies
    return joined


def turn(parameter: Tensor) -> None:
    """Lays the matrix column by column, once; it stays the object that it was."""
    if parameter not in _TURNED:
        with torch.inference_mode(mode=False), torch.no_grad():
            parameter.data = parameter.detach().mT.contiguous().mT
        _TURNED[parameter] = True


def part(parameters: Iterable[Tensor]) -> None:
    """Gives each joined parameter memory of its own again, and lays turned ones row by row."""
    with torch.inference_mode(mode=False), torch.no_grad():
        for one in parameters:
            if _TURNED.pop(one, None):
                one.data = one.detach().contiguous()
            if _JOINED.pop(one, None) is not None:
                one.data = one.detach().clone()


def view(parameters: Sequence[Tensor]) -> Tensor | None:
    """All of them as one tensor; None where they do not lie behind one another."""
    first, end = parameters[0], parameters[0].data_ptr()
    for one in parameters:
        is_alike = one.dtype is first.dtype and one.shape[1:] == first.shape[1:] and one.is_contiguous()
        if one.data_ptr() != end or not is_alike or _memory(one) != _memory(first):
            return None
        end += one.nbytes
    rows = sum(len(one) for one in parameters)
    return first.detach().as_strided((rows, *first.shape[1:]), first.stride())


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def parameters_of(layers: Sequence[nn.Module]) -> list[list[Any]]:
    """The weights, and the biases or nothing."""
    weights, biases = ([one._parameters[name] for one in layers] for name in ("weight", "bias"))  # noqa: SLF001 - as in installed.py
    return [weights, *([] if biases[0] is None else [biases])]


def can_join(layers: Sequence[Any]) -> bool:
    """Whether they are different layers of PyTorch's class, with or without biases, that may be moved."""
    given = [one for layer in layers for one in (layer.weight, layer.bias) if one is not None]
    return (
        len({id(one) for one in given}) == len(layers) * (1 if layers[0].bias is None else 2)
        and len({(one.dtype, one.device) for one in given}) == 1
        and len({layer.in_features for layer in layers}) == 1
        and all(type(one) is nn.Parameter and not one.is_inference() and one.is_contiguous() for one in given)
        and not any(one.is_shared() and not one.is_cuda for one in given)  # of processes: they would lose each other
    )


def changes_nothing(function: Any) -> bool:
    """Whether no line of the function's own byte code may change a tensor in place; False if in doubt."""
    code = getattr(function, "__code__", None)
    return code is not None and not _changes(code)


def _changes(code: CodeType) -> bool:
    for one in dis.get_instructions(code):
        is_assigned = one.opname.startswith("INPLACE_") or (one.opname == "BINARY_OP" and one.argrepr.endswith("="))
        is_method = one.opname in {"LOAD_ATTR", "LOAD_METHOD"} and _is_in_place(str(one.argval))
        if is_assigned or is_method or one.opname in {"STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR"}:
            return True
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return any("out" in one for one in code.co_consts if isinstance(one, tuple)) or any(map(_changes, inner))


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


class SharedLayers:
    """The joint product of layers with one input: the first that is called computes all, and keeps it for the others.

    Until the last of them was called, or the first is called again, the results stay in memory. `is_steady`: the code
    that calls them does not change their input, where PyTorch does not count changes (`inference_mode`).
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        keys: frozenset[Hashable],
        compiled: frozenset[Hashable],
        open_keys: frozenset[Hashable] = frozenset(),
        *,
        is_steady: bool = False,
    ) -> None:
        self.layers, self._keys, self._compiled, self._is_steady = list(layers), keys, compiled, is_steady
        self._open_keys = open_keys
        self._sizes = [one.out_features for one in layers]
        self._joined: list[Tensor] = []
        self._traced: tuple[Tensor, Sequence[Tensor]] | None = None
        self._looks: list[Any] = []
        self._whole: list[Tensor | None] = []
        self._state: tuple[Tensor, int, Sequence[Tensor]] | None = None

    def pieces(self) -> list[list[Any]]:
        """The operands that are joined: for each operand of the product those of all layers."""
        return parameters_of(self.layers)

    def product(self, x: Tensor, *whole: Any) -> Any:
        """The joint result of all layers, from the joined operands."""
        return LINEAR(x, whole[0], whole[1] if whole[1:] else None, "none", ALLOWED)

    def forwards(self) -> list[SharedForward]:
        """A stand-in for each layer, for the time when they are joined."""
        return [SharedForward(one, self, place) for place, one in enumerate(self.layers)]

    def join(self) -> None:
        """Joins the operands unless they are joined."""
        self._joined = [join(given) for given in self.pieces()]

    def result(self, place: int, x: Tensor) -> Tensor | None:
        """The result of one layer; None where it has to be computed alone."""
        if torch.compiler.is_compiling():
            return self._in_code(place, x)
        if torch.is_grad_enabled() or is_watched() or type(x) is not Tensor or not is_known(x):
            return None
        if x.is_inference() and not self._is_steady:
            return None
        version = version_of(x)
        if place == 0:
            outputs = self._computed(x)
            self._state = None if outputs is None else (x, version, outputs)
            return None if outputs is None else outputs[0]
        state = self._state
        if state is None or state[0] is not x or state[1] != version:
            return None
        if place == len(self.layers) - 1:
            self._state = None
        return state[2][place]

    def _in_code(self, place: int, x: Tensor) -> Tensor | None:
        """The layer's part under torch.compile, which keeps nothing between calls; None where PyTorch's own runs."""
        if torch.is_grad_enabled() or entry(x) not in self._compiled:
            return None
        if place == 0:
            self._traced = x, self.product(x, *self._joined).split(self._sizes, -1)
        traced = self._traced
        if place == len(self.layers) - 1:
            self._traced = None
        return None if traced is None or traced[0] is not x else traced[1][place]

    def _computed(self, x: Tensor) -> Sequence[Tensor] | None:
        key = entry(x)
        is_ours = key in self._keys or (self._open_keys and opened(key) in self._open_keys)
        if not is_ours or not self._is_joined():
            return None
        if key not in self._keys:  # of another length than was timed
            return self.product(x, *self._whole).split(self._sizes, -1)  # type: ignore[no-any-return]
        with held(ours=True):
            return self.product(x, *self._whole).split(self._sizes, -1)  # type: ignore[no-any-return]

    def _is_joined(self) -> bool:
        """Whether the operands still lie as they were joined: none was moved or replaced."""
        pieces = self.pieces()
        looks = [(id(one), one.data_ptr(), one.dtype, one.shape) for given in pieces for one in given]
        if looks != self._looks:
            self._looks, self._whole = looks, [view(one) for one in pieces]
            self._is_whole = all(one is not None for one in self._whole)
        return self._is_whole


class SharedForward:
    """The `forward` of one of the layers. A copy, and one read from a file, is the layer's own."""

    def __init__(self, module: nn.Module, layers: SharedLayers | None, place: int) -> None:
        self.module, self.layers, self._place = module, layers, place

    def __reduce__(self) -> tuple[Callable[..., SharedForward], tuple[nn.Module, None, int]]:
        """Pickles the layer alone."""
        return SharedForward, (self.module, None, 0)

    def __call__(self, x: Tensor) -> Any:
        """The layer's result."""
        found = None if self.layers is None else self.layers.result(self._place, x)
        return type(self.module).forward(self.module, x) if found is None else found
