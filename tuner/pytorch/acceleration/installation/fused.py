"""The `forward` of a module in whose code several of PyTorch's operators are one of ours."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from tilewright.tuner.pytorch.acceleration.installation.shared import join
from tilewright.tuner.pytorch.acceleration.recognition.call import opened
from tilewright.tuner.pytorch.acceleration.recognition.patterns import Joined, find
from tilewright.tuner.pytorch.acceleration.recognition.traced import (
    UntraceableError,
    described,
    function_of,
    held,
    parameter,
    trace,
)
from tilewright.tuner.pytorch.operator import PLAIN, is_watched
from tilewright.tuner.turns import turns

_MADE: WeakKeyDictionary[nn.Module, dict[Hashable, Code]] = WeakKeyDictionary()


class Code:
    """A module's code with fusions, and the modules that it does not call any more."""

    def __init__(self, module: nn.Module, key: Hashable, names: frozenset[str]) -> None:
        around, graph = trace(module, key)
        matches = [one for one in find(around, graph) if one.name in names]
        if len(matches) != len(names):
            raise UntraceableError(f"{type(module).__name__} has no {', '.join(sorted(names))} in its code")
        self._passed = []
        self.joined = {
            one.whole: tuple(parameter(around, name) for name in one.names)
            for match in matches
            for one in match.arguments
            if isinstance(one, Joined)
        }
        now: dict[Any, Any] = {}
        for match in matches:
            for path in match.modules:
                owner, _, name = path.rpartition(".")
                place = vars(around.get_submodule(owner))["_modules"]
                self._passed.append((place, name, place[name], vars(place[name])))
            match.replace(graph, now)
        self.run = function_of(graph)

    def stands(self) -> bool:
        """Whether the modules that are passed over are those that were traced, and nobody watches them."""
        return not any(
            place.get(name) is not module or own["_forward_hooks"] or own["_forward_pre_hooks"]
            for place, name, module, own in self._passed
        )


class FusedForward:
    """The `forward` of one module: its code with fusions for accepted arguments, else its own.

    A copy, and what is read from a file, is the module's own.
    """

    def __init__(
        self,
        module: nn.Module,
        by_key: Mapping[Hashable, Iterable[str]],
        compiled: frozenset[Hashable] = frozenset(),
        open_keys: frozenset[Hashable] = frozenset(),
        *,
        with_gradients: bool,
    ) -> None:
        self.module, self._with_gradients, self._held = module, with_gradients, held(module)
        self._compiled = compiled
        made = _MADE.setdefault(module, {})
        self._codes: dict[Hashable, Code] = {}
        self._open: dict[Hashable, Code] = {}
        for key, names in by_key.items():
            which = key, frozenset(names)
            made[which] = self._codes[key] = made.get(which) or Code(module, *which)
            if opened(key) in open_keys:  # torch.fx has seen no sizes
                self._open[opened(key)] = self._codes[key]

    def join(self) -> None:
        """Puts the parameters of layers that are computed together where they are one."""
        for code in self._codes.values():
            for name, parameters in code.joined.items():
                setattr(self._held, name, join(parameters))

    def __reduce__(self) -> tuple[Callable[..., FusedForward], tuple[nn.Module]]:
        """Pickles the module without fusions, as their code belongs to this process."""
        return _plain, (self.module,)

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """The module's result, by fused code where there is some for such arguments."""
        code, tensors, is_timed = self._code(positional, named)
        if code is None:
            return type(self.module).forward(self.module, *positional, **named)
        if not is_timed or torch.compiler.is_compiling():
            return code.run(self._held, tensors)
        with turns.held(ours=True):
            return code.run(self._held, tensors)

    def _code(self, positional: tuple[Any, ...], named: dict[str, Any]) -> tuple[Code | None, list[torch.Tensor], bool]:
        """The code for these arguments, its tensors, and whether both sides were timed at these sizes."""
        tensors: list[torch.Tensor] = []
        if (torch.is_grad_enabled() and not self._with_gradients) or self.module.training:
            return None, tensors, False
        is_compiling = torch.compiler.is_compiling()
        if (not self._compiled or torch.is_grad_enabled()) if is_compiling else is_watched():
            return None, tensors, False
        try:
            key = described((positional, named), tensors)
            code = self._codes.get(key) or (self._open.get(opened(key)) if self._open else None)
        except UntraceableError:
            return None, tensors, False
        if is_compiling:
            return (code if key in self._compiled else None), tensors, False
        is_fit = code is not None and code.stands() and all(type(one) in PLAIN for one in tensors)
        return (code if is_fit else None), tensors, key in self._codes


def _plain(module: nn.Module) -> FusedForward:
    return FusedForward(module, {}, with_gradients=False)
