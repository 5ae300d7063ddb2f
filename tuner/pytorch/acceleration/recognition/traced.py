"""A module's own code as a graph, in which the modules that it calls stay calls; torch.fx traces it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor, fx, nn

from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch.acceleration.recognition.call import entry


class UntraceableError(TunerError):
    """A module's code or its arguments cannot be written down as a graph."""


def described(value: Any, tensors: list[Tensor]) -> Hashable:
    """The value with its tensors as their entries, which are appended; raises UntraceableError for other objects."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return entry(value)
    if isinstance(value, tuple | list):
        return ("list", *[described(one, tensors) for one in value])
    if isinstance(value, Mapping):
        return ("named", *[(name, described(one, tensors)) for name, one in value.items()])
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UntraceableError(f"an argument is a {type(value).__name__}")


def filled(description: Any, tensors: Iterator[Any]) -> Any:
    """The inverse, with these in the place of tensors."""
    if not isinstance(description, tuple):
        return description
    kind, *rest = description
    if kind == "list":
        return tuple(filled(one, tensors) for one in rest)
    if kind == "named":
        return {name: filled(one, tensors) for name, one in rest}
    return next(tensors)


class _Leaves(fx.Tracer):  # type: ignore[misc]
    def is_leaf_module(self, _module: nn.Module, _name: str) -> bool:
        """True: every called module is a leaf, whose own code is not traced here."""
        return True


class Around(nn.Module):  # type: ignore[misc]
    """The code of a module `m`, as a function of the tensors of its arguments."""

    def __init__(self, module: nn.Module, key: Any) -> None:
        super().__init__()
        self.m, self.key = module, key

    def forward(self, tensors: Any) -> Any:
        """The module's result."""
        positional, named = filled(self.key, iter([tensors[number] for number in range(_count(self.key))]))
        return type(self.m).forward(self.m, *positional, **named)


def _count(description: Any) -> int:
    if not isinstance(description, tuple):
        return 0
    kind, *rest = description
    if kind in {"list", "named"}:
        return sum(_count(one[1] if kind == "named" else one) for one in rest)
    return 1


def trace(module: nn.Module, key: Hashable) -> tuple[Around, fx.Graph]:
    """The graph of the module's code for arguments that are described so; raises UntraceableError.

    What the code reads besides its arguments, such as its own attributes, is taken as it is now.
    """
    around, before = Around(module, key), dict(vars(module))
    try:
        graph = _Leaves().trace(around)
    except Exception as error:  # the code is somebody else's, and fx raises what it likes
        raise UntraceableError((str(error).strip().splitlines() or [type(error).__name__])[0]) from error
    finally:
        after = vars(module)
        is_changed = after.keys() != before.keys() or any(after[name] is not before[name] for name in before)
        if is_changed:
            vars(module).clear()
            vars(module).update(before)
    if is_changed:
        raise UntraceableError("its code changes the module")
    return around, graph


def function_of(graph: fx.Graph) -> Callable[[Any, Sequence[Tensor]], Any]:
    """The graph as a function of a `SimpleNamespace` with the module as `m`, and of the tensors."""
    graph.lint()
    code = graph.python_code("self")
    exec(code.src, code.globals)  # noqa: S102 - torch.fx wrote it
    return code.globals["forward"]  # type: ignore[no-any-return]


def parameter(root: nn.Module, name: str) -> Any:
    """The parameter of that name, as it is now."""
    owner, _, own = name.rpartition(".")
    return getattr(root.get_submodule(owner), own)


def held(module: nn.Module) -> SimpleNamespace:
    """The namespace that the function of `function_of` is called with."""
    return SimpleNamespace(m=module)


class Values(fx.Interpreter):  # type: ignore[misc]
    """Runs a graph and keeps the values of some of its nodes."""

    def __init__(self, around: Around, graph: fx.Graph, wanted: set[fx.Node]) -> None:
        super().__init__(fx.GraphModule(around, graph))
        self._wanted, self.values = {one.name for one in wanted}, dict[str, Any]()

    def run_node(self, n: fx.Node) -> Any:
        """The node's value, kept where it is wanted."""
        value = super().run_node(n)
        if n.name in self._wanted:
            self.values[n.name] = value
        return value


def evaluated(around: Around, nodes: Sequence[fx.Node], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of these nodes, one after another, from those of the nodes before them."""
    known = dict(values)
    for node in nodes:
        given = fx.node.map_arg(node.args, lambda one: known[one.name])
        named = fx.node.map_arg(node.kwargs, lambda one: known[one.name])
        if node.op == "call_module":
            known[node.name] = around.get_submodule(node.target)(*given, **named)
        elif node.op == "call_method":
            known[node.name] = getattr(given[0], node.target)(*given[1:], **named)
        elif node.op == "call_function":
            known[node.name] = node.target(*given, **named)
    return known
