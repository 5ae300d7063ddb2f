"""Single changes of Python modules, as mutation testing makes them: drawn by a seed, one place each."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
MOST_COUNTED = 16
"""Whole numbers up to it become one more, others ten times as much: of a length of 300 that is a change."""

_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "asc": "desc", "desc": "asc", "ceil": "floor"}
_UNCHAINED = {"with_for_update", "order_by", "where", "limit", "strip", "lower", "clip"}
_UNWRAPPED = {"sorted", "reversed", "abs"}
_WORDS = {
    "doc",
    "description",
    "title",
    "help",
    "examples",
    "name",
    "frozen",
    "slots",
    "lazy",
    "daemon",
    "repr",
    "encoding",
    "strict",
}
"""Named arguments, such as docs and names, whose values no result depends on."""


@dataclass(frozen=True)
class Change:
    """The text from `start` to `end` becomes `new`."""

    line: int
    start: int
    end: int
    old: str
    new: str

    def applied(self, text: str) -> str:
        """The module with the change."""
        return text[: self.start] + self.new + text[self.end :]


def changes(text: str) -> list[Change]:
    """All single changes of a module, a few of which do not compile."""
    tree = ast.parse(text)
    skipped = {id(part) for node in ast.walk(tree) for part in _unchanged(node)}
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, ast.expr | ast.stmt):
            continue
        for new in _variants(node):
            start = _place(text, starts, node.lineno, node.col_offset)
            end = _place(text, starts, node.end_lineno or 0, node.end_col_offset or 0)
            found.append(Change(node.lineno, start, end, text[start:end], new))
    return found


def drawn(texts: dict[str, str], count: int, seed: int) -> list[tuple[str, Change]]:
    """`count` changes, by path and place: a module is as likely as it has lines."""
    generator, chosen = random.Random(seed), []
    paths, weights = list(texts), [text.count("\n") for text in texts.values()]
    while len(chosen) < count:
        path = generator.choices(paths, weights)[0]
        possible = changes(texts[path])
        change = generator.choice(possible) if possible else None
        if change is not None and _compiles(change.applied(texts[path])):
            chosen.append((path, change))
    return chosen


def _place(text: str, starts: list[int], line: int, column_bytes: int) -> int:
    first = starts[line - 1]
    end = starts[line]
    return first + len(text[first:end].encode()[:column_bytes].decode())


def _compiles(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _unchanged(node: ast.AST) -> Iterator[ast.AST]:
    """What says nothing of behaviour: annotations, docstrings, f-strings, imports, decorators, and errors' words."""
    whole: list[ast.AST] = []
    if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
        whole.append(node.annotation)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        whole += [*node.decorator_list, *([node.returns] if node.returns else [])]
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Raise):
        whole.append(node)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        whole.append(node)
    if isinstance(node, ast.keyword) and node.arg in _WORDS:
        whole.append(node.value)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        whole.append(node)
    for part in whole:
        yield from ast.walk(part)


def _variants(node: ast.AST) -> list[str]:
    """Texts that may stand in the node's place."""
    made = next((make(node) for kind, make in _MAKERS.items() if isinstance(node, kind)), [])
    return [ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})" for new in made]


def _compared(node: ast.Compare) -> list[ast.AST]:
    return [ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]], node.comparators)]


def _constant(node: ast.Constant) -> list[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        return [ast.Constant(not value)]
    if not isinstance(value, int | float):
        return []
    return [ast.Constant(value + 1 if value == 0 or (isinstance(value, int) and value <= MOST_COUNTED) else value * 10)]


def _operated(node: ast.BinOp) -> list[ast.AST]:
    other = _OPERATORS.get(type(node.op))
    return [ast.BinOp(node.left, other(), node.right)] if other else []


def _called(node: ast.Call) -> list[ast.AST]:
    """Its opposite, what it is called on or with, and itself with one named argument less."""
    of = node.func
    name = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""
    made: list[ast.AST] = []
    if name in _NAMES:
        other = ast.Name(_NAMES[name]) if isinstance(of, ast.Name) else ast.Attribute(of.value, _NAMES[name])
        made.append(ast.Call(other, node.args, node.keywords))
    if name in _UNCHAINED and isinstance(of, ast.Attribute):
        made.append(of.value)
    if name in _UNWRAPPED:
        made += node.args[:1]
    places = (place for place, keyword in enumerate(node.keywords) if keyword.arg not in _WORDS)
    fewer = ([*node.keywords[:place], *node.keywords[place + 1 :]] for place in places)
    return made + [ast.Call(of, node.args, keywords) for keywords in fewer]


_MAKERS: dict[type[ast.AST], Callable[..., list[ast.AST]]] = {
    ast.Compare: _compared,
    ast.BoolOp: lambda node: [node.values[0], node.values[-1]],
    ast.UnaryOp: lambda node: [node.operand] if isinstance(node.op, ast.Not | ast.USub) else [],
    ast.BinOp: _operated,
    ast.Constant: _constant,
    ast.IfExp: lambda node: [node.body, node.orelse],
    ast.Call: _called,
    ast.Expr: lambda _: [ast.Pass()],
    ast.AugAssign: lambda _: [ast.Pass()],
}
