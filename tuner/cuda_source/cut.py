"""The part of a CUDA source that one kernel needs; host code beside it goes, and lines keep their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tree_sitter import Node

from tilewright.tuner.cuda_source.project import Project
from tilewright.tuner.cuda_source.tree import (
    CONTAINERS,
    CudaSource,
    KernelFunction,
    defined_name,
    descendants,
    is_macro,
    names_in,
    scopes_of,
    text_of,
)

_WORD = re.compile(r"[A-Za-z_]\w*")
_INCLUDE = re.compile(r'#[ \t]*include[ \t]*(?:<([^>]+)>|"([^"]+)")')
_TYPES = {"struct_specifier", "class_specifier", "union_specifier", "enum_specifier", "concept_definition"}
_DEVICE = {"__device__", "__global__", "__constant__", "__shared__", "constexpr", "__managed__"}
_ALWAYS = {"preproc_call", "comment", "preproc_defined", "#endif", "#if", "#ifdef", "#ifndef", "#else", "#elif"}
_DIRECTIVE_PARTS = {"name", "condition", "value"}

_CUB = re.compile(r"cub/(?!device/).*")
_C = "assert|stdint|stdio|stdlib|inttypes|float|limits|math|stddef|string"
DEVICE_HEADERS = re.compile(
    rf"(?:{_C})\.h|c(?:{_C})|algorithm|type_traits|utility|limits|cooperative_groups(?:/.*)?(?:\.h)?|cuda/.*|nv/.*"
    rf"|{_CUB.pattern}|thrust/(?:functional|tuple|pair)\.h|thrust/iterator/.*"
    r"|cuda_(?:fp16|bf16|fp8|fp6|fp4|pipeline|awbarrier)\.h|mma\.h|cuda(?:_runtime)?(?:_api)?\.h|sm_\d+.*\.h"
    r"|device_launch_parameters\.h|vector_types\.h|device_functions\.h|curand_(?:kernel|philox4x32_x|mtgp32)\.h"
)
"""Headers that device code is made of. Others, such as <iostream>, serve the host code that goes."""


@dataclass(frozen=True)
class Cut:
    """The text that one kernel needs, and by name those of its project's headers that it needs too."""

    text: str
    headers: dict[str, str]

    @property
    def whole(self) -> str:
        """The headers and the text, one after the other."""
        return "\n".join([*self.headers.values(), self.text])


def cut(project: Project, kernel: KernelFunction, also: Iterable[str] = ()) -> Cut:
    """The source and its headers; what neither the kernel nor the names in `also` need is blanked.

    What stays: the kernel, and by name whatever it mentions (device functions, types, constants, templates),
    directives, macros, and includes of headers that device code uses. Headers of which nothing is left go.
    """
    everything = [one for source in project.sources for one in _definitions(source.root)]
    definitions = [one for one in everything if not _is_host_only(one) and not _is_kernel(one)]
    macros = _merged(map(_macros, project.sources))
    kept, mentioned = _needed(kernel, definitions, macros, set(also))
    needed = _needed_headers(project, kept, mentioned)
    has_cub = any(_CUB.fullmatch(name) for source in project.sources for name, _ in includes(source.text))
    blanking = _Blanking(kept, frozenset(project.headers.keys() - needed), frozenset(project.missing), has_cub=has_cub)
    headers = {name: blanking.of(project.headers[name]) for name in project.headers if name in needed}
    return Cut(blanking.of(project.main), headers)


def includes(text: str) -> Iterator[tuple[str, bool]]:
    """The header of each include, and whether it stands in quotes."""
    for found in _INCLUDE.finditer(text):
        yield found[1] or found[2], found[2] is not None


def _definitions(node: Node) -> Iterator[Node]:
    """The file-level nodes, inside namespaces and conditions too."""
    for child in node.children:
        if child.type in CONTAINERS:
            yield from _definitions(child)
        elif child.is_named and child.type not in _ALWAYS:
            yield child


def _macros(source: CudaSource) -> dict[str, set[str]]:
    """The words of each macro's text, by its name."""
    macros: dict[str, set[str]] = {}
    for one in descendants(source.root):
        if is_macro(one):
            words = set(_WORD.findall(text_of(one.child_by_field_name("value"))))
            macros.setdefault(text_of(one.child_by_field_name("name")), set()).update(words)
    return macros


def _merged(several: Iterable[dict[str, set[str]]]) -> dict[str, set[str]]:
    merged: dict[str, set[str]] = {}
    for macros in several:
        for name, words in macros.items():
            merged.setdefault(name, set()).update(words)
    return merged


def _conditions(node: Node) -> set[str]:
    """The names that decide conditions."""
    found: set[str] = set()
    for one in descendants(node):
        if one.type in {"preproc_if", "preproc_elif"}:
            found |= set(_WORD.findall(text_of(one.child_by_field_name("condition"))))
        elif one.type in {"preproc_ifdef", "preproc_elifdef"}:
            found.add(text_of(one.child_by_field_name("name")))
    return found


def _needed_headers(project: Project, kept: set[int], mentioned: set[str]) -> set[str]:
    """The headers with a definition or macro that is needed, or with an include of such a header."""
    headers = project.headers
    needed = {name for name, one in headers.items() if any(node.id in kept for node in _definitions(one.root))}
    macros = {name: _macros(one).keys() for name, one in headers.items()}
    included = {name: {header for header, _ in includes(one.text)} for name, one in headers.items()}
    while True:
        sources = (project.main, *(headers[name] for name in needed))
        names = mentioned.union(*(_conditions(one.root) for one in sources))
        more = {name for name in headers.keys() - needed if names & macros[name] or included[name] & needed}
        if not more:
            return needed
        needed |= more


def _needed(
    kernel: KernelFunction, definitions: list[Node], macros: dict[str, set[str]], also: set[str]
) -> tuple[set[int], set[str]]:
    """The ids of the definitions that the kernel's text mentions, or that those mention; and every name in them."""
    by_name: dict[str, list[Node]] = {}
    for one in definitions:
        for name in _defined_names(one):
            by_name.setdefault(name, []).append(one)
    own = kernel.template or kernel.node
    kept, seen, names = {own.id}, set[str](), names_in(own) | also
    while names := _with_macros(names, macros) - seen:
        seen |= names
        new = [one for name in names for one in by_name.get(name, ()) if one.id not in kept]
        kept |= {one.id for one in new}
        names = {name for one in new for name in names_in(one)}
    return kept, seen


def _with_macros(names: Iterable[str], macros: dict[str, set[str]]) -> set[str]:
    """The names, and the names in the texts of those that are macros."""
    found, waiting = set(names), list(names)
    while waiting:
        new = macros.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def _defined_names(node: Node) -> set[str]:
    """Names that a file-level definition introduces."""
    if node.type == "template_declaration":
        parameters = node.child_by_field_name("parameters")
        own = names_in(parameters) if parameters is not None else set()
        return {name for child in node.named_children for name in _defined_names(child)} - own
    if node.type == "function_definition":
        return {defined_name(node), *scopes_of(node)}
    if node.type in _TYPES:
        enumerators = {
            text_of(one.child_by_field_name("name")) for one in descendants(node) if one.type == "enumerator"
        }
        return {text_of(node.child_by_field_name("name"))} | enumerators
    if node.type in {"declaration", "type_definition", "field_declaration"}:
        kind = node.child_by_field_name("type")
        own = _defined_names(kind) if kind is not None and kind.type in _TYPES else set()
        return own | {_declared_name(one) for one in node.children_by_field_name("declarator")}
    if node.type in {"alias_declaration", "namespace_alias_definition"}:
        return {text_of(node.child_by_field_name("name"))}
    return names_in(node) if node.type == "using_declaration" else set()


def _declared_name(declarator: Node) -> str:
    """The innermost name of a declarator such as `*const table[3]`."""
    one: Node | None = declarator
    while one is not None and one.type not in {"identifier", "type_identifier", "field_identifier"}:
        one = one.child_by_field_name("declarator") or next(
            (c for c in one.named_children if "identifier" in c.type or "declarator" in c.type), None
        )
    return text_of(one)


def _is_kernel(node: Node) -> bool:
    return any(
        one.type == "__global__" for one in (*node.children, *(c for n in node.named_children for c in n.children))
    )


def _is_host_only(node: Node) -> bool:
    """Whether device code never uses it: `main`, a function that launches, a variable of the host."""
    if node.type == "declaration":
        return _is_host_variable(node)
    function = node
    if node.type == "template_declaration":
        function = next((one for one in node.named_children if one.type == "function_definition"), node)
    if function.type != "function_definition":
        return False
    attributes = {one.type for one in function.children} | set(_WORD.findall(text_of(function)[:200].partition("(")[0]))
    if attributes & _DEVICE:
        return False
    return defined_name(function) == "main" or any(one.type == "kernel_call_syntax" for one in descendants(function))


def _is_host_variable(node: Node) -> bool:
    """Whether it is a host's variable: neither constant nor in a GPU's memory. Definitions of types do not count."""
    kind = node.child_by_field_name("type")
    if kind is not None and kind.child_by_field_name("body") is not None:
        return False
    words = set(_WORD.findall(text_of(node).partition("=")[0]))
    has_function = any(one.type == "function_declarator" for one in descendants(node))
    return not has_function and not words & {*_DEVICE, "const"}


@dataclass(frozen=True)
class _Blanking:
    """A file reduced to the definitions in `kept` and to includes, without those of `dropped` and `missing` headers."""

    kept: set[int]
    dropped: frozenset[str]
    missing: frozenset[str]
    has_cub: bool  # whether `using namespace cub` names something

    def of(self, source: CudaSource) -> str:
        """The source's text with blanks in place of the rest."""
        data = bytearray(source.data)
        self._blank(source.root, data)
        return re.sub(r"[ \t]+$", "", data.decode(), flags=re.MULTILINE)

    def _blank(self, node: Node, data: bytearray) -> None:
        for child in node.children:
            if child.type in CONTAINERS and not self._is_empty_linkage(child):
                self._blank(child, data)
            elif child.type == ";" and (before := child.prev_sibling) is not None and before.id in self.kept:
                continue  # what ends a struct
            elif child.id not in self.kept and (child.type == ";" or not self._stays(child, node)):
                for place in range(child.start_byte, child.end_byte):
                    if data[place] not in b"\r\n":
                        data[place] = ord(" ")

    def _is_empty_linkage(self, node: Node) -> bool:
        """Whether it is `extern "C"` around one definition that is blanked."""
        body = node.child_by_field_name("body") if node.type == "linkage_specification" else None
        return body is not None and body.type != "declaration_list" and body.id not in self.kept

    def _stays(self, child: Node, parent: Node) -> bool:
        """Whether a node at file level stays whatever the kernel mentions: braces, directives, macros, includes."""
        if is_macro(child) or child.type in _ALWAYS:
            return True
        if child.type == "preproc_include":
            return any(self._is_kept(name, in_quotes=quoted) for name, quoted in includes(text_of(child)))
        if parent.type in {"namespace_definition", "linkage_specification"} or parent.type.startswith("preproc_"):
            part = parent.field_name_for_child(parent.children.index(child))
            return not child.is_named or part in _DIRECTIVE_PARTS
        if child.type == "using_declaration" and "namespace" in text_of(child):
            known = (
                r"\b(?:nvcuda|cooperative_groups|cg|cub)\b" if self.has_cub else r"\b(?:nvcuda|cooperative_groups|cg)\b"
            )
            return re.search(known, text_of(child)) is not None
        return not child.is_named

    def _is_kept(self, name: str, *, in_quotes: bool) -> bool:
        if in_quotes and name in self.dropped:
            return False
        return DEVICE_HEADERS.fullmatch(name) is not None or (in_quotes and name not in self.missing)
