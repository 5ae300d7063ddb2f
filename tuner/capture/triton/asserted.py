"""A captured Triton function's demands on its constexprs: static assertions, and lengths of ranges."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

_PLAIN = (ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Load)
_PLAIN_OPERATORS = (ast.cmpop, ast.boolop, ast.operator, ast.unaryop)


def asserted(source: str, entry: str, texts: Mapping[str, str]) -> list[dict[str, str]]:
    """Names and expressions of constraints: `tl.static_assert` of constexprs alone, at the top level of the function.

    `texts`: every constexpr as an expression of a configuration `c` and a problem `p`. An assertion that no
    configuration can change is left out.
    """
    found = []
    for condition in _conditions(source, entry):
        nodes = list(ast.walk(condition))
        names = {one.id for one in nodes if isinstance(one, ast.Name)}
        if names <= texts.keys() and all(isinstance(one, (*_PLAIN, *_PLAIN_OPERATORS)) for one in nodes):
            words = ast.unparse(condition)
            expression = ast.unparse(_Written(texts).visit(condition))
            if "c." in expression:
                found.append({"name": f"the function asserts {words}", "expression": expression})
    return found


def _conditions(source: str, entry: str) -> Iterator[ast.expr]:
    """The conditions that the function asserts wherever it is launched."""
    for node in ast.parse(source).body:
        for statement in node.body if isinstance(node, ast.FunctionDef) and node.name == entry else ():
            call = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(call, ast.Call) and _called(call) == "static_assert" and call.args:
                yield call.args[0]


def range_lengths(source: str) -> set[str]:
    """Names that are a bound of `tl.arange`, which only takes powers of two."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    bounds = (bound for call in calls if _called(call) == "arange" for bound in call.args)
    return {bound.id for bound in bounds if isinstance(bound, ast.Name)}


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


class _Written(ast.NodeTransformer):
    """Expressions in the place of constexprs."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self._texts[node.id], mode="eval").body
