"""The `triton.heuristics` of a captured function as expressions of a declaration, and its coarsest dtype."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Mapping
from typing import Any

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.reference import TOLERANCE

_OF_TRITON = {"cdiv", "next_power_of_2"}


def heuristic_text(found: Mapping[str, Any] | None) -> str | None:
    """The heuristic called with `args`; None where it needs more than a declaration has."""
    if found is None:
        return None
    node = ast.parse(found["text"]).body[0]
    if isinstance(node, ast.FunctionDef):
        node = _as_expression(node)
    expression = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(expression, ast.Lambda) or len(expression.args.args) != 1:
        return None
    own = expression.args.args[0].arg
    inlined = _Inlined(found["constants"]).visit(expression.body)
    names = {one.id for one in ast.walk(inlined) if isinstance(one, ast.Name)}
    if any(name not in {own, "next_power_of_2"} and not hasattr(builtins, name) for name in names):
        return None
    return ast.unparse(_Renamed(own).visit(inlined))


def _as_expression(node: ast.FunctionDef) -> ast.stmt:
    """A function of one return as a lambda; others unchanged."""
    body = [one for one in node.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    if len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None:
        return ast.Expr(ast.Lambda(node.args, body[0].value))
    return node


class _Inlined(ast.NodeTransformer):
    """Constants in the place of their names, and plain arithmetic in that of Triton's functions."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self._constants = constants

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._constants[node.id]) if node.id in self._constants else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        is_tritons = not isinstance(node.func, ast.Attribute) or ast.unparse(node.func.value) in {"triton", "tl"}
        if name not in _OF_TRITON or not is_tritons:
            return node
        if name == "cdiv":
            negative = ast.BinOp(ast.UnaryOp(ast.USub(), node.args[0]), ast.FloorDiv(), node.args[1])
            return ast.UnaryOp(ast.USub(), negative)
        return ast.Call(ast.Name("next_power_of_2", ast.Load()), node.args, [])


class _Renamed(ast.NodeTransformer):
    """Renames the heuristic's own argument to `args`."""

    def __init__(self, own: str) -> None:
        self._own = own

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name("args", node.ctx) if node.id == self._own else node


PRECISE = {"ieee", "tf32x3", "bf16x3", "bf16x6"}
"""Triton's `input_precision` of products of float32 that are no coarser than float32."""


def arithmetic_of(source: str, dtypes: Iterable[str], constexprs: Mapping[str, Any]) -> str:
    """The type of arithmetic, by the arrays' dtypes, half types in the source, and TF32 where a product allows it.

    Empty where it is float32 or float64, and where there are no such types. `constexprs` are those of the launch: they
    may say how exact a product is.
    """
    tree = ast.walk(ast.parse(source))
    named = {*dtypes}
    for node in tree:
        if isinstance(node, ast.Attribute) and node.attr in HALF:
            named.add(node.attr)
        elif isinstance(node, ast.Call) and _is_dot(node) and not _is_precise(node, constexprs):
            named.add("tfloat32")
    coarse = named & {*HALF, "tfloat32"}
    return max(coarse, key=lambda name: (TOLERANCE[name], name in HALF), default="")


def _is_dot(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "dot"


def _is_precise(call: ast.Call, constexprs: Mapping[str, Any]) -> bool:
    """Whether a product of float32 is as exact as float32; Triton's own way is TF32."""
    words = {one.arg: _value(one.value, constexprs) for one in call.keywords}
    return words.get("input_precision") in PRECISE or words.get("allow_tf32") is False


def _value(node: ast.expr, constexprs: Mapping[str, Any]) -> Any:
    """A constant, or the constexpr of that name; else None."""
    if isinstance(node, ast.Constant):
        return node.value
    return constexprs.get(node.id) if isinstance(node, ast.Name) else None
