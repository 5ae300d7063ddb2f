"""The kernel that a function of the host launches, where Kernel Tuner tunes the function (`lang="C"`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from tree_sitter import Node

from tilewright.tuner.adopt.run import AdoptionError
from tilewright.tuner.cuda_source.arithmetic import Names, python_of
from tilewright.tuner.cuda_source.tree import CudaSource, defined_name, descendants, parameters_in, text_of

_LOOPS = frozenset({"for_statement", "while_statement", "do_statement"})
_COPY = r"\bcudaMemcpy(?:Async)?\s*\(\s*(?:{name}\s*,\s*(\w+)|(\w+)\s*,\s*{name})\s*,"
_TO_SYMBOL = re.compile(r"cudaMemcpyToSymbol(?:Async)?")
_BY_KERNEL_TUNER = re.compile(r"grid_size_[xyz]|1")


def with_kernel_of_host(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of the kernel that the function launches, with the function's arguments that it passes on.

    Only where it launches one kernel, once, with the grid and block that Kernel Tuner computes, on arrays of its own
    arguments or copies of these. Raises AdoptionError where it does something else: that part would be lost.
    """
    source = CudaSource(record["sources"][0]["text"])
    host = _function(source, record["kernel_name"])
    [call, geometry] = _launch(host)
    _check_geometry(text_of(host), geometry, record["block_names"])
    names = [re.findall(r"\w+", part)[-1] for part in parameters_in(host)]
    passed = _arguments(call, names, text_of(host))
    constants, excluded = _constants(host, names, record)
    parameters = {
        name: [value for value in values if value not in excluded.get(name, ())]
        for name, values in record["parameters"].items()
    }
    default = {name: value if value in parameters[name] else parameters[name][0]
               for name, value in record["default"].items()}  # fmt: skip
    kernel = text_of(call.child_by_field_name("function")).strip() or text_of(call.children[0])
    notes = [f"{kernel}, which {record['kernel_name']} launches: what the host does is not timed"]
    notes += [f"{name} is not {', '.join(map(str, values))}: the host fills constant memory then, with what it computes"
              for name, values in excluded.items()]  # fmt: skip
    return {
        **record,
        "kernel_name": kernel,
        "arguments": [record["arguments"][place] for place in passed],
        "constants": {**record["constants"], **constants},
        "parameters": parameters,
        "default": default,
        "notes": [*record["notes"], *notes],
    }


def _function(source: CudaSource, name: str) -> Node:
    functions = (one for one in descendants(source.root) if one.type == "function_definition")
    found = [one for one in functions if defined_name(one) == name]
    if len(found) != 1:
        raise AdoptionError(f"it is in C, and the function {name} is not in its source, or several times")
    return found[0]


def _launch(host: Node) -> tuple[Node, list[str]]:
    """The only launch, as a call, and the names of its grid and block."""
    launches = [one for one in descendants(host) if one.type == "kernel_call_syntax"]
    if len(launches) != 1 or _is_inside(launches[0], host):
        raise AdoptionError(
            "it is in C, and launches several kernels, or one several times, beside which the host works: take each "
            "kernel over by `tilewright kernels new`"
        )
    [launch] = launches
    assert launch.parent is not None  # noqa: S101 - it is a part of the call
    return launch.parent, [text_of(one) for one in launch.named_children[:2]]


def _is_inside(node: Node, host: Node) -> bool:
    """Whether the node is in a loop of the function."""
    one = node.parent
    while one is not None and one.id != host.id:
        if one.type in _LOOPS:
            return True
        one = one.parent
    return False


def _check_geometry(text: str, names: list[str], block_names: list[str]) -> None:
    for name, admitted in zip(names, (_BY_KERNEL_TUNER, re.compile("|".join([*block_names, "1"]))), strict=True):
        declared = re.search(rf"\bdim3\b[^;]*?\b{re.escape(name)}\s*\(([^()]*)\)", text)
        parts = declared[1].split(",") if declared else [""]
        if not all(admitted.fullmatch(part.strip()) for part in parts):
            raise AdoptionError(f"it is in C, and the host computes {name}, which it launches the kernel with")


def _arguments(call: Node, names: list[str], text: str) -> list[int]:
    """The places of the function's arguments that are passed on, themselves or as copies on the device."""
    places = []
    listed = call.child_by_field_name("arguments")
    for one in listed.named_children if listed else ():
        name = text_of(one)
        copies = [a or b for a, b in re.findall(_COPY.format(name=re.escape(name)), text)]
        found = [names.index(each) for each in (name, *copies) if each in names]
        if not found:
            raise AdoptionError(
                f"it is in C, and passes {name}, which is neither one of its arguments nor a copy of one"
            )
        places.append(found[0])
    return places


def _constants(host: Node, names: list[str], record: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Texts that fill constant symbols; and, by parameter, values with which the host computes another filling."""
    filled: dict[str, str] = {}
    excluded: dict[str, list[int]] = {}
    for call in descendants(host):
        if call.type != "call_expression" or not _TO_SYMBOL.fullmatch(text_of(call.child_by_field_name("function"))):
            continue
        listed = call.child_by_field_name("arguments")
        symbol, source, *_ = [text_of(one) for one in listed.named_children] if listed else ["", ""]
        text = record["initialisers"].get(str(names.index(source))) if source in names else None
        if text is not None:
            filled[symbol] = text
            continue
        found = _values_under(call, record["parameters"])
        if found is None:
            raise AdoptionError(f"it is in C, and the host fills the constant memory {symbol} with what it computes")
        excluded.setdefault(found[0], []).extend(found[1])
    return filled, excluded


def _values_under(node: Node, parameters: Mapping[str, list[int]]) -> tuple[str, list[int]] | None:
    """The one parameter whose `#if` compiles the node, and its values that do; None where no such `#if` is found."""
    one = node.parent
    while one is not None and one.type != "preproc_if":
        one = one.parent
    condition = text_of(one.child_by_field_name("condition")) if one else ""
    read = [name for name in parameters if re.search(rf"\b{name}\b", condition)]
    text = python_of(condition, Names(parameters)) if len(read) == 1 else None
    if text is None:
        return None
    [name] = read
    values = [value for value in parameters[name] if eval(text, {"c": SimpleNamespace(**{name: value})})]  # noqa: S307
    return (name, values) if len(values) < len(parameters[name]) else None
