"""Stand-ins for modules and functions while a model is accelerated, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from tilewright.tuner.pytorch.acceleration.graphs.graph import GraphForward
from tilewright.tuner.pytorch.acceleration.installation.functions import Accepted, ForwardWithFunctions, accepted_inputs
from tilewright.tuner.pytorch.acceleration.installation.fused import FusedForward
from tilewright.tuner.pytorch.acceleration.installation.quantised import (
    QuantisedLayers,
    QuantisedLinear,
    forget,
    quantise,
)
from tilewright.tuner.pytorch.acceleration.installation.shared import (
    SharedForward,
    SharedLayers,
    can_join,
    changes_nothing,
    part,
    turn,
)
from tilewright.tuner.pytorch.acceleration.recognition.call import Call, entry, opened
from tilewright.tuner.pytorch.acceleration.recognition.calls import MODULES, foreign, of_turned_layer
from tilewright.tuner.pytorch.warm import Warm

SHARED = "shared"
"""The fusion of layers that have one input, whose names are joined by a plus."""


@dataclass(frozen=True)
class Replacement:
    """A place where our operator stands in: modules with that input, or a function with these arguments.

    `compiled`: under `torch.compile` too. `fusion`: which in the code of the modules, whose arguments `entry` tells.
    `weights`: "int8" where those of the modules become whole numbers. `any_rows`: with inputs of other lengths too.
    """

    entry: Hashable
    modules: tuple[str, ...] = ()
    function: str = ""
    compiled: bool = False
    fusion: str = ""
    weights: str = ""
    any_rows: bool = False


class Replaced:
    """Our operator in the place of one module."""

    __slots__ = ("_accepted", "warm")

    def __init__(self, accepted: Accepted) -> None:
        self._accepted, self.warm = accepted, Warm()

    def result(self, module: Any, x: Tensor, make: Callable[[Any, Tensor], Call | None]) -> Any:
        """The operator's result, for inputs that `warm` does not know; None where PyTorch's own runs."""
        key = entry(x)
        if self._accepted.takes(key):
            call, is_timed = make(module, x), key in self._accepted.eager
            if call is not None and call.is_plain:
                found = call.run(is_timed=is_timed)
                if not torch.compiler.is_compiling():
                    parameters = list(module._parameters.values())  # noqa: SLF001 - an attribute of a module is looked up in 0.5 us
                    any_rows = self._accepted.takes_any_rows_of(x)
                    self.warm.learn(call, x, parameters, any_rows=any_rows, is_timed=is_timed)
                return found
        return None


class AcceleratedModule:
    """A module that runs our operator with the inputs that were accepted."""

    plain: ClassVar[type[nn.Module]]
    _tilewright: Replaced
    _parameters: dict[str, nn.Parameter | None]

    def forward(self, input: Tensor) -> Any:  # noqa: A002 - PyTorch's name
        """The result of PyTorch's class."""
        replaced = self._tilewright
        if not torch.compiler.is_compiling():
            found = replaced.warm.run(input, self._parameters.values())
            if found is not None:
                return found
        found = replaced.result(self, input, MODULES[self.plain])
        return super().forward(input) if found is None else found  # type: ignore[misc]


class AcceleratedLinear(AcceleratedModule, nn.Linear):  # type: ignore[misc]
    """A layer that runs `tw.linear` for accepted inputs."""

    plain = nn.Linear


class AcceleratedConv1d(AcceleratedModule, nn.Conv1d):  # type: ignore[misc]
    """A layer that runs `tw.conv2d` on images of one row for accepted inputs."""

    plain = nn.Conv1d


class AcceleratedConv2d(AcceleratedModule, nn.Conv2d):  # type: ignore[misc]
    """A layer that runs `tw.conv2d` for accepted inputs."""

    plain = nn.Conv2d


class AcceleratedLayerNorm(AcceleratedModule, nn.LayerNorm):  # type: ignore[misc]
    """A layer that runs `tw.layer_norm` for accepted inputs."""

    plain = nn.LayerNorm


class AcceleratedRMSNorm(AcceleratedModule, nn.RMSNorm):  # type: ignore[misc]
    """A layer that runs `tw.rms_norm` for accepted inputs."""

    plain = nn.RMSNorm

    def forward(self, x: Tensor) -> Any:
        """The result of PyTorch's class, which has another name for its argument than the others."""
        return super().forward(x)


class AcceleratedSoftmax(AcceleratedModule, nn.Softmax):  # type: ignore[misc]
    """A layer that runs `tw.softmax` for accepted inputs."""

    plain = nn.Softmax


CLASSES: Mapping[type[nn.Module], type[nn.Module]] = {
    nn.Linear: AcceleratedLinear,
    nn.Conv1d: AcceleratedConv1d,
    nn.Conv2d: AcceleratedConv2d,
    nn.LayerNorm: AcceleratedLayerNorm,
    nn.RMSNorm: AcceleratedRMSNorm,
    nn.Softmax: AcceleratedSoftmax,
}
_PLAIN: Mapping[type[nn.Module], type[nn.Module]] = {ours: theirs for theirs, ours in CLASSES.items()} | {
    QuantisedLinear: nn.Linear
}


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The module's class without us."""
    return _PLAIN.get(type(module), type(module))


class ForeignForward:
    """The `forward` of a module of another library's class, which runs our operator with accepted inputs."""

    def __init__(self, module: nn.Module, accepted: Accepted) -> None:
        self._module, self._replaced, self._make = module, Replaced(accepted), foreign(module)

    def __call__(self, *given: Any, **named: Any) -> Any:
        """The result of its class, whose other arguments are known to it alone."""
        found = None
        if len(given) == 1 and not named and isinstance(given[0], Tensor) and self._make is not None:
            if not torch.compiler.is_compiling():
                parameters = self._module._parameters.values()  # noqa: SLF001 - as above
                found = self._replaced.warm.run(given[0], parameters)
            if found is None:
                found = self._replaced.result(self._module, given[0], self._make)
        return type(self._module).forward(self._module, *given, **named) if found is None else found


@dataclass
class _Keys:
    eager: set[Hashable] = field(default_factory=set)
    compiled: set[Hashable] = field(default_factory=set)
    any_rows: set[Hashable] = field(default_factory=set)

    def accepted(self, *, with_gradients: bool) -> Accepted:
        keys = frozenset(self.eager), frozenset(self.compiled), frozenset(self.any_rows)
        return accepted_inputs(*keys, with_gradients=with_gradients)


def install(model: nn.Module, stands: Sequence[Replacement], *, with_gradients: bool) -> None:
    """Puts our operators in these places, and PyTorch's own in all others."""
    _remove(model)
    by_module: dict[str, _Keys] = {}
    by_function: dict[str, _Keys] = {}
    in_whole_numbers = {one for stand in stands if stand.weights for name in stand.modules for one in name.split("+")}
    for name in in_whole_numbers:
        by_module[name] = _Keys()
        quantise(model.get_submodule(name))
    fusions: dict[str, dict[Hashable, set[str]]] = {}
    compiled: dict[str, set[Hashable]] = {}
    open_keys: set[Hashable] = set()
    for stand in stands:
        if stand.fusion:
            open_keys |= {opened(stand.entry)} if stand.any_rows else set()
            for name in stand.modules:
                fusions.setdefault(name, {}).setdefault(stand.entry, set()).add(stand.fusion)
                if stand.compiled:
                    compiled.setdefault(name, set()).add(stand.entry)
            continue
        places = [by_module.setdefault(name, _Keys()) for name in stand.modules]
        places += [by_function.setdefault(stand.function, _Keys())] if stand.function else []
        for keys in places:
            keys.eager.add(stand.entry)
            keys.any_rows |= {opened(stand.entry)} if stand.any_rows else set()
            keys.compiled |= {stand.entry} if stand.compiled else set()
    # First, while all modules are of PyTorch's classes.
    which = _Fusions(fusions, compiled, frozenset(open_keys), in_whole_numbers)
    _install_fusions(model, which, with_gradients=with_gradients)
    for name, keys in by_module.items():
        accepted = keys.accepted(with_gradients=with_gradients)
        _install_module(model.get_submodule(name), accepted, is_quantised=name in in_whole_numbers)
    if by_function:
        functions = {name: keys.accepted(with_gradients=with_gradients) for name, keys in by_function.items()}
        model.forward = ForwardWithFunctions(model, functions)


def _install_module(module: nn.Module, accepted: Accepted, *, is_quantised: bool) -> None:
    if type(module) in CLASSES:
        module.__class__ = QuantisedLinear if is_quantised else CLASSES[type(module)]
        vars(module)["_tilewright"] = Replaced(accepted)
        return
    if foreign(module) is of_turned_layer:
        turn(module.weight)
    module.forward = _kept(module, accepted, partial(ForeignForward, module, accepted))


class _Fusions(NamedTuple):
    """The names of each module's fusions by its arguments; those for torch.compile; the arguments of any length."""

    by_module: Mapping[str, Mapping[Hashable, set[str]]]
    compiled: Mapping[str, set[Hashable]]
    open_keys: frozenset[Hashable]
    in_whole_numbers: set[str]


def _install_fusions(model: nn.Module, fusions: _Fusions, *, with_gradients: bool) -> None:
    in_whole_numbers, open_keys = fusions.in_whole_numbers, fusions.open_keys
    for name, by_key in fusions.by_module.items():
        in_code = frozenset(fusions.compiled.get(name, ()))
        keys = tuple((key, frozenset(names)) for key, names in by_key.items())
        which: Hashable = name, keys, in_code, open_keys, with_gradients
        if {SHARED} in by_key.values():
            names = name.split("+")
            layers, is_quantised = [model.get_submodule(one) for one in names], in_whole_numbers.issuperset(names)
            if is_quantised or can_join(layers):
                owner = model.get_submodule(names[0].rpartition(".")[0])
                kind = QuantisedLayers if is_quantised else SharedLayers
                is_steady = changes_nothing(type(owner).forward)
                shared = kind(layers, frozenset(by_key), in_code, open_keys, is_steady=is_steady)
                forwards = _kept(layers[0], (which, is_quantised), shared.forwards)
                forwards[0].layers.join()
                for layer, forward in zip(layers, forwards, strict=True):
                    layer.forward = forward
        else:
            module = model.get_submodule(name)
            made = partial(FusedForward, module, by_key, in_code, open_keys, with_gradients=with_gradients)
            forward = _kept(module, which, made)
            forward.join()
            module.forward = forward


class _Made(dict[Hashable, Any]):
    """Stand-ins made for a module. A copy of it, and one that is read from a file, is empty."""

    def __reduce__(self) -> tuple[type[_Made], tuple[()]]:
        """Pickles as an empty one: what is installed belongs to this process."""
        return _Made, ()


def _kept(module: nn.Module, which: Hashable, make: Callable[[], Any]) -> Any:
    """The same object for the same purpose until all is uninstalled: torch.compile makes code for each object."""
    made = vars(module).setdefault("_tilewright_made", _Made())
    if which not in made:
        made[which] = make()
    return made[which]


def uninstall(model: nn.Module) -> None:
    """Puts the model back as it was."""
    _remove(model)
    part(model.parameters())
    forget(model)
    for module in model.modules():
        vars(module).pop("_tilewright_made", None)


def _remove(model: nn.Module) -> None:
    while isinstance(forward := vars(model).get("forward"), GraphForward | ForwardWithFunctions):
        del model.forward
        if forward.before is not None:
            model.forward = forward.before
    for module in model.modules():
        if type(module) in _PLAIN:
            module.__class__ = _PLAIN[type(module)]
            vars(module).pop("_tilewright", None)
        if isinstance(vars(module).get("forward"), ForeignForward | FusedForward | SharedForward):
            del module.forward
