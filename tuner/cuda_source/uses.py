"""Reads and writes of a function through a pointer, also by macros and functions that it calls."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from tree_sitter import Node

from tilewright.tuner.cuda_source.tree import (
    CudaSource,
    defined_name,
    descendants,
    is_macro,
    names_in,
    parameters_in,
    text_of,
)

READ, ASSIGNED, OTHER = "read", "assigned", "other"
_LOADS = re.compile(r"__ld(?:g|cg|ca|cs|lu|cv)")
_CASTS = frozenset({"reinterpret_cast", "static_cast", "const_cast"})
_STEPS = frozenset({"parenthesized_expression", "cast_expression", "update_expression", "conditional_expression"})
"""The kinds of nodes in which a pointer stays a pointer."""
_MOVES = frozenset({"expression_statement", "condition_clause", "comma_expression", "for_statement"})
"""The kinds of nodes that may move a pointer without another use: `p++;`."""

Uses = set[str]


class PointerUses:
    """The uses of pointers in the functions of one source."""

    def __init__(self, source: CudaSource) -> None:
        self._root = source.root
        self._begun: set[tuple[int, str]] = set()

    def of(self, function: Node, name: str) -> Uses:
        """How the function uses its pointer: `assigned` (x[i] = …), `read` (its elements are only read), `other`."""
        body = function.child_by_field_name("body")
        if body is None or (function.start_byte, name) in self._begun:
            return set()
        self._begun.add((function.start_byte, name))
        try:
            return self._within(body, name) | self._in_macros_of(body, name)
        finally:
            self._begun.discard((function.start_byte, name))

    @cached_property
    def _functions(self) -> dict[str, list[Node]]:
        found = defaultdict(list)
        for one in descendants(self._root):
            if one.type == "function_definition":
                found[defined_name(one)].append(one)
        return found

    @cached_property
    def _macros(self) -> dict[str, list[Node]]:
        found = defaultdict(list)
        for one in descendants(self._root):
            if is_macro(one):
                found[text_of(one.child_by_field_name("name"))].append(one)
        return found

    def _within(self, body: Node, name: str) -> Uses:
        uses = (one for one in descendants(body) if one.type == "identifier" and text_of(one) == name)
        return {use for one in uses if not _declares(one) for use in self._pointer(one, body)}

    def _in_macros_of(self, body: Node, name: str) -> Uses:
        """`other` where a macro that the body uses names the pointer itself."""
        hiding = (one for macro in names_in(body) & self._macros.keys() for one in self._macros[macro])
        hides = any(re.search(rf"\b{name}\b", text_of(one.child_by_field_name("value"))) for one in hiding
                    if name not in _macro_parameters(one))  # fmt: skip
        return {OTHER} if hides else set()

    def _pointer(self, node: Node, body: Node) -> Iterator[str]:  # noqa: PLR0911 - one line for each kind of node
        """The uses of an expression that is the pointer, or an offset from it."""
        parent = node.parent
        kind = parent.type if parent is not None else ""
        if parent is None or kind in _MOVES:
            return iter(())
        if kind in _STEPS:
            return self._pointer(parent, body)
        if kind == "binary_expression":
            is_sum = text_of(parent.child_by_field_name("operator")) in {"+", "-"}
            return self._pointer(parent, body) if is_sum else iter((READ,))
        if kind == "subscript_expression" and parent.child_by_field_name("argument") == node:
            return self._element(parent, body)
        if kind == "pointer_expression" and text_of(parent).startswith("*"):
            return (OTHER if use == ASSIGNED else use for use in self._element(parent, body))
        if kind == "field_expression":
            return self._element(node, body)
        if kind == "argument_list" and parent.parent is not None:
            return self._passed(node, parent, parent.parent, body)
        if kind == "init_declarator":
            return self._named(parent.child_by_field_name("declarator"), body)
        if kind == "assignment_expression":
            left = parent.child_by_field_name("left")
            return iter(()) if left == node else self._named(left, body)
        return iter((OTHER,))

    def _element(self, inner: Node, body: Node) -> Iterator[str]:  # noqa: PLR0911 - one line for each kind of node
        """The uses of an element, or of a member of it."""
        subscript = inner
        outer = inner.parent
        while outer is not None and outer.type in {"field_expression", "subscript_expression", "parenthesized_expression"}:  # fmt: skip  # noqa: E501
            if outer.type == "subscript_expression" and outer.child_by_field_name("argument") != inner:
                return iter((READ,))  # an index of another array
            inner, outer = outer, outer.parent
        if outer is None or outer.type == "update_expression":
            return iter((OTHER,))
        if outer.type == "pointer_expression" and text_of(outer).startswith("&"):
            return (OTHER if use == ASSIGNED else use for use in self._pointer(outer, body))
        if outer.type == "assignment_expression" and outer.child_by_field_name("left") == inner:
            is_plain = text_of(outer.child_by_field_name("operator")) == "=" and inner == subscript
            return iter((ASSIGNED if is_plain else OTHER,))
        if outer.type == "init_declarator" and "&" in text_of(outer.child_by_field_name("declarator")):
            return iter((READ if _is_const(outer.parent) else OTHER,))
        if outer.type == "argument_list" and outer.parent is not None:
            return self._passed(inner, outer, outer.parent, body, is_element=True)
        return iter((READ,))

    def _named(self, declarator: Node | None, body: Node) -> Iterator[str]:
        """The uses of another pointer that is set to this one; a number computed from it uses nothing."""
        name = text_of(declarator).strip("*& \n").removeprefix("__restrict__").strip()
        if declarator is None or not name.isidentifier() or "&" in text_of(declarator):
            return iter((OTHER,))
        place = (body.start_byte, name)
        if place in self._begun:
            return iter(())
        self._begun.add(place)
        found = self._within(body, name)
        self._begun.discard(place)
        return iter({OTHER if use == ASSIGNED else use for use in found})

    def _passed(
        self, argument: Node, listed: Node, call: Node, body: Node, *, is_element: bool = False
    ) -> Iterator[str]:
        """The uses of an argument by a function or macro: the pointer, or an element, perhaps by reference."""
        function = call.child_by_field_name("function")
        called = text_of(function).partition("<")[0].rpartition("::")[2].strip()
        if called in _CASTS:
            return self._pointer(call, body)
        if _LOADS.fullmatch(called):
            return iter((READ,))
        place = [one for one in listed.named_children if one.type != "comment"].index(argument)
        uses: Uses = set()
        for macro in self._macros.get(called, ()):
            names = _macro_parameters(macro)
            uses |= self._in_macro(macro, names[place]) if place < len(names) else {OTHER}
        for one in self._functions.get(called, ()):
            parts = parameters_in(one)
            uses |= self._of_parameter(one, parts[place], is_element=is_element) if place < len(parts) else set()
        if called not in self._macros and called not in self._functions:
            uses = {READ} if is_element and called != "swap" else {OTHER}
        is_itself = argument.type == "identifier"  # all of it, so that an assignment is one of this array's
        return iter({OTHER if use == ASSIGNED and not is_itself else use for use in uses})

    def _in_macro(self, macro: Node, name: str) -> Uses:
        """The uses of a macro's parameter."""
        text = text_of(macro.child_by_field_name("value")).replace("\\\n", "\n")
        [function] = CudaSource(f"void expanded() {{ {text}; }}").root.children[:1]
        place = (macro.start_byte, name)
        inside = function.child_by_field_name("body")
        if place in self._begun or inside is None:
            return set()
        self._begun.add(place)
        found = self._within(inside, name)
        self._begun.discard(place)
        return found

    def _of_parameter(self, function: Node, part: str, *, is_element: bool) -> Uses:
        if re.search(r"\bconst\b", re.split(r"[*&\[]", part)[0]):
            return {READ}
        if is_element:
            return {OTHER if "&" in part else READ}
        return self.of(function, re.findall(r"\w+", part.partition("[")[0])[-1])


def _declares(name: Node) -> bool:
    """Whether the node declares a variable."""
    one: Node = name
    while one.parent is not None and one.parent.type in {"pointer_declarator", "reference_declarator"}:
        one = one.parent
    parent = one.parent
    if parent is None:
        return False
    return parent.type == "declaration" or (
        parent.type == "init_declarator" and parent.child_by_field_name("declarator") == one
    )


def _is_const(declaration: Node | None) -> bool:
    return any(child.type == "type_qualifier" and text_of(child) == "const" for child in declaration.children) if declaration else False  # fmt: skip  # noqa: E501


def _macro_parameters(macro: Node) -> list[str]:
    listed = macro.child_by_field_name("parameters")
    return [text_of(one) for one in listed.named_children] if listed else []
