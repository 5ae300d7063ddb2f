"""Functions that a model calls, and our operators in their place, for the inputs that these accept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tilewright.tuner.pytorch.acceleration.recognition.call import entries, entry, opened
from tilewright.tuner.pytorch.acceleration.recognition.calls import NAMES, call_of

_ATTENTION = functional.scaled_dot_product_attention
"""The function that models spend time in. PyTorch's module is asked for it at each call, which costs nothing; a mode
sees every function of a model: 12 layers of BERT then took the host 11 ms in place of 4 (H200, 2026-11-30)."""


class _OfThread(threading.local):
    run: Callable[..., Any] | None = None  # in place of attention
    seen = 0  # calls of attention by PyTorch's module


_OF_THREAD = _OfThread()
_LOCK = threading.Lock()
_inside = 0  # models that are called now, with attention replaced


def _attention(*arguments: Any, **named: Any) -> Any:
    """Attention while any thread has a model with it replaced: ours in that thread, where it is accepted.

    Our operator calls this function itself, where PyTorch's own runs: in turns, or after `off`.
    """
    _OF_THREAD.seen += 1
    run, _OF_THREAD.run = _OF_THREAD.run, None
    try:
        found = None if run is None else run(arguments, named)
    finally:
        _OF_THREAD.run = run
    return _ATTENTION(*arguments, **named) if found is None else found


@contextmanager
def _attention_by_name(run: Callable[..., Any] | None = None) -> Iterator[None]:
    """Calls of `torch.nn.functional.scaled_dot_product_attention` in this thread are counted, and run that first."""
    global _inside  # noqa: PLW0603 - PyTorch's module, whose name is changed, is one as well
    before, _OF_THREAD.run = _OF_THREAD.run, run
    with _LOCK:
        _inside += 1
        functional.scaled_dot_product_attention = _attention
    try:
        yield
    finally:
        _OF_THREAD.run = before
        with _LOCK:
            _inside -= 1
            if not _inside:
                functional.scaled_dot_product_attention = _ATTENTION


class _FunctionCalls(TorchFunctionMode):  # type: ignore[misc]
    """Runs our operators in the place of functions, with the arguments that were accepted."""

    def __init__(self, accepted: Mapping[str, Accepted]) -> None:
        super().__init__()
        self._accepted = {function: accepted[name] for function, name in NAMES.items() if name in accepted}
        self.seen = 0  # calls of functions that are replaced for some arguments

    def __torch_function__(self, function: Any, _types: Any, arguments: tuple[Any, ...] = (), named: Any = None) -> Any:
        """The function's result, by our operator where that is accepted."""
        named = named or {}
        accepted = self._accepted.get(function)
        if accepted is not None:
            self.seen += 1
            found = _result(accepted, function, arguments, named)
            if found is not None:
                return found
        return function(*arguments, **named)


def _result(accepted: Accepted, function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Our operator's result; None where PyTorch's function runs."""
    call = call_of(function, arguments, named)
    key = None if call is None else entries(call)
    if call is not None and call.is_plain and accepted.takes(key):
        return call.run(is_timed=key in accepted.eager)
    return None


class ForwardWithFunctions:
    """A model's `forward`, in which functions are replaced. `before`: the instance's own, None where it had none.

    A mode sees every function. Where the first call shows that the model's only function is attention, by the name that
    PyTorch's module has, later ones are without the mode.
    """

    def __init__(self, model: nn.Module, accepted: Mapping[str, Accepted]) -> None:
        self.before = vars(model).get("forward")
        self._forward = model.forward
        self._accepted = accepted
        self._calls = _FunctionCalls(accepted)
        self._is_by_name: bool | None = None if set(accepted) == {_ATTENTION.__name__} else False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The model's result, with attention and the other accepted functions by our operators."""
        if self._is_by_name is False or torch.compiler.is_compiling():
            with self._calls:
                return self._forward(*arguments, **named)
        if self._is_by_name:
            with _attention_by_name(self._attend):
                return self._forward(*arguments, **named)
        return self._first(arguments, named)

    def _attend(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return _result(self._accepted[_ATTENTION.__name__], _ATTENTION, arguments, named)

    def _first(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The result of the first call, with the mode; it shows whether calls by name suffice."""
        by_mode, by_name = self._calls.seen, _OF_THREAD.seen
        with _attention_by_name(), self._calls:
            result = self._forward(*arguments, **named)
        seen = self._calls.seen - by_mode
        if seen:
            self._is_by_name = seen == _OF_THREAD.seen - by_name
        return result


class Accepted:
    """The inputs with which our operator runs; with any other PyTorch's own does.

    `open_keys`: those of inputs that may have any number of rows. `with_gradients`: it was judged with gradients
    recorded, and so runs then too.
    """

    def __init__(
        self,
        eager: frozenset[Hashable],
        compiled: frozenset[Hashable],
        open_keys: frozenset[Hashable] = frozenset(),
        *,
        with_gradients: bool,
    ) -> None:
        self.eager, self.compiled, self.open_keys = eager, compiled, open_keys
        self.with_gradients = with_gradients

    def takes_any_rows_of(self, x: Tensor) -> bool:
        """Whether inputs that have only another number of rows are ours too."""
        return bool(self.open_keys) and opened(entry(x)) in self.open_keys

    def takes(self, key: Hashable) -> bool:
        """Whether a call with that entry is ours."""
        if torch.is_grad_enabled() and not self.with_gradients:
            return False
        if torch.compiler.is_compiling():
            return key in self.compiled
        is_accepted = key in self.eager or (self.open_keys and opened(key) in self.open_keys)
        return bool(is_accepted) and torch._C._functorch.peek_interpreter_stack() is None  # noqa: SLF001 - as in operator.py; there is no rule for vmap


@cache
def accepted_inputs(
    eager: frozenset[Hashable], compiled: frozenset[Hashable], open_keys: frozenset[Hashable], *, with_gradients: bool
) -> Accepted:
    """An object that is the same for the same inputs: torch.compile makes code for each object."""
    return Accepted(eager, compiled, open_keys, with_gradients=with_gradients)
