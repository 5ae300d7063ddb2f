"""The declaration of an intercepted call, as text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.kernels.dtypes import UNIT_ROUNDOFF
from tilewright.kernels.reference import TOLERANCE
from tilewright.tuner.adopt.phrases import (
    BY_ANSWER,
    BY_COMPUTED,
    BY_PARTS,
    BY_VERIFY,
    FAULT,
    FUNCTION,
    REFERENCE,
    RESULTS,
    answer_file,
    is_zeros,
    made,
    number,
    quoted,
)
from tilewright.tuner.adopt.sizes import axes_of, axis_at, is_for_any_size, shape_in_axes
from tilewright.tuner.adopt.source import Arguments, macro_of, origin_of

Record = Mapping[str, Any]


class Declaration:
    """The text of one declaration; `notes` are what its user should know."""

    def __init__(self, record: Record, name: str, source: str) -> None:
        self._record, self._name, self._source = record, name, source
        self._arguments = self._read_arguments()
        self._axes = self._found_axes()
        self._posed: Mapping[str, Sequence[int]] = record.get("posed", {})
        self.is_for_any_size = self._follows_sizes()
        self.parts = self._parts()
        self._roles = [self._role(place, one) for place, one in enumerate(record["arguments"])]
        dtypes = {one["dtype"] for one in record["arguments"] if one["kind"] == "tensor"} & set(UNIT_ROUNDOFF)
        self._dtypes = record.get("dtypes") or ["float64" if dtypes == {"float64"} else "float32"]
        self._dtype = self._dtypes[0]

    @property
    def text(self) -> str:
        """The whole declaration as text."""
        inputs, answer = self._inputs(), self._answer()
        declared = [*self._entry(), *self._lists(), *self._functions(inputs, answer)]
        parts = [self._values_of(), self._launch(), inputs, *answer, self._fault()]
        body = "\n\n\n".join(part for part in parts if part)
        kernel = f'KERNEL = Kernel(\n    name="{self._name}",\n' + "".join(f"    {line}\n" for line in declared) + ")\n"
        return f"{self._head(body + kernel)}\n\n{body}\n\n\n{kernel}"

    def _read_arguments(self) -> Any:
        return Arguments(self._record)

    def _found_axes(self) -> dict[str, int]:
        return axes_of(self._record)

    def _follows_sizes(self) -> bool:
        return is_for_any_size(self._record, self._axes)

    def _role(self, place: int, argument: Record) -> str:
        if argument["kind"] == "scalar":
            return ""
        if "texture" in argument:
            return "input"
        if self._arguments.names[place] in self.parts:
            return "output"
        answer = self._record["answer"]
        is_answer = answer is not None and place < len(answer) and answer[place] is not None
        elements = self._elements if self._has_numbers else None
        return str(self._arguments.role(place, argument, is_answer=is_answer, elements=elements))

    @property
    def _has_numbers(self) -> bool:
        return any(isinstance(part["size"], int) and part["size"] > 1 for part in self._record["grid"])

    @property
    def _elements(self) -> int:
        return math.prod(self._axes.values())

    def _head(self, body: str) -> str:
        record = self._record
        imports = [one for one in record["imports"] if one not in {"import math", "import numpy as np"}]
        uses_numpy = "np." in body or "import numpy as np" in record["imports"]
        uses_math = "math." in body or "import math" in record["imports"]
        own = ["import math"] * uses_math + ["from pathlib import Path"] * ("FOLDER" in body)
        own += ["import numpy as np"] * uses_numpy
        names = ["Kernel", *[one for one in ("Launch", "Named", "Scalar", "Tensor", "Texture") if f"{one}(" in body]]
        names += ["Variant", *[one for one in ("programs", "shape_of") if f"{one}(" in body]]
        space = ["Constraint"] * ("Constraint(" in body) + ["choice"] * ("choice(" in body)
        lines = [f'"""{self._name}: taken over from {origin_of(record)}."""', "", *own, *imports]
        lines += [f"from tilewright.kernels.kernel import {', '.join(names)}"]
        lines += [f"from tilewright.kernels.space import {', '.join(space)}"] if space else []
        own_of_triton = [one for one in ("given", "next_power_of_2") if f"{one}(" in body]
        lines += [f"from tilewright.kernels.triton import {', '.join(own_of_triton)}"] if own_of_triton else []
        lines += ["", "FOLDER = Path(__file__).parent"] if "FOLDER" in body else []
        for text in record["definitions"]:
            lines += ["", "" if text.startswith("def ") else None, text]
        return "\n".join(line for line in lines if line is not None)

    def _values_of(self) -> str:
        if self._record["view"] == "c" and "values_of(" not in str(self._record):
            return ""
        items = []
        for name, values in self._record["parameters"].items():
            macro = macro_of(name, values)
            items.append(f'"{name}": c.{macro}' if macro == name else f'"{name}": {tuple(values)!r}[c.{macro}]')
        return FUNCTION.format("values_of(c)", "The parameters with the values of the script.", ", ".join(items))

    def _launch(self) -> str:
        grid = ", ".join(self._grid(place) for place in range(3))
        block = ", ".join(map(str, self._record["block"]))
        shared = f", {self._record['shared']}" if self._record["shared"] else ""
        text = "By the problem size, grid divisors and block sizes found there."
        return f'def launch(c, p):\n    """{text}"""\n    return Launch(({grid}), ({block}){shared})'

    def _grid(self, place: int) -> str:
        part = self._record["grid"][place]
        axis, size = axis_at(place, self._record, self._axes), part["size"]
        if size == 1:
            return "1"
        text = f'p.shape["{axis}"]' if axis else str(size)
        if not part["divisors"]:
            return text
        product = " * ".join(part["divisors"])
        product = f"({product})" if len(part["divisors"]) > 1 else product
        if all(re.fullmatch(r"c\.\w+|\d+|int\(.*\)", one) for one in part["divisors"]):
            return f"-(-{text} // {product})"
        return f"math.ceil({text} / {product})"

    def _inputs(self) -> str:
        lines = []
        for name, role, one, _ in self._tensors():
            contents = made(name, one["contents"], self._shape(one))
            if role != "output" and contents is not None and name not in self.zero_inputs:
                lines.append(f'        "{name}": {contents},')
        if not lines:
            return ""
        uses = "\n".join(lines)
        p, generator = ("p" if "p.shape" in uses else "_p"), ("generator" if "generator." in uses else "_generator")
        doc = '"""Contents such as those found there."""'
        return f"def inputs({p}, {generator}):\n    {doc}\n    return {{\n{uses}\n    }}"

    def _answer(self) -> list[str]:
        """The lines of `reference` and `check`; none where nobody says what is right. Without `atol` ours counts."""
        record, names = self._record, self._arguments.names
        tolerance = TOLERANCE.get(self._dtype, 1e-5)
        if not self._has_answer:
            parts = ", ".join(map(quoted, self.parts))
            return [BY_PARTS.format(parts=parts, tolerance=tolerance)] if parts else []
        if record["atol"] is None:
            return [self._results()]
        files = [*(record["answer"] or ()), *[None] * len(names)][: len(names)]
        loads = [f'np.load(FOLDER / "{answer_file(name)}")' if file else "None"
                 for name, file in zip(names, files, strict=False)]  # fmt: skip
        reference = REFERENCE.format(answers=", ".join(loads))
        listed = ", ".join(f'"{name}"' for name in names)
        if record["verify"]:
            atol = f", atol={record['atol']!r}" if record["verify_takes_atol"] else ""
            answer = "answer" if record["answer"] is not None else "None"
            call = f"{record['verify']}({answer}, results{atol})"
            return [reference, BY_VERIFY.format(names=listed, call=call)]
        phrase = BY_COMPUTED if record.get("answer_run") else BY_ANSWER
        return [reference, phrase.format(names=listed, atol=record["atol"], tolerance=tolerance)]

    def _results(self) -> str:
        """A reference of the outputs by name: what the program computed, or left as it was."""
        lines = []
        for name, role, one, file in self._tensors():
            value = (
                f'np.load(FOLDER / "{answer_file(name)}")' if file else made(name, one["contents"], self._shape(one))
            )
            if role != "input":
                lines.append(f'        "{name}": {value},')
        return RESULTS.format(results="\n".join(lines))

    @property
    def _is_for_all(self) -> bool:
        """Whether the script has an answer for every shape."""
        return self.is_for_any_size and not self._posed

    def _fault(self) -> str:
        """The declaration's fault, which names the sizes that are admitted; "" where all are."""
        if self._is_for_all:
            return ""
        sizes: dict[str, tuple[int, ...]] = {}
        if not self.is_for_any_size:
            sizes = {axis: (size,) for axis, size in self._axes.items()}
        sizes |= {name: tuple(values) for name, values in self._posed.items()}
        return FAULT.format(sizes=", ".join(f"{quoted(axis)}: {admitted}" for axis, admitted in sizes.items()))

    def _entry(self) -> list[str]:
        entry = self._record["kernel_name"]
        return ([] if entry == self._name else [f"entry={entry!r},"]) + (
            [f"dtypes=({', '.join(map(quoted, self._dtypes))},),"] if self._dtypes != ["float32"] else []
        )

    def _lists(self) -> list[str]:
        record = self._record
        lines = ["arguments=("]
        for place, (name, one) in enumerate(zip(self._arguments.names, record["arguments"], strict=True)):
            is_own = one.get("has_own_dtype", one["dtype"] != self._dtype or len(self._dtypes) > 1)
            own = "" if not is_own else f', dtype="{one["dtype"]}"'
            if one["kind"] == "scalar":
                lines.append(f'    Scalar("{name}", {self._number(one)}{own}),')
            else:
                if "texture" in one:
                    how = ", ".join(f"{key}={value!r}" for key, value in one["texture"].items())
                    own += f", texture=Texture({how})"
                own += f", written=lambda c, p: {self.parts[name]}" if name in self.parts else ""
                own += self._of_layout(one)
                lines.append(f'    Tensor("{name}", "{self._roles[place]}", {self._shape_function(one)}{own}),')
        lines += ["),", "variants=(", "    Variant(", f'        "adopted", "{self._source}", launch,', "        ("]
        for name, values in record["parameters"].items():
            macro = self._macro(name, values)
            is_own = macro == name
            default = record["default"][name] if is_own else values.index(record["default"][name])
            listed = ", ".join(map(str, values if is_own else range(len(values))))
            doc = "" if is_own else f", doc={' '.join(map(str, values))!r}"
            lines.append(f'            choice("{macro}", {listed}, default={default}{doc}),')
        lines.append("        ),")
        if record["restrictions"]:
            lines.append("        (")
            for one in record["restrictions"]:
                p = "p" if "p.shape" in one["expression"] else "_p"
                lines.append(f"            Constraint({one['name']!r}, lambda c, {p}, _d: {one['expression']}),")
            lines.append("        ),")
        shared = self._arguments.static_shared_bytes
        if shared:
            p = "p" if "p.shape" in shared or "p.item_bytes" in shared else "_p"
            lines.append(f"        static_shared_bytes=lambda c, {p}: {shared},")
        return [*lines, *self._of_variant(), "    ),", "),"]

    @staticmethod
    def _macro(name: str, values: Sequence[Any]) -> str:
        return macro_of(name, values)

    def _of_layout(self, _argument: Record) -> str:
        """What a tensor's declaration says beyond its name, shape and role: nothing for a dense one."""
        return ""

    def _of_variant(self) -> list[str]:
        """The variant's further lines in the declaration: none for Kernel Tuner's."""
        return []

    @property
    def _has_answer(self) -> bool:
        """Whether the script says what is right."""
        return self._record["answer"] is not None or self._record["verify"] is not None

    @property
    def zero_inputs(self) -> list[str]:
        """Inputs of zeros, with which a wrong result would look right where only results are compared."""
        if self._has_answer:
            return []
        return [
            name
            for name, role, one, _ in self._tensors()
            if role == "input" and is_zeros(one["contents"]) and one["dtype"] in UNIT_ROUNDOFF
        ]

    def _parts(self) -> dict[str, str]:
        """Arrays of one number for each block, where the script gives no answer and blocks differ in size.

        Each with how many a configuration writes, as an expression.
        """
        texts = [
            str(text) for one in self._record["grid"] if one["size"] != 1 for text in (one["size"], *one["divisors"])
        ]
        read = {name for text in texts for name in re.findall(r"\bc\.(\w+)", text)}
        several = {name for name, values in self._record["parameters"].items() if len(values) > 1}
        is_fixed = not read & several and not any("(c)" in text for text in texts)
        if self._has_answer or is_fixed:
            return {}
        axes = {name: self._arguments.axes_of_blocks(name) for name in self._arguments.names}
        return {
            name: " * ".join(f"launch(c, p).grid[{'xyz'.index(axis)}]" for axis in along)
            for name, along in axes.items()
            if along
        }

    @property
    def knows_shared_bytes(self) -> bool:
        """Whether the static shared memory of the source could be told."""
        return self._arguments.static_shared_bytes is not None and not self._arguments.has_untold_shared

    def _functions(self, inputs: str, answer: Sequence[str]) -> list[str]:
        lines = (["inputs=inputs,"] if inputs else []) + self._judges(answer)
        lines += [] if self._is_for_all else ["fault=fault,"]
        lines += [f'arithmetic="{self._record["arithmetic"]}",'] if self._record.get("arithmetic") else []
        flags = self._record["flags"]
        lines += [f"flags=({', '.join(map(repr, flags))},),"] if flags else []
        shape = self._axes | {name: self._record["default"][name] for name in self._posed}
        sizes = ", ".join(f'"{axis}": {size}' for axis, size in shape.items())
        return [*lines, f"example_shape={{{sizes}}},"]

    @staticmethod
    def _judges(answer: Sequence[str]) -> list[str]:
        names = (re.match(r"def (\w+)", one) for one in answer)
        return [f"{name[1]}={name[1]}," for name in names if name]

    def _tensors(self) -> list[tuple[str, str, Record, str | None]]:
        """For each tensor: name, role, description, and the file of its right values."""
        arguments = self._record["arguments"]
        answers = [*(self._record["answer"] or ()), *(None for _ in arguments)]
        listed = zip(self._arguments.names, self._roles, arguments, answers, strict=False)
        return [(name, role, one, file) for name, role, one, file in listed if one["kind"] == "tensor"]

    def files(self) -> dict[str, str]:
        """The name in the kernel's folder of each file of arrays, by the file's own."""
        kept = {
            one["contents"]["file"]: f"{name}.npy"
            for name, role, one, _ in self._tensors()
            if one["contents"]["kind"] == "file" and role != "output"
        }
        answers = zip(self._arguments.names, self._record["answer"] or (), strict=False)
        return kept | {file: answer_file(name) for name, file in answers if file}

    def _number(self, argument: Record) -> str:
        value = argument["value"]
        axis = next((axis for axis, size in self._axes.items() if size == value and self.is_for_any_size), None)
        return f'lambda p: p.shape["{axis}"]' if axis else f"lambda _p: {number(value)}"

    def _shape(self, argument: Record) -> str:
        shape = argument["shape"]
        followed = shape_in_axes(shape, self._axes) if self.is_for_any_size else None
        return f"({', '.join([*(followed or map(str, shape)), ''])})".replace(", )", ",)")

    def _shape_function(self, argument: Record) -> str:
        text = self._shape(argument)
        if "p.shape" not in text:
            return f"shape_of({', '.join(map(str, argument['shape']))})"
        axes = re.fullmatch(r'\(((?:p\.shape\["\w+"\],? ?)+)\)', text)
        named = re.findall(r'"\w+"', axes[1]) if axes else []
        return f"shape_of({', '.join(named)})" if named else f"lambda p: {text}"
