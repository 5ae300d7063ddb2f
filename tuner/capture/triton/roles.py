"""A Triton function's use of the memory behind each parameter: it reads it, writes it, or both."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

READS = {"load", "gather"}
WRITES = {"store", "scatter"}
BOTH = {"atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor", "atomic_xchg", "atomic_cas"}
_DATA = READS | BOTH
"""Calls that return what memory holds, which is no address of the same memory."""


def roles_of(source: str, entry: str) -> dict[str, str]:
    """`input`, `inout` or `output` by parameter; `inout` for one that is only handed to unknown functions.

    Parameters that are no addresses have `input` too.
    """
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    uses = _Uses(functions).of(entry, ())
    roles = {}
    for name in _parameters(functions[entry]):
        own = uses.get(name, set())
        roles[name] = "output" if own == {"write"} else "inout" if own & {"write", "other"} else "input"
    return roles


def _parameters(node: ast.FunctionDef) -> list[str]:
    arguments = node.args
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


class _Uses:
    """Uses of parameters, function by function."""

    def __init__(self, functions: Mapping[str, ast.FunctionDef]) -> None:
        self._functions = functions

    def of(self, name: str, callers: Sequence[str]) -> dict[str, set[str]]:
        """The uses by parameter of the function of that name: `read`, `write` and `other`."""
        node = self._functions[name]
        roots = {one: {one} for one in _parameters(node)}
        while True:
            before = {one: set(found) for one, found in roots.items()}
            for target, value in _assignments(node):
                for one in target:
                    roots.setdefault(one, set()).update(self._roots(value, roots))
            if roots == before:
                break
        uses: dict[str, set[str]] = {}
        for call in ast.walk(node):
            if isinstance(call, ast.Call):
                for use, value in self._used(call, (*callers, name)):
                    for one in self._roots(value, roots):
                        uses.setdefault(one, set()).add(use)
        return uses

    def _roots(self, node: ast.expr, roots: Mapping[str, set[str]]) -> set[str]:
        """The parameters that the expression may be an address behind."""
        if isinstance(node, ast.Name):
            return set(roots.get(node.id, ()))
        if isinstance(node, ast.Call) and _called(node) in _DATA:
            return set()
        if isinstance(node, (ast.Compare, ast.BoolOp)):
            return set()
        return {one for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)
                for one in self._roots(part, roots)} | {
            one for part in ast.iter_child_nodes(node) if isinstance(part, ast.keyword)
            for one in self._roots(part.value, roots)}  # fmt: skip

    def _used(self, call: ast.Call, callers: Sequence[str]) -> Iterator[tuple[str, ast.expr]]:
        """Each use with the address that the call uses."""
        called = _called(call)
        uses = (["read"] if called in READS | BOTH else []) + (["write"] if called in WRITES | BOTH else [])
        if uses:
            # `tl.load(address)`, and `descriptor.load([…])`
            is_method = isinstance(call.func, ast.Attribute) and not (
                isinstance(call.func.value, ast.Name) and call.func.value.id in {"tl", "triton", "language"}
            )
            places = [call.func.value] if is_method and isinstance(call.func, ast.Attribute) else call.args[:1]
            places = places or [one.value for one in call.keywords if one.arg == "pointer"]
            yield from ((use, place) for use in uses for place in places)
        elif called in self._functions and called not in callers and isinstance(call.func, ast.Name):
            inner = self.of(called, callers)
            given = dict(zip(_parameters(self._functions[called]), call.args, strict=False))
            given |= {one.arg: one.value for one in call.keywords if one.arg}
            for name, value in given.items():
                yield from ((use, value) for use in inner.get(name, ()))
        elif any(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in call.args) and "asm" in called:
            yield from (("other", one) for one in (*call.args, *(word.value for word in call.keywords)))


def _called(call: ast.Call) -> str:
    """The last name of the called function."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _assignments(node: ast.FunctionDef) -> Iterator[tuple[set[str], ast.expr]]:
    for one in ast.walk(node):
        if isinstance(one, ast.Assign):
            for target in one.targets:
                yield _names(target), one.value
        elif isinstance(one, (ast.AugAssign, ast.AnnAssign)) and one.value is not None:
            yield _names(one.target), one.value
        elif isinstance(one, ast.For):
            yield _names(one.target), one.iter


def _names(target: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}
