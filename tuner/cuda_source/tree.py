"""The kernels of a CUDA source, read from its syntax tree (tree-sitter with the CUDA grammar, C++ with extensions)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

_LANGUAGE = Language(tree_sitter_cuda.language())

CONTAINERS = frozenset(
    {
        *("translation_unit", "namespace_definition", "linkage_specification", "declaration_list"),
        *("preproc_if", "preproc_ifdef", "preproc_elif", "preproc_elifdef", "preproc_else"),
    }
)
"""The kinds of nodes that contain file-level definitions."""

NAMES = frozenset({"identifier", "type_identifier", "field_identifier", "namespace_identifier"})


def text_of(node: Node | None) -> str:
    """The node's text; "" of no node."""
    return (node.text or b"").decode() if node is not None else ""


def descendants(node: Node) -> Iterator[Node]:
    """The node and all nodes below it, in the order of the text."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += reversed(one.children)


def names_in(node: Node) -> set[str]:
    """Every name that the node mentions."""
    return {text_of(one) for one in descendants(node) if one.type in NAMES}


def is_macro(node: Node) -> bool:
    """Whether the node is a `#define`."""
    return node.type in {"preproc_def", "preproc_function_def"}


@dataclass(frozen=True)
class TemplateParameter:
    """One parameter of a kernel's template: `kind` is `typename`, or the type of a number as it is written."""

    kind: str
    name: str
    default: str = ""


@dataclass(frozen=True)
class KernelFunction:
    """A `__global__` function with a body."""

    node: Node
    name: str
    namespaces: tuple[str, ...]
    template: Node | None

    @property
    def entry(self) -> str:
        """The name with its namespaces, as a launch outside of them writes it."""
        return "::".join((*self.namespaces, self.name))

    @property
    def line(self) -> int:
        """The function's first line; lines count from 1."""
        return int(self.node.start_point[0]) + 1

    @property
    def body(self) -> str:
        """The text between the function's braces."""
        return text_of(self.node.child_by_field_name("body"))[1:-1]

    @property
    def head(self) -> str:
        """The text before the function's body."""
        return text_of(self.node).partition("{")[0]

    @property
    def parameters(self) -> list[str]:
        """The function's parameters as they are written, each on one line, without defaults."""
        return parameters_in(self.node)

    @property
    def parameters_end(self) -> int:
        """The byte of the source where a further parameter would stand."""
        function = _function_declarator(self.node)
        listed = function.child_by_field_name("parameters") if function else None
        return (listed or self.node).end_byte - 1

    @property
    def template_parameters(self) -> list[TemplateParameter]:
        """The parameters of its template; none where it is no template."""
        listed = self.template.child_by_field_name("parameters") if self.template else None
        return [_template_parameter(part) for part in (listed.named_children if listed else ())]


class CudaSource:
    """A source's tree. Text that is no C++ leaves errors in the tree and the rest of it readable."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.data = text.encode()
        self.root = Parser(_LANGUAGE).parse(self.data).root_node

    @cached_property
    def kernels(self) -> list[KernelFunction]:
        """Every `__global__` function that the file defines, in its order."""
        return list(_kernels(self.root, (), None))


def defined_name(node: Node) -> str:
    """The function's name in a definition, without its scope; "" where the node defines no function."""
    function = _function_declarator(node)
    named = function.child_by_field_name("declarator") if function else None
    return text_of(named).rpartition("::")[2].partition("<")[0].strip()


def parameters_in(node: Node) -> list[str]:
    """The parameters of a function's definition as they are written, on one line each, without defaults."""
    function = _function_declarator(node)
    listed = function.child_by_field_name("parameters") if function else None
    texts = []
    for part in listed.named_children if listed else ():
        if part.type != "comment" and text_of(part) != "void":
            value = part.child_by_field_name("default_value")
            text = text_of(part)[: value.start_byte - part.start_byte].rstrip("= \n") if value else text_of(part)
            texts.append(" ".join(text.split()))
    return texts


def scopes_of(node: Node) -> list[str]:
    """The names before the function's own in its definition: `Vector` of `Vector::length`."""
    function = _function_declarator(node)
    named = text_of(function.child_by_field_name("declarator")) if function else ""
    return [one.partition("<")[0].strip() for one in named.split("::")[:-1]]


def fields_of_struct(text: str, name: str) -> list[tuple[str, int]] | None:
    """The C type and the number of elements of each member; None where the text does not define the struct."""
    for one in descendants(CudaSource(text).root):
        body = one.child_by_field_name("body") if one.type in {"struct_specifier", "union_specifier"} else None
        alias = (
            one.parent.child_by_field_name("declarator")
            if one.parent and one.parent.type == "type_definition"
            else None
        )
        if body is not None and name in {text_of(one.child_by_field_name("name")), text_of(alias)}:
            return [field for member in body.named_children for field in _members(member)]
    return None


def _members(member: Node) -> Iterator[tuple[str, int]]:
    if member.type != "field_declaration":
        return
    for declarator in member.children_by_field_name("declarator"):
        one: Node = declarator
        count = 1
        kind = text_of(member.child_by_field_name("type"))
        while one.type != "field_identifier":
            if one.type != "array_declarator" or not text_of(one.child_by_field_name("size")).isdigit():
                kind = text_of(member)
                break
            count *= int(text_of(one.child_by_field_name("size")))
            one = one.child_by_field_name("declarator") or one
        if one.type != "function_declarator":
            yield kind, count


def _kernels(node: Node, namespaces: tuple[str, ...], template: Node | None) -> Iterator[KernelFunction]:
    if node.type == "function_definition":
        if any(child.type == "__global__" for child in node.children) and node.child_by_field_name("body"):
            yield KernelFunction(node, defined_name(node), namespaces, template)
        return
    if node.type == "namespace_definition":
        name = text_of(node.child_by_field_name("name"))
        namespaces = (*namespaces, *filter(None, name.split("::")))
    if node.type == "template_declaration":
        template = node
    elif node.type not in CONTAINERS and node.type != "ERROR":
        return
    for child in node.children:
        yield from _kernels(child, namespaces, template)


def _function_declarator(node: Node) -> Node | None:
    """The declarator with the parameters, below pointers and references of the type that is returned."""
    one = node.child_by_field_name("declarator")
    while one is not None and one.type != "function_declarator":
        one = one.child_by_field_name("declarator") or next(iter(one.named_children), None)
    return one


def _template_parameter(part: Node) -> TemplateParameter:
    if part.type in {"type_parameter_declaration", "optional_type_parameter_declaration"}:
        named = part.child_by_field_name("name") or next(
            (c for c in part.children if c.type == "type_identifier"), None
        )
        return TemplateParameter("typename", text_of(named), text_of(part.child_by_field_name("default_type")))
    name, value = text_of(part.child_by_field_name("declarator")), text_of(part.child_by_field_name("default_value"))
    return TemplateParameter(text_of(part.child_by_field_name("type")) or text_of(part), name, value)
