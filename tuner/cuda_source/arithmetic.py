"""Integer arithmetic of C as Python's, over parameters `c` that may be numbers or arrays of NumPy's."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from tree_sitter import Node

from tilewright.tuner.cuda_source.tree import CudaSource, descendants, text_of

_OPERATORS = {"/": "//"} | {one: one for one in ("+", "-", "*", "%", "<<", ">>", "&", "|", "^", "==", "!=", "<", "<=", ">", ">=")}  # fmt: skip  # noqa: E501
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F]+|[1-9]\d*|0)[uUlL]*")
MOST_DEPTH, MOST_CHARACTERS = 24, 20_000


def chosen(condition: str | None, value: str | None, otherwise: str | None) -> str | None:
    """The one where the condition holds, else the other; None where that cannot be told."""
    if condition in {"0", "1"}:
        return value if condition == "1" else otherwise
    if value == otherwise:
        return value
    if condition is None or value is None or otherwise is None:
        return None
    if otherwise == "0":
        return condition if value == "1" else f"({condition}) * ({value})"
    return f"(({condition}) * ({value}) + (1 - ({condition})) * ({otherwise}))"


def negated(condition: str | None) -> str | None:
    """The opposite of the condition, as 0 or 1."""
    return {None: None, "0": "1", "1": "0"}.get(condition, f"(1 - ({condition}))")


class Names:
    """Meanings of names in a source: parameters, and values of macros and constants with their conditions."""

    def __init__(self, parameters: Collection[str]) -> None:
        self._parameters = parameters
        self._defined: dict[str, list[tuple[str | None, str | None]]] = {}
        self._depth = 0

    def define(self, name: str, text: str | None, condition: str | None) -> None:
        """Notes that from here on the name stands for the text where the condition holds; None: for nothing."""
        if name in self._parameters:
            return
        before = self._defined.setdefault(name, [])
        if before and before[-1] == (condition, None):  # no longer what it was made for
            before.pop()
        before.append((condition, text))

    def is_defined(self, name: str) -> str | None:
        """Whether the name is defined, as 0 or 1; None for a name that only other files may define."""
        if name in self._parameters:
            return "1"
        found: str | None = "0" if name in self._defined else None
        for condition, text in self._defined.get(name, ()):
            found = chosen(condition, "0" if text is None else "1", found)
        return found

    def value(self, name: str) -> str | None:
        """The value that the name has at this place."""
        if name in self._parameters:
            return f"c.{name}"
        if name not in self._defined or self._depth > MOST_DEPTH:
            return None
        self._depth += 1
        found: str | None = "0"  # where it is not defined, nothing that compiles reads it
        for condition, text in self._defined[name]:
            found = chosen(condition, "0" if text is None else python_of(text, self), found)
        self._depth -= 1
        return found if found is None or len(found) <= MOST_CHARACTERS else None


def python_of(text: str, names: Names) -> str | None:
    """The C expression in Python; None where it is more than integer arithmetic of these names."""
    text = re.sub(r"\bdefined\s+(\w+)", r"defined(\1)", text)
    root = CudaSource(f"int x = ({text});").root
    value = next((one for one in descendants(root) if one.type == "init_declarator"), None)
    if root.has_error or value is None:
        return None
    return _python(value.child_by_field_name("value"), names)


def _python(node: Node | None, names: Names) -> str | None:
    kind, text = ("", "") if node is None else (node.type, text_of(node))
    if kind == "number_literal":
        number = _NUMBER.fullmatch(text)
        return str(int(number[1], 0)) if number else None
    if kind == "identifier":
        return names.value(text)
    if node is None or kind == "call_expression":
        return None if node is None else _called(node, names)
    if kind in {"parenthesized_expression", "cast_expression"}:
        return _python(node.child_by_field_name("value") or node.named_children[0], names)
    operands = [_python(one, names) for one in _operands(node)]
    if not operands or None in operands:
        return None
    return _combined(kind, text_of(node.child_by_field_name("operator")), [str(one) for one in operands])


def _operands(node: Node) -> Iterator[Node | None]:
    fields = {
        "binary_expression": ("left", "right"),
        "unary_expression": ("argument",),
        "conditional_expression": ("condition", "consequence", "alternative"),
    }
    return (node.child_by_field_name(field) for field in fields.get(node.type, ()))


def _combined(kind: str, operator: str, operands: list[str]) -> str | None:
    if kind == "conditional_expression":
        return chosen(_truth(operands[0]), operands[1], operands[2])
    if kind == "unary_expression":
        return f"({operands[0]} == 0)" if operator == "!" else f"({operator}{operands[0]})"
    left, right = operands
    if operator in {"&&", "||"}:
        return f"({_truth(left)} {operator[0]} {_truth(right)})"
    return f"({left} {_OPERATORS[operator]} {right})" if operator in _OPERATORS else None


def _truth(text: str) -> str:
    """Whether the number is not 0; a comparison is its own answer."""
    return text if isinstance(ast.parse(text, mode="eval").body, ast.Compare) else f"({text} != 0)"


def _called(node: Node, names: Names) -> str | None:
    """`defined(NAME)`, and the smaller or larger of two."""
    function = text_of(node.child_by_field_name("function")).removeprefix("std::")
    listed = node.child_by_field_name("arguments")
    given = listed.named_children if listed else []
    if function == "defined" and len(given) == 1:
        return names.is_defined(text_of(given[0]))
    values = [_python(one, names) for one in given]
    if function not in {"min", "max"} or len(values) != len("ab") or None in values:
        return None
    left, right = values
    return chosen(f"{left} {'<' if function == 'min' else '>'} {right}", left, right)
