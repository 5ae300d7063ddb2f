"""Functions of a script as text: their source with what it uses, or a table of what they return."""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import linecache
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

MOST_ROWS = 20_000
"""Combinations of parameters that a table is made of at most."""

TAKEN = {"KERNEL", "Constraint", "Kernel", "Launch", "Path", "Scalar", "Tensor", "Variant", "choice", "shape_of"} | {
    *("answer", "check", "inputs", "launch", "reference", "values_of", "c", "p", "FOLDER")
}
"""Names that a declaration has itself."""


class UnclearError(Exception):
    """Something of a call that cannot be said in a declaration."""


class Functions:
    """The definitions that a declaration needs, by name and in order; `notes` say what was written as a table."""

    def __init__(self, parameters: Mapping[str, Sequence[Any]]) -> None:
        self.parameters = {name: list(values) for name, values in parameters.items()}
        self.is_plain = all(is_plain(name, values) for name, values in parameters.items())
        self.imports: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.notes: list[str] = []

    @property
    def view(self) -> str:
        """The configuration `c` as the script's functions take it."""
        return "c" if self.is_plain else "values_of(c)"

    def expression(self, text: str, what: str) -> str:
        """A string of Kernel Tuner's, of names of parameters, as an expression of `c`."""
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except SyntaxError as error:
            raise UnclearError(f"{what} {text!r} is no Python expression") from error
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id not in self.parameters and not hasattr(builtins, node.id):
                if node.id not in {"math", "np", "numpy"}:
                    raise UnclearError(f"{what} {text!r} uses {node.id}, which is no parameter")
                self.imports[node.id] = f"import {'math' if node.id == 'math' else 'numpy'} as {node.id}"
        return ast.unparse(_Parameters(self.parameters).visit(tree))

    def called(self, function: Callable[..., Any], name: str, what: str) -> str:
        """The call of a function of a configuration, as an expression of `c`."""
        by_name = takes_names(function, self.parameters)
        try:
            own = self.carried(function, name)
        except UnclearError as unreadable:
            return self._table(function, name, f"{what}: {unreadable}", by_name=by_name)
        if by_name is None:
            return f"{own}({self.view})"
        return f"{own}({', '.join(f'{one}={value(one, self.parameters)}' for one in by_name)})"

    def carried(self, function: Any, name: str) -> str:
        """The name under which the function's source is among the definitions; raises UnclearError."""
        if not isinstance(function, types.FunctionType):
            raise UnclearError(f"{function!r} is not written in Python")
        node = _node_of(function)
        used = _used_by(function)
        if isinstance(node, ast.Lambda):
            text = f"{name} = {ast.unparse(node)}"
        else:
            name = function.__name__
            text = ast.unparse(_bare(node))
        if function.__defaults__ or function.__kwdefaults__:
            used |= {n.id: function.__globals__.get(n.id) for n in ast.walk(node.args) if isinstance(n, ast.Name)
                     and n.id in function.__globals__}  # fmt: skip
        placeholder = self.definitions.get(name)
        if placeholder is not None and placeholder != text:
            raise UnclearError(f"there are two functions {name}")
        if placeholder is None:
            before = dict(self.definitions)
            try:
                for other, meaning in used.items():
                    if meaning is not function:
                        self._carry_value(other, meaning)
                self._define(name, text)
            except UnclearError:
                self.definitions = before
                raise
        return name

    def _carry_value(self, name: str, meaning: Any) -> None:
        if isinstance(meaning, types.ModuleType):
            if getattr(meaning, "__file__", None) is None and not hasattr(meaning, "__spec__"):
                raise UnclearError(f"it uses the module {name}")
            if meaning.__name__.partition(".")[0] in {"kernel_tuner", "cupy", "pycuda", "__main__"}:
                raise UnclearError(f"it uses {meaning.__name__}")
            self.imports[name] = f"import {meaning.__name__} as {name}"
        elif isinstance(meaning, types.FunctionType):
            if self.carried(meaning, name) != name:
                raise UnclearError(f"{name} has another name")
        elif getattr(meaning, "__module__", None) and getattr(meaning, "__name__", None) and callable(meaning):
            self.imports[name] = f"from {meaning.__module__} import {meaning.__name__} as {name}"
        else:
            self._define(name, f"{name} = {literal(meaning)}")

    def _define(self, name: str, text: str) -> None:
        if name in TAKEN or self.definitions.get(name, text) != text:
            raise UnclearError(f"the name {name} means two things")
        self.definitions[name] = text

    def _table(self, function: Callable[..., Any], name: str, why: str, *, by_name: list[str] | None) -> str:
        """An expression that looks the function's result up in a table, by what it reads of a configuration."""
        reads = {} if by_name is None else dict.fromkeys(by_name)
        table: dict[tuple[Any, ...], Any] = {}
        done = -1
        while done < len(reads):
            done = len(reads)
            names, table = list(reads), {}
            if math.prod(len(self.parameters[one]) for one in names) > MOST_ROWS:
                raise UnclearError(f"{why}, and it reads too much to be enumerated")
            for combination in itertools.product(*(self.parameters[one] for one in names)):
                first = {one: values[0] for one, values in self.parameters.items()}
                configuration = _Reading(first | dict(zip(names, combination, strict=True)), reads)
                given = {one: configuration[one] for one in by_name or ()}
                table[combination] = plain(function(**given) if by_name is not None else function(configuration))
        self.notes.append(f"{why}; it was enumerated instead, over {', '.join(reads) or 'nothing'}")
        self._define(name.upper(), f"{name.upper()} = {table!r}")
        key = "".join(f"{value(one, self.parameters)}, " for one in reads)
        return f"{name.upper()}[({key})]"


class _Reading(dict[str, Any]):
    """A configuration that notes what is read of it."""

    def __init__(self, values: Mapping[str, Any], reads: dict[str, None]) -> None:
        super().__init__(values)
        self._reads = reads

    def __getitem__(self, name: str) -> Any:
        self._reads[name] = None
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value, noted too."""
        self._reads[name] = None
        return super().get(name, default)


class _Parameters(ast.NodeTransformer):
    """Names of parameters become attributes of `c`."""

    def __init__(self, parameters: Mapping[str, Sequence[Any]]) -> None:
        self._parameters = parameters

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """The parameter's value in the place of its name; other names stay."""
        if node.id not in self._parameters:
            return node
        return ast.parse(value(node.id, self._parameters), mode="eval").body


def value(name: str, parameters: Mapping[str, Sequence[Any]]) -> str:
    """The parameter's value as an expression of `c`."""
    return f"c.{name}" if is_plain(name, parameters[name]) else f"values_of(c)[{name!r}]"


def is_plain(name: str, values: Sequence[Any]) -> bool:
    """Whether Tilewright can take the parameter as it is: its values are whole numbers, and its name is admitted."""
    admitted = len(name) > 1 and name not in {"get", "items", "keys", "values", "variant"}
    return admitted and all(isinstance(one, int | np.integer) for one in values)


def takes_names(function: Callable[..., Any], parameters: Mapping[str, Any]) -> list[str] | None:
    """The parameters that the function takes by their names; None where it takes a configuration as one mapping."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
    return names if names and all(name in parameters for name in names) else None


def plain(result: Any) -> Any:
    """The result as Python's own numbers, strings and tuples; raises UnclearError."""
    if isinstance(result, np.generic):
        return result.item()
    if isinstance(result, list | tuple):
        return tuple(plain(one) for one in result)
    if isinstance(result, str | int | float | bool | None):
        return result
    raise UnclearError(f"it returns {type(result).__name__}")


def literal(meaning: Any) -> str:
    """Python text of a value; raises UnclearError."""
    if isinstance(meaning, dict):
        return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in meaning.items()) + "}"
    text = repr([plain(one) for one in meaning] if isinstance(meaning, list) else plain(meaning))
    if len(text) > 10_000:
        raise UnclearError("it uses a long list")
    return text


def _node_of(function: types.FunctionType) -> Any:
    """The function's syntax tree, out of its file."""
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        raise UnclearError("its source cannot be read")
    kinds: Any = ast.Lambda if function.__name__ == "<lambda>" else ast.FunctionDef
    nodes = [
        node
        for node in ast.walk(ast.parse("".join(lines)))
        if isinstance(node, kinds)
        and min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]) == code.co_firstlineno
    ]
    if len(nodes) > 1:  # several lambdas in a line
        nodes = [node for node in nodes if _covers(node, code)]
    if len({ast.unparse(node) for node in nodes}) != 1:
        raise UnclearError("its source cannot be told from others in its line")
    if getattr(nodes[0], "decorator_list", None):
        raise UnclearError("it has a decorator")
    return nodes[0]


def _covers(node: ast.Lambda, code: types.CodeType) -> bool:
    """Whether all of the code was compiled from this place. Before Python 3.11 nobody can tell."""
    positions: Any = getattr(code, "co_positions", tuple)()
    placed = [(first, start, last, end) for first, last, start, end in positions if first and end]
    start = (node.lineno, node.col_offset)
    end = (node.end_lineno or 0, node.end_col_offset or 0)
    return bool(placed) and all(start <= one[:2] and one[2:] <= end for one in placed)


def _bare(node: ast.FunctionDef) -> ast.FunctionDef:
    """The function without annotations, which need names of their own."""
    node.returns = None
    for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
        argument.annotation = None
    return node


def _used_by(function: types.FunctionType) -> dict[str, Any]:
    """The values that the function uses from its surroundings, by name; raises UnclearError for one without a value."""
    used = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            used[name] = cell.cell_contents
        except ValueError as error:
            raise UnclearError(f"{name}, which it uses, has no value yet") from error
    for name in _names(function.__code__):
        if name in function.__globals__ and name not in used:
            used[name] = function.__globals__[name]
    return used


def _names(code: types.CodeType) -> list[str]:
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return [*code.co_names, *(name for one in inner for name in _names(one))]
