"""Parts of a module's graph that one kernel computes: a layer and its activation, a sum and its norm, a gated pair."""

from __future__ import annotations

from collections.abc import Mapping
from operator import add, getitem, mul
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from tilewright.tuner.pytorch.acceleration.installation.shared import can_join, view
from tilewright.tuner.pytorch.acceleration.recognition.calls import stand_in
from tilewright.tuner.pytorch.acceleration.recognition.traced import Around
from tilewright.tuner.pytorch.operator import OPERATORS, Operator
from tilewright.tuner.pytorch.operators.gated import GATES, LINEAR_GATED
from tilewright.tuner.pytorch.operators.norms import ADD_LAYER_NORM, ADD_RMS_NORM, LAYER_NORM, RMS_NORM
from tilewright.tuner.pytorch.operators.products import ACTIVATIONS, LINEAR
from tilewright.tuner.pytorch.precision import ALLOWED


class Parameter(NamedTuple):
    """A parameter by its name from the graph's root."""

    name: str


class Joined(NamedTuple):
    """Parameters by their names, rows behind rows."""

    names: tuple[str, ...]

    @property
    def whole(self) -> str:
        """The joined parameters' name as one tensor, beside the graph's module."""
        return "_".join(self.names).replace(".", "_")


class Match(NamedTuple):
    """Nodes that one call of an operator computes; `name` says which, and what is fused.

    `arguments`: nodes, parameters and constants. `results`: the nodes whose values the operator has, in its order.
    """

    name: str
    operator: Operator
    arguments: tuple[Any, ...]
    nodes: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]

    @property
    def modules(self) -> list[str]:
        """The modules that are not called any more, by their names from the graph's root."""
        return [str(node.target) for node in self.nodes if node.op == "call_module"]

    def replace(self, graph: fx.Graph, now: dict[fx.Node, fx.Node]) -> None:
        """Puts the call in the place of the nodes; `now`: replacements of nodes that were replaced before."""
        with graph.inserting_before(self.nodes[0]):
            given = [_given(graph, now.get(one, one) if isinstance(one, fx.Node) else one) for one in self.arguments]
            made = graph.call_function(run, (self.operator.name, *given))
            several = len(self.results) > 1
            parts = [graph.call_function(getitem, (made, place)) for place in range(len(self.results)) if several]
        for node, part in zip(self.results, parts or [made], strict=True):
            node.replace_all_uses_with(part)
            now[node] = part
        for node in reversed(self.nodes):
            graph.erase_node(node)


def _given(graph: fx.Graph, argument: Any) -> Any:
    if isinstance(argument, Joined):
        return [graph.get_attr(name) for name in argument.names], graph.get_attr(argument.whole)
    return graph.get_attr(argument.name) if isinstance(argument, Parameter) else argument


def run(name: str, *arguments: Any) -> Any:
    """The operator's result; joined parameters count as one, and are copied only if they were moved apart."""
    return OPERATORS[name](*[_whole(*one) if isinstance(one, tuple) else one for one in arguments])


def _whole(parameters: list[Any], joined: Any) -> Any:
    if torch.compiler.is_compiling():  # which cannot look where tensors lie
        return joined
    whole = None if torch.is_grad_enabled() else view(parameters)  # a view knows nothing of gradients
    return torch.cat(parameters) if whole is None else whole


def find(around: Around, graph: fx.Graph) -> list[Match]:
    """The matches, no two of which have a node in common."""
    modules = dict(around.named_modules())
    taken: set[fx.Node] = set()
    matches = []
    for node in graph.nodes:
        match = _activated(node, modules) or _normed_sum(node, modules) or _gated(node, modules)
        if match is not None and taken.isdisjoint(match.nodes):
            taken |= set(match.nodes)
            matches.append(match)
    return matches


_ACTIVATIONS: Mapping[Any, str] = {
    F.gelu: "gelu",
    F.relu: "relu",
    F.silu: "silu",
    torch.relu: "relu",
    torch.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    "relu": "relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    nn.GELU: "gelu",
    nn.ReLU: "relu",
    nn.SiLU: "silu",
    "SiLUActivation": "silu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    "GELUActivation": "gelu",
}
"""Activations by function, method, PyTorch's class, or another library's class, which a comparison confirms."""


def _module(node: Any, modules: Mapping[str, nn.Module]) -> nn.Module | None:
    """The module that is called with one argument and has no hooks of its own."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    module = modules[str(node.target)]
    return None if module._forward_hooks or module._forward_pre_hooks else module  # noqa: SLF001 - no public name asks


def _activation(node: fx.Node, modules: Mapping[str, nn.Module]) -> str:
    module = _module(node, modules)
    if module is not None:
        is_exact = getattr(module, "approximate", "none") == "none"
        found = _ACTIVATIONS.get(type(module)) or _ACTIVATIONS.get(type(module).__name__, "")
        return found if is_exact else ""
    if node.op in {"call_function", "call_method"} and len(node.args) == 1:
        is_exact = node.kwargs.get("approximate", "none") == "none" and set(node.kwargs) <= {"approximate", "inplace"}
        return _ACTIVATIONS.get(node.target, "") if is_exact and not node.kwargs.get("inplace") else ""
    return ""


def _activated(node: fx.Node, modules: Mapping[str, nn.Module]) -> Match | None:
    """An activation of nothing but a layer, which nobody else uses."""
    activation = _activation(node, modules)
    before: Any = node.args[0] if activation else None
    layer: Any = _module(before, modules)
    if type(layer) is not nn.Linear or len(before.users) != 1 or activation not in ACTIVATIONS:
        return None
    bias = None if layer.bias is None else Parameter(f"{before.target}.bias")
    arguments = (before.args[0], Parameter(f"{before.target}.weight"), bias, activation, ALLOWED)
    return Match(f"{activation}(linear) {node.name}", LINEAR, arguments, (before, node), (node,))


def _normed_sum(node: fx.Node, modules: Mapping[str, nn.Module]) -> Match | None:
    """A norm of a sum of two tensors; the sum is a result too."""
    norm = _module(node, modules)
    total: Any = node.args[0] if norm is not None else None
    if norm is None or not isinstance(total, fx.Node) or total.target not in {add, torch.add} or total.kwargs:
        return None
    terms, make = total.args, stand_in(norm)
    if len(terms) != 2 or not all(isinstance(one, fx.Node) for one in terms) or make is None:
        return None
    call = make(norm, torch.empty(1))
    known = {LAYER_NORM: ADD_LAYER_NORM, RMS_NORM: ADD_RMS_NORM}
    if call is None or call.operator not in known:
        return None
    names = ("weight", "bias") if call.operator is LAYER_NORM else ("weight",)
    vectors = [Parameter(f"{node.target}.{name}") for name in names]
    operator = known[call.operator]
    arguments = (*terms, *vectors, call.arguments[-1])
    return Match(f"{operator.name} {node.name}", operator, arguments, (total, node), (node, total))


def _gated(node: fx.Node, modules: Mapping[str, nn.Module]) -> Match | None:
    """A product of an activated layer and another layer of the same input."""
    if node.target not in {mul, torch.mul} or node.kwargs or not all(isinstance(one, fx.Node) for one in node.args):
        return None
    for active, up in (node.args, node.args[::-1]):
        activation = _activation(active, modules)
        gate: Any = active.args[0] if activation in GATES else None
        layers: list[Any] = [_module(gate, modules), _module(up, modules)]
        if not all(type(one) is nn.Linear and one.bias is None for one in layers):
            continue
        is_alone = all(len(one.users) == 1 for one in (active, gate, up)) and can_join(layers)
        if is_alone and gate.args[0] is up.args[0] and layers[0].out_features == layers[1].out_features:
            arguments = (up.args[0], Joined((f"{gate.target}.weight", f"{up.target}.weight")), activation)
            order = {one: place for place, one in enumerate(node.graph.nodes)}
            nodes = tuple(sorted((gate, active, up, node), key=order.__getitem__))
            return Match(f"gated {node.name}", LINEAR_GATED, arguments, nodes, (node,))
    return None
