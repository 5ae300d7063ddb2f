"""A model's fusions, found by tracing the code of each of its modules with the arguments of one run."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from tilewright.tuner.pytorch.acceleration.installation.installed import SHARED
from tilewright.tuner.pytorch.acceleration.installation.shared import can_join, parameters_of
from tilewright.tuner.pytorch.acceleration.recognition.call import Call, entries, entry
from tilewright.tuner.pytorch.acceleration.recognition.calls import stand_in
from tilewright.tuner.pytorch.acceleration.recognition.left import tied
from tilewright.tuner.pytorch.acceleration.recognition.patterns import Joined, Match, Parameter, find
from tilewright.tuner.pytorch.acceleration.recognition.sites import Site
from tilewright.tuner.pytorch.acceleration.recognition.traced import (
    Around,
    Values,
    described,
    evaluated,
    parameter,
    trace,
)
from tilewright.tuner.pytorch.operator import is_watched
from tilewright.tuner.pytorch.operators.products import LINEAR
from tilewright.tuner.pytorch.precision import ALLOWED


class _Search:
    """The fusions of modules as they are called, with one site for equal ones."""

    def __init__(self, tied: set[int]) -> None:
        self.sites: dict[Hashable, Site] = {}
        self._tied = tied
        self.untraceable: dict[str, str] = {}
        self._known: dict[Hashable, list[Hashable]] = {}
        self._is_busy = False
        self._layers: list[tuple[str, nn.Module]] = []
        self._input: tuple[str, Tensor] | None = None
        self._copy = torch.empty(0)

    def enter_layer(self, name: str, module: nn.Module, positional: tuple[Any, ...]) -> None:
        """Notes a linear layer, before it runs, with those before it in its module that have the same input.

        Among them are a layer and the first one of an adapter beside it.
        """
        if self._is_busy or len(positional) != 1 or not isinstance(positional[0], Tensor):
            return
        owner, [x] = name.rpartition(".")[0], positional
        is_same = self._input is not None and _is_within(owner, self._input[0]) and self._input[1] is x
        if not is_same or not torch.equal(x, self._copy):  # it may have been changed in place, which nobody counts
            self.finish_layers()
            self._input, self._copy = (owner, x), x.detach().clone()
        self._layers.append((name, module))

    def finish_layers(self) -> None:
        """Makes the noted layers a site."""
        layers = [module for _, module in self._layers]
        is_free = self._tied.isdisjoint(id(one) for layer in layers for one in layer.parameters())
        if self._input and len(layers) > 1 and not torch.is_grad_enabled() and is_free and can_join(layers):
            x = self._input[1]
            parameters = [torch.cat([one.detach() for one in given]) for given in parameters_of(layers)]
            call = Call(LINEAR, (x, parameters[0], parameters[1] if parameters[1:] else None, "none", ALLOWED))
            which = "shared", entries(call), tuple(one.out_features for one in layers)
            site = self.sites.setdefault(
                which, Site(call, lambda: torch.cat([one(x) for one in layers], -1), entry(x), fusion=SHARED)
            )
            site.modules["+".join(name for name, _ in self._layers)] = None
            site.calls += 1
        self._layers, self._input = [], None

    def enter(self, name: str, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Looks for fusions in a module before it runs."""
        if self._is_busy:  # to take values runs a module's own modules
            return
        self._is_busy = True
        try:
            self._look(name, module, positional, named)
        except Exception as error:  # noqa: BLE001 - the code is somebody else's; without fusions it runs as ever
            self.untraceable[type(module).__name__] = str(error).partition(". ")[0]
        finally:
            self._is_busy = False

    def _look(self, name: str, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        tensors: list[Tensor] = []
        key = described((positional, named), tensors)
        alike = (
            type(module),
            key,
            repr(module),
            tuple((path, tuple(one.shape)) for path, one in module.named_parameters()),
        )
        if alike not in self._known:
            around, graph = trace(module, key)
            matches = find(around, graph)
            wanted = {node for match in matches for node in graph.nodes if _reads(match, node)}
            values = Values(around, graph, wanted)
            if matches:
                values.run(tensors)
            self._known[alike] = [self._add(key, around, match, values.values) for match in matches]
        for which in self._known[alike]:
            site = self.sites[which]
            site.modules[name] = None
            site.calls += 1

    def _add(self, key: Hashable, around: Around, match: Match, values: dict[str, Any]) -> Hashable:
        call = Call(match.operator, tuple(_value(one, around, values) for one in match.arguments))

        def original() -> Any:
            known = evaluated(around, match.nodes, values)
            results = tuple(known[node.name] for node in match.results)
            return results if len(results) > 1 else results[0]

        which = type(around.m), key, match.name, entries(call)
        self.sites.setdefault(which, Site(call, original, key, fusion=match.name))
        return which


def _is_within(owner: str, other: str) -> bool:
    return not other or owner == other or owner.startswith(f"{other}.")


def _reads(match: Match, node: Any) -> bool:
    return node in match.arguments or any(node in one.all_input_nodes for one in match.nodes)


def _value(argument: Any, around: Around, values: dict[str, Any]) -> Any:
    if isinstance(argument, Parameter):
        return parameter(around, argument.name)
    if isinstance(argument, Joined):
        return torch.cat([parameter(around, name) for name in argument.names])
    return values[argument.name] if hasattr(argument, "all_input_nodes") else argument


def search(model: nn.Module, run: Callable[[], Any]) -> tuple[list[Site], dict[str, str]]:
    """The fusions that one run would have, and by class of module why its code could not be traced."""
    found = _Search(tied(model.parameters()))
    if is_watched():  # by autocast, for one: what is fused stays PyTorch's there
        return [], {}
    names = {module: name for name, module in model.named_modules() if type(module) is nn.Linear}

    def enter_any(module: nn.Module, positional: tuple[Any, ...]) -> None:
        if module in names:
            found.enter_layer(names[module], module, positional)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            has_layers = any(stand_in(one) is not None for one in module.children())
            if has_layers and "forward" not in vars(module):
                before = module.register_forward_pre_hook(
                    lambda module, positional, named, name=name: found.enter(name, module, positional, named),
                    with_kwargs=True,
                )
                hooks.callback(before.remove)
        hooks.callback(register_module_forward_pre_hook(enter_any).remove)  # no hook of the layer's own
        run()
    found.finish_layers()
    return list(found.sites.values()), found.untraceable
