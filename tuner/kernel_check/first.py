"""A first declaration of a kernel, from its source alone: arguments by their C types, parameters by their macros.

What no source tells is assumed: how tensors are shaped, how the kernel is launched. The declaration says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.kernels.dtypes import HALF
from tilewright.tuner.cuda_source.c_types import COMMENT
from tilewright.tuner.cuda_source.cut import DEVICE_HEADERS, Cut, cut
from tilewright.tuner.cuda_source.passed import FirstArgument, UnclearSourceError
from tilewright.tuner.cuda_source.project import Project
from tilewright.tuner.cuda_source.static_shared import static_shared_bytes
from tilewright.tuner.cuda_source.tree import CudaSource, KernelFunction

_DEFINITIONS = re.compile(r"^[ \t]*#[ \t]*define\b.*$", re.MULTILINE)
_NUMBER_DEFINED = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?!SHAPE_|REAL)(\w{2,})[ \t]+([1-9]\d*)[ \t]*(?://.*)?$", re.MULTILINE
)
_GUARD = re.compile(r"#[ \t]*ifndef[ \t]+(\w+)[ \t]*\n[ \t]*$")
_WHOLE = re.compile(r"(?:unsigned|signed|int|long|short|char|size_t|auto|u?int(?:8|16|32|64)?(?:_t)?)(?:\s+\w+)*")
_BLOCK = re.compile(r"block|thread", re.IGNORECASE)
_INLINE_PTX = re.compile(r"\b(?:asm|__asm__|__asm)\b")

MOST_THREADS, FARTHEST = 1024, 4
"""Values are proposed up to a block's most threads, and from a quarter of the source's own to four times as much."""

THREADS = 256
"""The threads of a block where the source names no macro for them."""

EXAMPLE_SIZES = (1 << 20, 1024, 128)
"""The size of every axis, where there are one, two or three."""


@dataclass(frozen=True)
class FirstDeclaration:
    """The files of a kernel's folder: its declaration, and its source with every parameter's macro inside #ifndef.

    `file_name` is the source's, which the declaration names; `headers` are the project's by their names; `missing` are
    those that were not found and left out; `others` are kernels that the file has beside this one.
    """

    name: str
    declaration: str
    source: str
    file_name: str
    headers: dict[str, str]
    missing: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def first_declaration(
    source: str, file_name: str, entry: str | None = None, *, here: Path | None = None, folders: Sequence[Path] = ()
) -> FirstDeclaration:
    """Made from the source, of the function `entry` where it has several; raises UnclearSourceError.

    Only the kernel and what it uses are taken along, at their lines (`cut`). Headers in quotes are looked for in
    `here`, the source's own folder, and in `folders`.
    """
    project = Project(source, here, folders)
    kernel = _chosen(project.main, entry)
    taken = cut(project, kernel)
    called, types, proposed = _instance(kernel)
    arguments = [FirstArgument.of(part, kernel, taken.whole, types) for part in kernel.parameters]
    if not any(argument.role in {"output", "inout"} for argument in arguments):
        raise UnclearSourceError(
            f"line {kernel.line}: {kernel.name} writes nothing: its parameters are numbers and pointers to const"
        )
    tuned = _tuned(taken, proposed)
    name = re.sub(r"^[^a-z]+", "", re.sub(r"\W", "", kernel.name.lower())) or "kernel"
    file_name = re.sub(r"[^\w.+-]", "_", file_name)
    return FirstDeclaration(
        name,
        _declaration(name, called, file_name, arguments, tuned, _extras(kernel, taken.whole, [*tuned])),
        _guarded(taken.text),
        file_name,
        {header: _guarded(text) for header, text in taken.headers.items()},
        tuple(one for one in dict.fromkeys(project.missing) if not DEVICE_HEADERS.fullmatch(one)),
        tuple(one.entry for one in project.main.kernels if one.node.id != kernel.node.id),
    )


def _tuned(taken: Cut, proposed: dict[str, tuple[int, list[int]]]) -> dict[str, tuple[int, list[int]]]:
    """Default and values of each parameter: macros, template arguments, and threads where nothing names them."""
    tuned = proposed_macros(taken.whole) | proposed
    if "blockDim" in taken.whole and "__shared__" not in taken.whole and not any(map(names_a_block, tuned)):
        tuned["BLOCK_SIZE"] = THREADS, values_around(THREADS, is_block=True)
    return tuned


def _chosen(tree: CudaSource, entry: str | None) -> KernelFunction:
    kernels = {one.entry: one for one in tree.kernels}
    if not kernels:
        raise UnclearSourceError("there is no __global__ function with a body in the source")
    names = ", ".join(kernels)
    if entry is None and len(kernels) != 1:
        raise UnclearSourceError(f"name one __global__ function with --entry; the source has {names}")
    found = [one for one in tree.kernels if entry in {None, one.entry, one.name}]
    if not found:
        raise UnclearSourceError(f"there is no __global__ function {entry!r}; the source has {names}")
    if len(found) > 1:
        lines = ", ".join(str(one.line) for one in found)
        raise UnclearSourceError(f"{entry} is defined in lines {lines}: leave one of them in the file")
    return found[0]


def _instance(kernel: KernelFunction) -> tuple[str, list[str], dict[str, tuple[int, list[int]]]]:
    """The entry, with REAL for types and macros for numbers; those types' names; those macros' defaults and values."""
    words, types, proposed = [], [], {}
    for one in kernel.template_parameters:
        if one.kind == "typename":
            if not re.search(rf"\b{one.name}\b", " ".join(kernel.parameters)):
                reason = "which no parameter has: put the class that you use in its place in the file"
                raise UnclearSourceError(
                    f"line {kernel.line}: {kernel.name} is a template of type {one.name}, {reason}"
                )
            types.append(one.name)
            words.append("REAL")
            continue
        if one.kind != "bool" and not _WHOLE.fullmatch(one.kind):
            parameter = f"{one.kind} {one.name}".strip()
            reason = "neither a type nor a whole number: write its declaration by hand"
            raise UnclearSourceError(f"line {kernel.line}: {kernel.name} is a template of `{parameter}`, {reason}")
        macro, is_block = f"GIVEN_{one.name}", names_a_block(one.name)  # a macro would change the template's own name
        own = int(one.default) if one.default.isdigit() else THREADS if is_block else 4
        values = (int(one.default in {"true", "1"}), [0, 1]) if one.kind == "bool" else None
        proposed[macro] = values or (own, values_around(own, is_block=is_block))
        words.append(macro)
    return (f"{kernel.entry}<{', '.join(words)}>" if words else kernel.entry), types, proposed


def _extras(kernel: KernelFunction, text: str, parameters: list[str]) -> str:
    """Further arguments of the variant: what it needs of a device, its static shared memory."""
    without_comments = COMMENT.sub(" ", text)
    extras = ['requires=frozenset({"ptx"}),'] if _INLINE_PTX.search(without_comments) else []
    size = static_shared_bytes(COMMENT.sub(" ", kernel.body), without_comments, parameters)
    if size:
        extras.append(f"static_shared_bytes=lambda c, _p: {size},")
    return "".join(f"\n            {one}" for one in extras)


def proposed_macros(source: str) -> dict[str, tuple[int, list[int]]]:
    """Default and values of each macro that is a number and is used."""
    text, proposed = COMMENT.sub(" ", source), {}
    for found in _NUMBER_DEFINED.finditer(text):
        name, default = found[1], int(found[2])
        if is_used(name, text):
            proposed[name] = default, values_around(default, is_block=names_a_block(name))
    return proposed


def is_used(name: str, text: str) -> bool:
    """Whether the text, which has no comments, uses the macro outside of definitions."""
    return re.search(rf"\b{name}\b", _DEFINITIONS.sub(" ", re.sub(r"#[ \t]*ifn?def.*", " ", text))) is not None


def names_a_block(name: str) -> bool:
    """Whether a parameter of that name says how many threads a block has."""
    return _BLOCK.search(name) is not None


def values_around(default: int, *, is_block: bool) -> list[int]:
    """The default and the powers of two around it; threads of a block are no more than a block may have."""
    most = min(FARTHEST * default, MOST_THREADS) if is_block else FARTHEST * default
    powers = (1 << e for e in range(most.bit_length()))
    return sorted({default, *(n for n in powers if default <= FARTHEST * n and n <= most)})


def _guarded(source: str) -> str:
    """The source, which takes each parameter from outside where it is given."""

    def guarded(found: re.Match[str]) -> str:
        guard = _GUARD.search(source, 0, found.start())
        is_guarded = guard is not None and guard[1] == found[1]
        return found[0] if is_guarded else f"#ifndef {found[1]}\n{found[0]}\n#endif"

    return _NUMBER_DEFINED.sub(guarded, source)


def _declaration(
    name: str,
    entry: str,
    file_name: str,
    arguments: list[FirstArgument],
    tuned: dict[str, tuple[int, list[int]]],
    extras: str,
) -> str:
    sizes = [argument.name.lower() for argument in arguments if argument.is_size][:3] or ["n"]
    dtypes = _dtypes({argument.dtype for argument in arguments if not argument.is_size})
    grid, block = _geometry(sizes, [parameter for parameter in tuned if names_a_block(parameter)])
    listed = ((key, own, ", ".join(map(str, values))) for key, (own, values) in tuned.items())
    choices = (f'choice("{key}", {values}, default={own}),' for key, own, values in listed)
    return _DECLARATION.format(
        name=name,
        file=file_name,
        entry="" if name == entry else f'\n    entry="{entry}",',
        dtypes=", ".join(f'"{dtype}"' for dtype in dtypes),
        arguments="\n        ".join(argument.declared(sizes, dtypes[0]) for argument in arguments),
        grid=", ".join(grid),
        block=", ".join(block),
        parameters="\n                ".join(choices),
        extras=extras,
        shape=", ".join(f'"{axis}": {EXAMPLE_SIZES[len(sizes) - 1]}' for axis in sizes),
    )


def _dtypes(used: set[str | None]) -> list[str]:
    if None in used:
        return ["float32", "float64"]
    halves = [dtype for dtype in HALF if dtype in used]
    if halves:
        return halves[:1]
    return ["float64"] if "float64" in used and "float32" not in used else ["float32"]


def _geometry(sizes: list[str], blocks: list[str]) -> tuple[list[str], list[str]]:
    """Grid and block as Python expressions: a thread for each element, x along the last axis."""
    threads = [*(f"c.{parameter}" for parameter in blocks[:3]), *([] if blocks else ["256"])]
    block = [*threads[: len(sizes)], "1", "1", "1"][:3]
    grid = [f'-(-p.shape["{axis}"] // {per_block})' for axis, per_block in zip(reversed(sizes), block, strict=False)]
    return [*grid, "1", "1"][:3], block


_DECLARATION = '''\
"""{name}: a first declaration, made from {file}.

No source tells shapes, roles and launch: look at them. Without a `reference`, results are only compared with those of
the default configuration.
"""

from tilewright.kernels.kernel import Kernel, Launch, Scalar, Tensor, Variant, shape_of
from tilewright.kernels.space import choice


def launch(c, p):
    """A thread for each element; x runs along the last axis."""
    return Launch(grid=({grid}), block=({block}))


KERNEL = Kernel(
    name="{name}",{entry}
    dtypes=({dtypes},),
    arguments=(
        {arguments}
    ),
    variants=(
        Variant(
            "plain",
            "{file}",
            launch,
            (
                {parameters}
            ),{extras}
        ),
    ),
    example_shape={{{shape}}},
)
'''
