"""Captured launches of a Triton function as the folder of a kernel."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import C_TYPES, is_integer
from tilewright.kernels.errors import BrokenDeclarationError
from tilewright.kernels.fields.axes import Layout
from tilewright.kernels.own import own_kernel
from tilewright.kernels.triton import ELEMENTS
from tilewright.tuner.adopt.adopt import Adopted
from tilewright.tuner.adopt.script.contents import described
from tilewright.tuner.capture.capture import Capture, CaptureError
from tilewright.tuner.capture.triton.asserted import asserted
from tilewright.tuner.capture.triton.contents import contents_of
from tilewright.tuner.capture.triton.declaration import TritonDeclaration, dtype_of_problem
from tilewright.tuner.capture.triton.heuristics import arithmetic_of, heuristic_text
from tilewright.tuner.capture.triton.launches import Launches, Row
from tilewright.tuner.capture.triton.roles import roles_of
from tilewright.tuner.capture.triton.sizes import Column
from tilewright.tuner.capture.triton.space import constant_text, restrictions, starts
from tilewright.tuner.cuda_source.proposed import unique_name

STARTS = "starts.json"
"""The program's own configurations, for `tilewright tune --start`."""

OF_DEFAULT = "right is what the configuration computes that the program launched; inputs are drawn like those captured"
BY_ARRAY = "of a descriptor made on the host, pass the array and make it in the function (tl.make_tensor_descriptor)"
_OF_A_BYTE = {name: triton for triton, name in ELEMENTS.items()}


def adopted_triton(capture: Capture, row: Row, run: Path, made: Path, others: Sequence[Path]) -> Adopted:
    """The folder in `made`; `run` is for files. Raises CaptureError."""
    record = _Record(capture, row, run).record()
    folder = made / unique_name(row["name"], set(catalogue().by_name))
    source = f"{folder.name}.py"
    declaration = TritonDeclaration(record, folder.name, source)
    folder.mkdir()
    (folder / source).write_text(row["source"], encoding="utf-8")
    (folder / "declaration.py").write_text(declaration.text, encoding="utf-8")
    rows = [{"variant": "adopted", "configuration": one} for one in record["starts"]]
    (folder / STARTS).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for file, kept_as in declaration.files().items():
        shutil.copy(run / file, folder / kept_as)
    try:
        own_kernel(folder, others)
    except BrokenDeclarationError as error:
        raise CaptureError(f"{row['name']} cannot be adopted: its declaration is wrong: {error.reason}") from error
    return Adopted(1, row["name"], folder, "", tuple(record["notes"]))


class _Record:
    """The record of one launch, for the writer of declarations."""

    def __init__(self, capture: Capture, row: Row, run: Path) -> None:
        self._folder, self._run, self._row, self._name = capture.folder, run, row, row["name"]
        self._check()
        self._launches = Launches(row, capture.launches)
        self._roles = roles_of(row["source"], row["entry"])
        self._notes: list[str] = []

    def _refusal(self, reason: str) -> CaptureError:
        return CaptureError(f"{self._name} cannot be adopted: {reason}")

    def _check(self) -> None:
        facts = self._row["triton"]
        if self._row["source"] is None:
            raise self._refusal(f"its source is no file of its own: {facts['unclear']}")
        if self._row["launch_options"].get("num_ctas", 1) != 1:
            raise self._refusal("it is launched in clusters of programs (num_ctas), which are not supported")
        for name, one in zip(facts["passed"], self._row["arguments"], strict=True):
            kind, dtype = one["kind"], one.get("dtype")
            if kind not in {"tensor", "scalar", "none"}:
                raise self._refusal(f"{name} is a {kind}: arrays, numbers and None are taken over; {BY_ARRAY}")
            if kind == "tensor" and dtype not in C_TYPES and dtype not in _OF_A_BYTE:
                raise self._refusal(f"{name} is of {dtype}, which is not supported")
            if kind == "tensor" and not math.prod(one["shape"]):
                raise self._refusal(f"{name} has no elements")

    def record(self) -> dict[str, Any]:
        """The record as of an intercepted call, with sizes, grid and constexprs as expressions; raises CaptureError."""
        launches, configs = self._launches, self._row["triton"].get("configs") or ()
        found = [self._argument(name) for name in launches.passed]
        arguments, answer = [argument for argument, _ in found], [file for _, file in found]
        constants = self._constants()
        dtypes = [one["dtype"] for one in arguments if one["kind"] == "tensor"]
        own = starts(launches.parameters, configs)
        claimed = asserted(self._row["source"], self._row["entry"], constants["known_texts"])
        self._note(keeps=any(answer), has_starts=len(own) > 1)
        return {
            "kernel_name": self._row["entry"],
            "origin": f"{self._name}, which a program launches by Triton",
            "names": [*launches.passed],
            "roles": self._roles,
            "axes": {axis: column[0] for axis, column in launches.sizes.axes.items()},
            "arguments": arguments,
            "answer": answer if any(answer) else None,
            "verify": None,
            "atol": None,
            "parameters": {one.name: [one.number(value) for value in one.values] for one in launches.parameters},
            "default": {one.name: one.number(one.default) for one in launches.parameters},
            "restrictions": [*restrictions(launches.parameters, configs), *claimed],
            "dtypes": [dtype_of_problem(arguments)],
            "arithmetic": arithmetic_of(self._row["source"], dtypes, self._row["constexprs"]),
            "grid": [],
            "grid_texts": self._grid(),
            "block": [],
            "shared": None,
            "flags": [],
            "constants": {},
            "imports": [],
            "definitions": [],
            "view": "c",
            "notes": self._notes,
            "starts": own,
            **constants,
        }

    def _note(self, *, keeps: bool, has_starts: bool) -> None:
        launches, sizes = self._launches, self._launches.sizes
        if not keeps:
            self._notes.append(OF_DEFAULT)
        values = (f"{one.triton_name}: {', '.join(map(str, one.values))}" for one in launches.parameters)
        self._notes.append(f"parameters, some of their values proposed: {'; '.join(values)}")
        if any("maxnreg" in one for one in self._row["triton"].get("configs") or ()):
            self._notes.append("maxnreg is no parameter: the compiler decides on registers")
        if has_starts:
            self._notes.append(f"the program's own configurations are in {STARTS}: give them to `tune` by --start")
        columns = list(sizes.axes.values())
        equal = [axis for axis, column in sizes.axes.items() if columns.count(column) > 1]
        fixed = [axis for axis, column in sizes.axes.items() if len(set(column)) == 1 and axis not in equal]
        if equal:
            self._notes.append(f"{', '.join(equal)} were equal in every launch: which array has which is a guess")
        if fixed:
            self._notes.append(f"{', '.join(fixed)} had one size: for others, look at the shapes in declaration.py")
        if launches.others:
            self._notes.append(f"without {launches.others} kinds of launches of other types or other constexprs")

    def _grid(self) -> list[str]:
        texts = self._launches.grid()
        for along, text in zip("xyz", texts, strict=True):
            if text is None:
                reason = f"nothing says how its grid along {along} follows from sizes and constexprs"
                raise self._refusal(f"{reason}; declare it by hand (docs/triton.md)")
        return [text for text in texts if text is not None]

    def _constants(self) -> dict[str, dict[str, str]]:
        """Expressions of all that is compiled in beside parameters."""
        launches, found = self._launches, self._row["triton"]["heuristics"]
        by_name = {one.triton_name: one for one in launches.parameters}
        values = {name: "None" for name in self._row["triton"]["passed"] if name not in launches.passed}
        heuristics = {}
        for name, value in self._row["constexprs"].items():
            text = heuristic_text(found[name]) if name in found else None
            if text is not None:
                heuristics[name] = text
            elif name in by_name:
                if by_name[name].name != name or not by_name[name].is_plain:
                    values[name] = by_name[name].expression
            elif isinstance(value, Mapping) and "unknown" in value:
                raise self._refusal(f"its constexpr {name} is a {value['unknown']}, which no declaration can say")
            else:
                values[name] = launches.derived.get(name) or constant_text(value)
                if name in found:
                    self._notes.append(f"{name} stays {value!r}: its heuristic cannot be told from its source")
        known = values | {one.triton_name: one.expression for one in launches.parameters}
        return {"constexpr_texts": values, "heuristics": heuristics, "known_texts": known}

    def _argument(self, name: str) -> tuple[dict[str, Any], str | None]:
        """The argument as a call has it, and the file of what was right in it after the launch."""
        launches, one = self._launches, self._launches.argument(name)
        if one["kind"] == "scalar":
            argument = {"kind": "scalar", "dtype": one["dtype"], "value": one["value"], "has_own_dtype": True}
            text = launches.sizes.expression(launches.number(name)) if is_integer(one["dtype"]) else None
            return argument | ({} if text is None else {"text": text}), None
        triton = _OF_A_BYTE.get(one["dtype"], "")
        dtype = "uint8" if triton else one["dtype"]
        argument = {"kind": "tensor", "dtype": dtype, "triton": triton, "shape": one["shape"]}
        argument["shape_texts"] = self._texts(name, launches.columns(name, "shape"))
        if not launches.is_dense(name):
            argument["stride_texts"] = self._texts(name, launches.columns(name, "strides"))
        contents, right = self._contents(name, one, dtype)
        return argument | {"contents": contents}, right

    def _texts(self, name: str, columns: Sequence[Column]) -> list[str]:
        texts = []
        for column in columns:
            text = self._launches.sizes.expression(column)
            if text is None:
                seen = ", ".join(map(str, sorted(set(column))[:8]))
                raise self._refusal(f"a size or stride of {name} does not follow from the others: it was {seen}")
            texts.append(text)
        return texts

    def _contents(self, name: str, one: Row, dtype: str) -> tuple[dict[str, Any], str | None]:
        """A recipe for the array's contents before the launch, and the file of those after it, if recorded."""
        place = self._launches.passed[name]
        layout = Layout(tuple(one["shape"]), tuple(one["strides"]))
        file = self._run / f"argument{place}.npy"
        if one.get("before"):
            before = _numbers(self._folder / one["before"], dtype, layout)
            contents = described(before, as_they_are=True, file=file, limit_bytes=before.nbytes)
            if not one.get("after"):
                return contents, None
            np.save(self._run / f"answer{place}.npy", _numbers(self._folder / one["after"], dtype, layout))
            return contents, f"answer{place}.npy"
        sample = self._row["samples"][place]
        if not sample or self._roles[name] == "output":
            return {"kind": "normal", "mean": 0, "deviation": 1}, None
        numbers = np.load(self._folder / sample)
        contents = contents_of(numbers, layout.elements, file)
        if contents["kind"] == "file" and len(layout.shape) != 1:
            low, high = int(numbers.min()), int(numbers.max())
            return {"kind": "integers", "low": low, "high": high, "dtype": numbers.dtype.name}, None
        return contents, None


def _numbers(path: Path, dtype: str, layout: Layout) -> Any:
    """The array's elements by its own shape; bfloat16 as float32, which a file can have."""
    try:
        memory = np.load(path).view(dtype)
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path} cannot be read: {error}") from error
    numbers = np.array(layout.view(memory))
    return numbers.astype(np.float32) if dtype == "bfloat16" else numbers
