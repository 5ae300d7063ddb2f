"""A first declaration of a kernel, from its source alone: arguments by their C types, parameters by their macros.

It assumes what no source tells: the tensors' shapes, and the launch. The declaration says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.kernels.dtypes import HALF
from tilewright.tuner.cuda_source.c_types import COMMENT
from tilewright.tuner.cuda_source.constants import ConstantArray, constant_arrays, declared
from tilewright.tuner.cuda_source.cut import DEVICE_HEADERS, Cut, cut
from tilewright.tuner.cuda_source.extents import Extents
from tilewright.tuner.cuda_source.passed import FirstArgument, UnclearSourceError
from tilewright.tuner.cuda_source.project import Project
from tilewright.tuner.cuda_source.proposed import (
    Values,
    defined_number,
    names_a_block,
    unique_name,
    values_around,
    with_guards,
)
from tilewright.tuner.cuda_source.static_shared import static_shared_bytes
from tilewright.tuner.cuda_source.tree import CudaSource, KernelFunction, descendants, names_in, text_of
from tilewright.tuner.cuda_source.uses import PointerUses
from tilewright.tuner.kernel_check.geometry import FirstGeometry, Tuned, block_parameters
from tilewright.tuner.kernel_check.instance import Instance, arguments_in
from tilewright.tuner.kernel_check.parameters import default_macros

_INLINE_PTX = re.compile(r"\b(?:asm|__asm__|__asm)\b")

MAX_REGISTERS = "MAX_REGISTERS"
REGISTERS: Values = 255, [32, 64, 128, 255]
"""The registers of a thread, where the source shows nothing else to tune; 255 is the most that a GPU has."""


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
    source: str,
    file_name: str,
    entry: str | None = None,
    *,
    here: Path | None = None,
    folders: Sequence[Path] = (),
    taken_names: Collection[str] = (),
) -> FirstDeclaration:
    """The first declaration for a source, of its function `entry` if it has several; raises UnclearSourceError.

    Only the kernel and what it uses are taken along, at their lines (`cut`). Headers in quotes are looked for in
    `here`, the source's own folder, and in `folders`. `taken_names` are kernels that there are already.
    """
    project = Project(source, here, folders)
    bare, _, given = (entry or "").partition("<")
    kernel = _chosen(project.main, bare.strip() or None)
    instance = Instance.of(kernel, arguments_in(given) if given else None)
    taken = cut(project, kernel, instance.names)
    _refuse_launches(kernel)
    uses = PointerUses(project.main)
    arguments = [FirstArgument.of(part, kernel, taken.whole, instance.types, uses) for part in kernel.parameters]
    if not any(argument.role in {"output", "inout"} for argument in arguments):
        raise UnclearSourceError(
            f"line {kernel.line}: {kernel.name} writes nothing: its parameters are numbers and pointers to const"
        )
    constants = list(constant_arrays(COMMENT.sub(" ", taken.whole)))
    _refuse_hidden(project.main, {array.name for array in constants})
    extents = Extents(kernel, [argument.name for argument in arguments if argument.is_size])
    tuned = _tuned(taken, extents, constants, instance.proposed)
    text = with_guards(taken.text)
    if not tuned and "__launch_bounds__" not in kernel.head:
        tuned, text = {MAX_REGISTERS: REGISTERS}, _with_registers(text, kernel)
    name = unique_name(kernel.name, taken_names)
    file_name = re.sub(r"[^\w.+-]", "_", file_name)
    declaration = _declaration(
        name=name,
        called=instance.called,
        file_name=file_name,
        arguments=arguments,
        constants=constants,
        tuned=tuned,
        extents=extents,
        extras=_extras(instance.read(kernel.body), taken.whole, [*tuned]),
    )
    headers = {header: with_guards(one) for header, one in taken.headers.items()}
    missing = tuple(one for one in dict.fromkeys(project.missing) if not DEVICE_HEADERS.fullmatch(one))
    others = tuple(one.entry for one in project.main.kernels if one.node.id != kernel.node.id)
    return FirstDeclaration(name, declaration, text, file_name, headers, missing, others)


def _tuned(taken: Cut, extents: Extents, constants: list[ConstantArray], given: dict[str, Values]) -> dict[str, Values]:
    """Default and values of each parameter: macros, those given, and block sizes where nothing names them."""
    fixed = {name for array in constants for name in array.macros}  # inputs do not depend on a configuration
    tuned = {name: values for name, values in default_macros(taken.whole).items() if name not in fixed} | given
    text = COMMENT.sub(" ", taken.whole)
    if "blockDim" in text and "__shared__" not in text and not any(map(names_a_block, tuned)):
        for name, usual in block_parameters(extents).items():
            threads = defined_number(name, taken.whole) or usual
            tuned[name] = threads, values_around(threads, is_block=True)
    return tuned


def _with_registers(text: str, kernel: KernelFunction) -> str:
    """The source with a register limit on the kernel, for a kernel that has nothing else to tune."""
    head = re.compile(rf"__global__(?=(?:(?!__global__)[^;{{}}])*?\b{kernel.name}\s*\([^;{{}}]*\)\s*\{{)")
    return head.sub(f"__global__ __maxnreg__({MAX_REGISTERS})", text, count=1)


def _refuse_launches(kernel: KernelFunction) -> None:
    """Raises UnclearSourceError where the kernel launches kernels."""
    for one in descendants(kernel.node):
        if one.type == "kernel_call_syntax":
            line = one.start_point[0] + 1
            reason = "which neither NVRTC nor the CPU device compiles. Launch from the host instead"
            raise UnclearSourceError(f"line {line}: {kernel.name} launches a kernel itself, {reason}")


def _refuse_hidden(tree: CudaSource, constants: Collection[str]) -> None:
    """Raises UnclearSourceError where constant memory that is to be filled is in a namespace."""
    for one in descendants(tree.root):
        names = names_in(one) & set(constants) if one.type == "namespace_definition" else set()
        inside = one.child_by_field_name("body") if names else None
        for part in inside.named_children if inside else ():
            hidden = names & names_in(part) if text_of(part).startswith("__constant__") else set()
            if hidden:
                line = part.start_point[0] + 1
                reason = "which cannot be filled by its name: move it out of the namespace"
                raise UnclearSourceError(f"line {line}: the constant memory {hidden.pop()} is in a namespace, {reason}")


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


def _extras(body: str, text: str, parameters: list[str]) -> str:
    """Further arguments of the variant: its requirements on a device, its static shared memory."""
    without_comments = COMMENT.sub(" ", text)
    extras = ['requires=frozenset({"ptx"}),'] if _INLINE_PTX.search(without_comments) else []
    size = static_shared_bytes(COMMENT.sub(" ", body), without_comments, parameters)
    if size:
        extras.append(f"static_shared_bytes=lambda c, {'p' if 'p.item_bytes' in size else '_p'}: {size},")
    return "".join(f"\n            {one}" for one in extras)


def _declaration(
    *,
    name: str,
    called: str,
    file_name: str,
    arguments: list[FirstArgument],
    constants: list[ConstantArray],
    tuned: Tuned,
    extents: Extents,
    extras: str,
) -> str:
    numbers = [argument.name for argument in arguments if argument.is_size]
    geometry = FirstGeometry.of(extents, numbers, tuned, [parameter for parameter in tuned if names_a_block(parameter)])
    dtypes = _dtypes({argument.dtype for argument in arguments if not argument.is_size})
    lines = [argument.declared(geometry, dtypes[0]) for argument in arguments]
    lines += [declared(array, dtypes[0]) for array in constants]
    listed = ((key, own, ", ".join(map(str, values))) for key, (own, values) in tuned.items())
    choices = (f'choice("{key}", {values}, default={own}),' for key, own, values in listed)
    return _DECLARATION.format(
        name=name,
        file=file_name,
        entry="" if name == called else f'\n    entry="{called}",',
        dtypes=", ".join(f'"{dtype}"' for dtype in dtypes),
        arguments="\n        ".join(lines),
        grid=", ".join(geometry.grid),
        block=", ".join(geometry.block),
        parameters="\n                ".join(choices),
        extras=extras,
        shape=", ".join(f'"{axis}": {size}' for axis, size in geometry.example.items()),
    )


def _dtypes(used: set[str | None]) -> list[str]:
    if None in used:
        return ["float32", "float64"]
    halves = [dtype for dtype in HALF if dtype in used]
    if halves:
        return halves[:1]
    return ["float64"] if "float64" in used and "float32" not in used else ["float32"]


_DECLARATION = '''\
"""{name}: a first declaration, made from {file}.

No source tells shapes, roles and launch: look at them. Without a `reference`, results are only compared with those of
the default configuration.
"""

from tilewright.kernels.kernel import Kernel, Launch, Scalar, Tensor, Variant, shape_of
from tilewright.kernels.space import choice


def launch(c, p):
    """A thread for each element, as far as the source shows it."""
    return Launch(
        grid=({grid}),
        block=({block}),
    )


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
