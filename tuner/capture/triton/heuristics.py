"""Functions under `triton.heuristics` as expressions of a declaration, which needs no Triton."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from typing import Any

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
    """A function of one return as a lambda; else as it is."""
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
    """`args` in the place of what the heuristic calls its own."""

    def __init__(self, own: str) -> None:
        self._own = own

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name("args", node.ctx) if node.id == self._own else node
