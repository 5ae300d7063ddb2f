"""The sites of a model where our operators could stand in, found in one watched run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tilewright.kernels.linear_quantized.reference import GROUP, MOST_ROWS
from tilewright.tuner.pytorch import plans
from tilewright.tuner.pytorch.acceleration.installation.installed import SHARED, Replacement
from tilewright.tuner.pytorch.acceleration.installation.quantised import INT8
from tilewright.tuner.pytorch.acceleration.recognition.call import Call, entries, entry
from tilewright.tuner.pytorch.acceleration.recognition.calls import (
    FUNCTIONS,
    NAMES,
    call_of,
    foreign,
    of_turned_layer,
    stand_in,
)
from tilewright.tuner.pytorch.acceleration.recognition.left import tied
from tilewright.tuner.pytorch.operators.gated import LINEAR_GATED
from tilewright.tuner.pytorch.operators.products import LINEAR
from tilewright.tuner.pytorch.operators.quantised import LINEAR_QUANTIZED, int8_of

ROWS = frozenset({"linear", "linear_gated", "layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm", "softmax"})
"""Kernels whose input is rows, which do not know of each other."""


@dataclass(eq=False)
class Site:
    """All calls that pose one problem in one way: of equal modules, of a function, or of a fusion in modules.

    `call` is an example with the tensors of the sample, `original` what PyTorch does there, `calls` those in one run.
    `weights`: "int8" where those of the modules would become whole numbers.
    """

    call: Call
    original: Callable[[], Any]
    entry: Hashable
    function: str = ""
    modules: dict[str, None] = field(default_factory=dict)
    calls: int = 0
    fusion: str = ""
    weights: str = ""

    def stand(self, *, compiled: bool = False) -> Replacement:
        """The replacement at this site."""
        is_compiled = compiled and self.can_compile
        where = tuple(self.modules), self.function
        return Replacement(self.entry, *where, is_compiled, self.fusion, self.weights, self.takes_any_rows)

    @property
    def takes_any_rows(self) -> bool:
        """Whether inputs may have any number of rows: modules' may, if the runtime serves all rows of the kernel."""
        kernel = self.call.operator.kernel
        return bool(self.modules) and kernel in ROWS and plans.runtime().serves_any_size(kernel)

    @property
    def can_compile(self) -> bool:
        """Whether the replacement may stay under torch.compile, which fuses by itself all but joined products."""
        return not self.fusion or self.fusion == SHARED or self.call.operator is LINEAR_GATED

    @property
    def words(self) -> str:
        """The site's name, for a table."""
        if self.function:
            return self.function
        names = [_short(name) or "the model" for name in self.modules]
        kind = " ".join(filter(None, (self.weights, self.fusion.partition(" ")[0])))
        what = f"{kind} in " if kind else ""
        return what + (names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more")


def _short(name: str) -> str:
    """A short name: of layers with a common input, only the first has its module's name in front."""
    owner = name.partition("+")[0].rpartition(".")[0]
    return name.replace(f"+{owner}.", "+")


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Collects the functions that are called outside of modules that are sites themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[Hashable, Site] = {}
        self._inside = 0

    def __torch_function__(self, function: Any, _types: Any, arguments: tuple[Any, ...] = (), named: Any = None) -> Any:
        """The function's result; a call that our operators know is noted as a site."""
        named = named or {}
        if function in FUNCTIONS and not self._inside:
            call = call_of(function, arguments, named)
            if call is not None:
                name = NAMES[function]
                self._add(
                    (name, entries(call)), call, entries(call), lambda: function(*arguments, **named)
                ).function = name
        return function(*arguments, **named)

    def enter(self, name: str, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Notes a module's call as a site, before it runs."""
        self._inside += 1
        if len(arguments) != 1 or named or not isinstance(arguments[0], Tensor):
            return
        [x] = arguments
        make = stand_in(module)
        call = None if make is None else make(module, x)
        if call is not None:
            kind, plain = type(module), type(module).forward
            site = self._add((kind, entries(call)), call, entry(x), lambda: plain(module, x))
            site.modules[name] = None

    def leave(self, *_: Any) -> None:
        """Notes that the module has run, or failed."""
        self._inside -= 1

    def _add(self, key: Hashable, call: Call, which: Hashable, original: Callable[[], Any]) -> Site:
        site = self.sites.get(key) or self.sites.setdefault(key, Site(call, original, which))
        site.calls += 1
        return site


def observe(model: nn.Module, run: Callable[[], Any]) -> list[Site]:
    """The sites of one run."""
    watch, fixed = _Watch(), tied(model.parameters())
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            is_fixed = foreign(module) is of_turned_layer and id(module.weight) in fixed
            if stand_in(module) is not None and not is_fixed:
                before = module.register_forward_pre_hook(
                    lambda module, arguments, named, name=name: watch.enter(name, module, arguments, named),
                    with_kwargs=True,
                )
                hooks.callback(before.remove)
                hooks.callback(module.register_forward_hook(watch.leave, always_call=True).remove)
        with watch:
            run()
    return list(watch.sites.values())


def quantised_sites(sites: Sequence[Site]) -> list[Site]:
    """The sites with weights of 8 bits, for layers that the kernel computes, alone and joined by a common input.

    Other fusions of layers are not among them.
    """
    if not any(map(_is_fit, sites)):
        return list(sites)
    others = [one for one in sites if _is_fit(one) or not (one.fusion and one.call.operator in {LINEAR, LINEAR_GATED})]
    return [_quantised(one) if _is_fit(one) else one for one in others]


def _is_fit(site: Site) -> bool:
    if site.call.operator is not LINEAR or not site.modules or site.fusion not in {"", SHARED}:
        return False
    x, w, b, *_ = site.call.arguments
    is_whole = type(w) is nn.Parameter or site.fusion == SHARED
    return is_whole and b is None and w.dtype in {torch.bfloat16, torch.float16} and _fits(x, w)


def _fits(x: Tensor, w: Tensor) -> bool:
    return bool(w.shape[1] % GROUP == 0 and x.numel() <= MOST_ROWS * w.shape[1])


def _quantised(site: Site) -> Site:
    x, w, *_ = site.call.arguments
    return replace(site, call=Call(LINEAR_QUANTIZED, (x, *int8_of(w), INT8)), weights=INT8)
