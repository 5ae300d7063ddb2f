"""A captured launch as the folder of a kernel: the same declaration as that of an adopted call."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import ITEM_BYTES
from tilewright.tuner.adopt.adopt import Adopted, made_from, placed, workplace
from tilewright.tuner.adopt.script.contents import described
from tilewright.tuner.adopt.script.functions import UnclearError
from tilewright.tuner.adopt.script.record import initialiser
from tilewright.tuner.capture.capture import Capture, CaptureError
from tilewright.tuner.capture.proposals import proposals
from tilewright.tuner.capture.triton.adopt import adopted_triton
from tilewright.tuner.cuda_source.c_types import COMMENT, NUMBER, dtype_of, type_of
from tilewright.tuner.kernel_check.parameters import parameters_of

_VECTOR = re.compile(r"(float|double|char|uchar|short|ushort|int|uint|longlong|ulonglong)([234])")
_DEFINITION = re.compile(r"^[ \t]*#[ \t]*define\b[^\n]*", re.MULTILINE)
_CONSTANT = r"__constant__\s+(?:const\s+)?([\w ]+?)\s+{symbol}\s*(?:\[[^\]]*\]\s*)*;"
ANY_CONSTANT = re.compile(r"__constant__[^;={}()]*?\b(\w+)\s*(?:\[[^\]]*\]\s*)*;")


def adopt_launch(capture: Capture, name: str, *, target: Path, others: Sequence[Path] = ()) -> Adopted:
    """Makes the folder in `target`; raises CaptureError and AdoptionError, and leaves nothing then."""
    launch: Mapping[str, Any] = capture.launch(name)
    with workplace(target) as (run, made):
        if launch["library"] == "Triton":
            (result,) = placed([adopted_triton(capture, launch, run, made, others)], target)
            return result
        launch = _named(launch)
        record = _record(launch, capture.folder, run)
        adopted = made_from(1, record, run, made, set(catalogue().by_name), others)
        if adopted.folder is None:
            raise CaptureError(f"{name} cannot be adopted: {adopted.refused}")
        (result,) = placed([adopted], target)
        return result


def _named(launch: Mapping[str, Any]) -> Mapping[str, Any]:
    """The launch under its function's name in the source; raises CaptureError."""
    entry = unmangled(launch["entry"])
    if entry is None:
        fix = 'give the function that is launched a name by extern "C", or compile it by name_expressions'
        raise CaptureError(f"{launch['name']} cannot be adopted: {launch['entry']} is a template's instance; {fix}")
    return {**launch, "entry": entry}


def _record(launch: Mapping[str, Any], folder: Path, run: Path) -> dict[str, Any]:
    """The launch as an intercepted call, its arrays' files in `run`; raises CaptureError."""
    name = launch["name"]
    if launch["source"] is None:
        raise CaptureError(f"{name} has no source that could be found: only what a SourceModule, a RawModule or a RawKernel compiles has")  # fmt: skip  # noqa: E501
    types = _types(launch)
    arguments, answer = [], []
    for place, (one, part) in enumerate(zip(launch["arguments"], types, strict=True)):
        argument, right = _argument(name, place, one, part, folder, run)
        arguments.append(argument)
        answer.append(right)
    keeps = any(one.get("before") for one in launch["arguments"])
    found = proposals(launch, _sizes(arguments))
    notes = list(found.notes)
    if found.values:
        listed = "; ".join(f"{key}: {', '.join(map(str, values))}" for key, values in found.values.items())
        notes.append(f"proposed, and not known to be free: {listed}")
    if not keeps:
        notes.append("contents were not kept: inputs are drawn, and results compared with the default configuration's")
    return {
        "kernel_name": found.entry,
        "is_run": False,
        "origin": f"a program that launches it by {launch['library']}",
        "parameters": found.values,
        "default": found.default,
        "block": found.block,
        "grid": found.grid,
        "shared": found.shared,
        "sources": [{"when": {}, "text": launch["source"]}],
        "folders": [*launch["folders"], str(Path.cwd())],
        "restrictions": [],
        "arguments": arguments,
        "answer": answer if keeps else None,
        "verify": None,
        "atol": None,
        "flags": found.flags,
        "defines": {},
        "constants": _constants(launch, folder),
        "imports": [],
        "definitions": [],
        "view": "c",
        "notes": notes,
    }


def _types(launch: Mapping[str, Any]) -> list[str]:
    """Each parameter as the source declares it; "" where that is unclear. Raises CaptureError for a wrong count."""
    text = _DEFINITION.sub(" ", COMMENT.sub(" ", launch["source"]))
    parts = parameters_of(text, launch["entry"].partition("<")[0].rpartition("::")[2].strip())
    count = len(launch["arguments"])
    return parts if parts is not None and len(parts) == count else [""] * count


def _argument(
    name: str, place: int, one: Mapping[str, Any], part: str, folder: Path, run: Path
) -> tuple[dict[str, Any], str | None]:
    """The argument as a call has it, and the file of what was right in it after the launch."""
    kind, is_pointer = type_of(part) if part else ("", False)
    if kind == "cudaTextureObject_t":
        fix = "declare the kernel by hand (docs/adding-a-kernel.md, Textures)"
        raise CaptureError(f"{name} cannot be adopted: argument {place + 1} is a texture; {fix}")
    if one["kind"] == "scalar" and not is_pointer:
        dtype = dtype_of(kind) if NUMBER.fullmatch(kind) else one["dtype"]
        value = one["value"] if dtype.startswith(("float", "bfloat")) else int(one["value"])
        return {"kind": "scalar", "dtype": dtype, "value": value}, None
    if one["kind"] == "scalar":
        raise CaptureError(
            f"{name} cannot be adopted: argument {place + 1} is the address {one['value']}, where no array is"
        )
    if one["kind"] not in {"tensor", "pointer"}:
        raise CaptureError(
            f"{name} cannot be adopted: argument {place + 1} is a {one['kind']}, neither array nor number"
        )
    if one.get("strided"):
        raise CaptureError(
            f"{name} cannot be adopted: argument {place + 1} is a view with gaps, or was captured before permuted axes "
            "were known: capture the program again; of a view with gaps, pass an array without gaps and its strides"
        )
    dtype, shape = (one["dtype"], tuple(one["shape"])) if one["kind"] == "tensor" else _pointed(kind, one["bytes"])
    argument: dict[str, Any] = {"kind": "tensor", "dtype": dtype, "shape": list(shape)}
    if not math.prod(shape):
        raise CaptureError(f"{name} cannot be adopted: argument {place + 1} has no elements")
    if not one.get("before"):
        return argument | {"contents": {"kind": "normal", "mean": 0, "deviation": 1}}, None
    before = _array(folder / one["before"], dtype, shape)
    contents = described(before, as_they_are=True, file=run / f"argument{place}.npy", limit_bytes=before.nbytes)
    if not one.get("after"):
        return argument | {"contents": contents}, None
    np.save(run / f"answer{place}.npy", _array(folder / one["after"], dtype, shape))
    return argument | {"contents": contents}, f"answer{place}.npy"


def _pointed(kind: str, size_bytes: int) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of memory that is known by its address, as the source's type has it; else bytes."""
    vector = _VECTOR.fullmatch(kind)
    scalar = re.sub("^u(?=[cs]|int|long)", "unsigned ", vector[1]).replace("longlong", "long long") if vector else kind
    if not NUMBER.fullmatch(scalar):
        return "uint8", (size_bytes,)
    dtype, components = dtype_of(scalar), int(vector[2]) if vector else 1
    count = size_bytes // (ITEM_BYTES[dtype] * components)
    return dtype, (count, components) if components > 1 else (count,)


def _array(path: Path, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    try:
        numbers = np.load(path)
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path} cannot be read: {error}") from error
    array: NDArray[Any] = numbers[: math.prod(shape) * ITEM_BYTES[dtype]].view(dtype).reshape(shape)
    return array


def _sizes(arguments: Sequence[Mapping[str, Any]]) -> list[int]:
    """Sizes that a grid may follow from: whole numbers that are passed, then the sizes of arrays."""
    passed = [one["value"] for one in arguments if one["kind"] == "scalar" and isinstance(one["value"], int)]
    shapes = [one["shape"] for one in arguments if one["kind"] == "tensor"]
    return list(dict.fromkeys([*passed, *(size for shape in shapes for size in shape), *map(math.prod, shapes)]))


def _constants(launch: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """The contents of constant memory as C has them; raises CaptureError where they are not known."""
    constants = {}
    for symbol in ANY_CONSTANT.findall(COMMENT.sub(" ", launch["source"])):
        declared = re.search(_CONSTANT.format(symbol=symbol), launch["source"])
        file = launch["constants"].get(symbol)
        if file is None:
            fix = "capture it with --contents" if not launch["constants"] else "write them into the source"
            raise CaptureError(f"{launch['name']} reads __constant__ {symbol}, whose contents are not known: {fix}")
        if declared is None or not NUMBER.fullmatch(declared[1].strip()):
            raise CaptureError(f"{launch['name']} reads __constant__ {symbol}, which does not hold plain numbers")
        try:
            constants[symbol] = initialiser(symbol, np.load(folder / file).view(dtype_of(declared[1].strip())))
        except UnclearError as error:
            raise CaptureError(f"{launch['name']} cannot be adopted: {error}") from error
    return constants


_LENGTH = re.compile(r"\d+")


def unmangled(name: str) -> str | None:
    """The function's name with its namespaces: `mine::scale` for `_ZN4mine5scaleEPfi`; None for a template's instance.

    A name that is not mangled comes back as it is.
    """
    if not name.startswith("_Z"):
        return name
    rest = name[2:].removeprefix("L")
    is_nested = rest.startswith("N")
    rest, words = rest.removeprefix("N"), list[str]()
    while found := _LENGTH.match(rest):
        end = found.end() + int(found[0])
        words.append(rest[found.end() : end])
        rest = rest[end:]
        if not is_nested:
            break
    is_whole = words and (rest.startswith("E") if is_nested else not rest.startswith("I"))
    return "::".join(words) if is_whole else None
