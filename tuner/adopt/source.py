"""A script's source as a variant's: what Kernel Tuner would define in front of it, defaults, and its headers."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.kernels.dtypes import C_TYPES
from tilewright.tuner.adopt.phrases import is_zeros
from tilewright.tuner.adopt.run import AdoptionError
from tilewright.tuner.cuda_source.c_types import COMMENT
from tilewright.tuner.cuda_source.cut import Cut, cut
from tilewright.tuner.cuda_source.project import Project
from tilewright.tuner.cuda_source.static_shared import static_shared_bytes
from tilewright.tuner.cuda_source.tree import CudaSource, names_in
from tilewright.tuner.cuda_source.uses import ASSIGNED, OTHER, READ, PointerUses
from tilewright.tuner.kernel_check.parameters import parameters_of

_GUARDED = r"(#[ \t]*ifndef[ \t]+{name}\b[^\n]*\n[ \t]*#[ \t]*define[ \t]+{name})\b[^\n]*"
_UNGUARDED = r"^[ \t]*#[ \t]*define[ \t]+{name}\b(?!\()[^\n]*"
_DEFINITION = re.compile(r"^[ \t]*#[ \t]*define\b[^\n]*", re.MULTILINE)
_OF_A_CLASS = re.compile(r"__shared__[^;]*::")  # such as CUB's TempStorage
_UNROLL = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+unroll[ \t(]+(\w*loop_unroll_factor\w*)\)?[ \t]*$", re.MULTILINE)


def macro_of(name: str, values: Sequence[Any]) -> str:
    """The parameter's name in Tilewright, where a parameter is a whole number of at least two letters."""
    admitted = len(name) > 1 and name not in {"get", "items", "keys", "values", "variant"}
    return name if admitted and all(type(value) is int for value in values) else f"{name}_index"


def origin_of(record: Mapping[str, Any]) -> str:
    """The origin of the kernel, in words: "a script of Kernel Tuner's" unless the record has another."""
    return str(record.get("origin", "a script of Kernel Tuner's"))


def variant_source(record: Mapping[str, Any]) -> str:
    """The text of the variant's `.cu`."""
    body = _body(record["sources"], record["parameters"])
    for name, values in record["parameters"].items():
        if macro_of(name, values) == name:
            body = _with_default(body, name, record["default"][name])
    for name in record.get("posed", {}):
        body = _with_default(body, name, record["default"][name])
    for name, values in record["constants"].items():
        body = _filled(body, name, values)
    body = _UNROLL.sub(r"#if \1 != 0\n#pragma unroll \1\n#endif", body)
    return f"{_front(record, body)}\n{textwrap.dedent(body).strip()}\n"


def _body(sources: Sequence[Mapping[str, Any]], parameters: Mapping[str, Sequence[Any]]) -> str:
    """The source, or all sources with the values that each is for."""
    if len(sources) == 1:
        return str(sources[0]["text"])
    parts = []
    for place, one in enumerate(sources):
        when = " && ".join(_equals(name, value, parameters[name]) for name, value in one["when"].items())
        parts.append(f"#{'elif' if place else 'if'} {when}\n{one['text'].strip()}")
    return "\n".join([*parts, "#endif"])


def _equals(name: str, value: Any, values: Sequence[Any]) -> str:
    macro = macro_of(name, values)
    return f"{macro} == {value if macro == name else values.index(value)}"


def _with_default(text: str, name: str, default: int) -> str:
    """The text changed to take the parameter from outside, with the default where it had a definition."""
    guarded, count = re.subn(_GUARDED.format(name=name), rf"\g<1> {default}", text)
    if count:
        return guarded
    return re.sub(
        _UNGUARDED.format(name=name),
        f"#ifndef {name}\n#define {name} {default}\n#endif",
        text,
        flags=re.MULTILINE,
    )


def _filled(text: str, symbol: str, values: str) -> str:
    """The text with these values in its constant memory from the start; no compiler treats them as fixed."""
    declared = rf"(__constant__[^;={{}}]*?\b{symbol}\s*(?:\[[^\]]*\]\s*)*);"
    filled, count = re.subn(
        declared,
        lambda found: f"{found[1]} = {{\n{textwrap.fill(values, 116, break_on_hyphens=False)}}};",
        text,
        count=1,
    )
    if not count:
        raise AdoptionError(f"the source has no __constant__ {symbol}, which cmem_args fill")
    return filled


def _front(record: Mapping[str, Any], body: str) -> str:
    """The lines ahead of the source, which define what Kernel Tuner would give it."""
    names = record["parameters"]
    lines = [f"// Taken over from {origin_of(record)}; its parameters: {', '.join(names) or 'none'}."]
    own = {"kernel_tuner": "1"} | {f"grid_size_{axis}": f"gridDim.{axis}" for axis in "xyz"}
    block_names = record.get("block_names", [f"block_size_{axis}" for axis in "xyz"])
    own |= {name: str(one) for name, one in zip(block_names, record["block"], strict=True)}
    if record["defines"] is None:
        lines += [f"#define {name} {text}" for name, text in own.items() if name not in names and _mentions(body, name)]
    else:
        lines += [f"#define {name} {text}" for name, text in record["defines"].items() if name not in names]
    for name in ("REAL", "REAL_BYTES"):
        if _mentions(body, name):
            lines.append(f"#undef {name}")
    lines += [f"#define {name} SHAPE_{name.upper()}" for name in record.get("posed", {})]
    if record.get("precision"):
        lines.append(f"#define {record['precision']} REAL")
    for name, values in names.items():
        macro = macro_of(name, values)
        if macro != name:
            for place, value in enumerate(values):
                lines += [f"#{'elif' if place else 'if'} {macro} == {place}", f"#define {name} {value}"]
            lines.append("#endif")
    return "\n".join([*lines, ""])


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


def with_cut(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the part of each source that the kernel needs, and the `headers` of the project by name."""
    folders = [Path(one) for one in record["folders"]]
    folders += [Path(flag[2:]) for flag in record["flags"] if flag.startswith("-I") and len(flag) > 2]
    sources, headers = [], dict[str, str]()
    for one in record["sources"]:
        taken = _cut_of(Project(one["text"], None, folders), record["kernel_name"])
        sources.append({**one, "text": taken.text})
        headers |= taken.headers
    return {**record, "sources": sources, "headers": headers}


def _cut_of(project: Project, entry: str) -> Cut:
    """The part that the entry needs; everything where macros make the function, or several have its name."""
    bare = entry.partition("<")[0].rpartition("::")[2].strip()
    found = [kernel for kernel in project.main.kernels if kernel.name == bare]
    if len(found) != 1:
        return Cut(project.main.text, {name: header.text for name, header in project.headers.items()})
    return cut(project, found[0], re.findall(r"[A-Za-z_]\w*", entry))


class Arguments:
    """Names and roles of a call's arguments, as its source shows them."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        source = COMMENT.sub(" ", record["sources"][0]["text"])
        text = _DEFINITION.sub(" ", source)
        entry = record["kernel_name"].partition("<")[0].rpartition("::")[2].strip()
        self._tree = CudaSource(record["sources"][0]["text"])
        self._function = next((one for one in self._tree.kernels if one.name == entry), None)
        parts = parameters_of(text, entry)
        given = record["arguments"]
        self._text, self._body = text, _body_of(text, entry)
        plain = [name for name, values in record["parameters"].items() if macro_of(name, values) == name]
        posed = record.get("posed", {})
        body = _body_of(source, entry)
        self.has_untold_shared = source.count("__shared__") > body.count("__shared__") or bool(_OF_A_CLASS.search(body))
        shared = static_shared_bytes(body, source, [*plain, *posed])
        for name in posed if shared else ():
            shared = re.sub(rf"\bc\.{name}\b", f'p.shape["{name}"]', str(shared))
        self.static_shared_bytes = shared
        self.parts = parts if parts is not None and len(parts) == len(given) else None
        self.count = None if parts is None else len(parts)
        names = [_name_of(part) for part in self.parts or ()]
        is_clear = len(names) == len(set(names)) == len(given) and all(name.isidentifier() for name in names)
        self.names = names if is_clear else [f"argument{place}" for place in range(1, len(given) + 1)]
        self._is_clear = is_clear
        if len(record["sources"]) > 1:  # another text for each case: what this one declares, others need not
            self.static_shared_bytes = "" if "__shared__" not in source else None

    def role(self, place: int, argument: Mapping[str, Any], *, is_answer: bool, elements: int | None) -> str:
        """`input`, `inout` or `output`. `is_answer`: whether the script says what is right in it.

        An output is only assigned to, begins as zeros and has as many `elements` as the problem; anything else that
        may be written is uploaded before a launch, as Kernel Tuner does.
        """
        if not self._is_clear or self.parts is None:
            return "inout"
        name, part = self.names[place], self.parts[place]
        uses = self._uses_of(name)
        is_read_only = uses <= {READ} or re.search(r"\bconst\b", part.partition("*")[0]) is not None
        if not is_answer and is_read_only:
            return "input"
        size = 1
        for one in argument["shape"]:
            size *= one
        is_zero = is_zeros(argument["contents"]) and size == elements
        return "output" if uses == {ASSIGNED} and is_zero else "inout"

    def _uses_of(self, name: str) -> set[str]:
        """How the function uses its pointer; `other` where macros make the function."""
        if self._function is None:
            return {OTHER}
        return PointerUses(self._tree).of(self._function.node, name)

    def axes_of_blocks(self, name: str) -> str:
        """The axes of the grid whose block number each block writes to its own element; "" where it does more.

        It is written in the kernel, or in a function that it calls.
        """
        if self._uses_of(name) != {ASSIGNED}:
            return ""
        for called, given in re.findall(r"\b(\w+)\s*(?:<[^;(){}]*>)?\s*\(([^;(){}]*)\)\s*;", self._body):
            places = [place for place, one in enumerate(given.split(",")) if one.strip() == name]
            parts = parameters_of(self._text.replace("__device__", "__global__"), called) if places else None
            for place in places if parts is not None else ():
                if place < len(parts or ()):
                    body = _body_of(self._text, called, "__device__")
                    if axes := _axes_of_blocks(_name_of((parts or [])[place]), body):
                        return axes
        return _axes_of_blocks(name, self._body)


_OF_BLOCKS = r"[\s()+*]*(?:(?:blockIdx|gridDim)\.[xyz][\s()+*]*)+"


def _axes_of_blocks(name: str, body: str) -> str:
    """The axes of blockIdx that alone index the array's only assignment; "" where anything else does."""
    indices = re.findall(rf"\b{name}\s*\[([^\[\]]*)\]\s*=(?!=)", body)
    if len(indices) != 1 or not re.fullmatch(_OF_BLOCKS, indices[0]):
        return ""
    return "".join(axis for axis in "xyz" if f"blockIdx.{axis}" in indices[0])


def _name_of(part: str) -> str:
    words = re.findall(r"\w+", part.partition("[")[0])
    return words[-1] if words else ""


def _body_of(text: str, entry: str, kind: str = "__global__") -> str:
    """The text between the braces of the function; "" where the function is not found."""
    start = re.search(rf"{kind}[^;{{}}]*?\b{re.escape(entry)}\s*\([^{{;]*\{{", text)
    if start is None:
        return ""
    depth = 1
    for place in range(start.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start.end() : place]
    return text[start.end() :]


def is_known(dtype: str) -> bool:
    """Whether an argument may have that C type."""
    return dtype in C_TYPES


_REFERENCE = r"\b(?:static\s+)?texture\s*<\s*([\w ]+?)\s*(?:,[^<>;]*)?>\s*{name}\s*;"
_FETCH = r"\b(tex(?:1Dfetch|[123]D))\s*(?:<[^<>()]*>)?\s*\(\s*{name}\b"


def with_texture_objects(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record whose kernel takes a `cudaTextureObject_t` for each texture reference, behind its other arguments.

    Raises AdoptionError where another function reads one, which would have to be given it.
    """
    sources = list(record["sources"])
    arguments = []
    for name, texture in record.get("textures", {}).items():
        sources = [{**one, "text": _taken_by(one["text"], record["kernel_name"], name)} for one in sources]
        is_linear = any(re.search(rf"\btex1Dfetch<[^>]*>\({name}\b", one["text"]) for one in sources)
        arguments.append({**texture, "texture": {"memory": "linear"} if is_linear else texture["texture"]})
    return {**record, "sources": sources, "arguments": [*record["arguments"], *arguments]}


def _taken_by(text: str, entry: str, name: str) -> str:
    """The source in which the function takes the texture."""
    reference = re.search(_REFERENCE.format(name=name), text)
    if reference is None:
        raise AdoptionError(f"the source has no texture reference {name}, which texmem_args fill")
    text = text[: reference.start()] + text[reference.end() :]
    text = re.sub(_FETCH.format(name=name), rf"\1<{reference[1]}>({name}", text)
    source = CudaSource(text)
    kernel = next((one for one in source.kernels if one.name == entry), None)
    elsewhere = (one for one in source.root.named_children if kernel is None or one.id != kernel.node.id)
    if kernel is None or any(name in names_in(one) for one in elsewhere):
        raise AdoptionError(
            f"the texture {name} is read by another function than {entry}: let both take a cudaTextureObject_t, and "
            "declare it by hand (docs/adding-a-kernel.md, Textures)"
        )
    end = kernel.parameters_end
    data = source.data
    return f"{data[:end].decode()}{', ' * bool(kernel.parameters)}cudaTextureObject_t {name}{data[end:].decode()}"
