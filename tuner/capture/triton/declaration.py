"""The declaration of a captured Triton function, by the writer of all adopted kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.kernels.dtypes import UNIT_ROUNDOFF
from tilewright.tuner.adopt.declaration import Declaration, Record
from tilewright.tuner.adopt.phrases import is_zeros, number


@dataclass(frozen=True)
class NamesAndRoles:
    """The names and roles of the arguments, for the writer of declarations."""

    names: list[str]
    roles: Mapping[str, str]
    static_shared_bytes: str = ""

    def role(self, place: int, argument: Record, *, is_answer: bool, elements: int | None) -> str:
        """The argument's role in the function; "inout" where the program's own numbers go up before each launch."""
        del is_answer, elements
        role = self.roles[self.names[place]]
        begins = argument["contents"]["kind"] != "full" or not is_zeros(argument["contents"])
        return "inout" if role == "output" and argument.get("is_partly_written") and begins else role


class TritonDeclaration(Declaration):
    """A declaration with sizes, strides and grid as expressions of the axes, which the record has beside a call's."""

    def _read_arguments(self) -> NamesAndRoles:
        return NamesAndRoles(self._record["names"], self._record["roles"])

    def _found_axes(self) -> dict[str, int]:
        return dict(self._record["axes"])

    def _follows_sizes(self) -> bool:
        arrays = [one for one in self._record["arguments"] if one["kind"] == "tensor"]
        kept = any(one["contents"]["kind"] == "file" for one in arrays)
        return self._record["answer"] is None and not kept

    def _parts(self) -> dict[str, str]:
        return {}

    @property
    def zero_inputs(self) -> list[str]:
        """No names: zeros that the program passes may be meant."""
        return []

    def _values_of(self) -> str:
        return ""

    def _launch(self) -> str:
        grid = ", ".join(self._record["grid_texts"])
        c, p = ("c" if "c." in grid else "_c"), ("p" if "p.shape" in grid else "_p")
        return "\n\n\n".join([f"launch = programs(lambda {c}, {p}: ({grid}))", *self._constexprs()])

    def _constexprs(self) -> list[str]:
        """The lines of the function that tells what else is compiled in; none where nothing is."""
        values, heuristics = self._record["constexpr_texts"], self._record["heuristics"]
        if not values and not heuristics:
            return []
        listed = ", ".join(f'"{name}": {text}' for name, text in values.items())
        lines = ['    """What the program compiles in beside its configurations."""']
        if not heuristics:
            lines.append(f"    return {{{listed}}}")
        else:
            known = self._record["known_texts"]
            others = ", ".join(f'"{name}": {text}' for name, text in known.items())
            lines.append(f"    args = given(KERNEL.arguments, p, {{{others}}})")
            lines += [f'    args["{name}"] = {text}' for name, text in heuristics.items()]
            named = "".join(f', "{name}": args["{name}"]' for name in heuristics)
            lines.append(f"    return {{{listed}{named}}}".replace("{, ", "{"))
        body = "\n".join(lines)
        c, p = ("c" if "c." in body else "_c"), ("p" if "p.shape" in body or ", p," in body else "_p")
        return [f"def constexprs({c}, {p}):\n{body}"]

    @staticmethod
    def _macro(name: str, _values: Sequence[Any]) -> str:
        return name

    def _of_variant(self) -> list[str]:
        named = self._record["constexpr_texts"] or self._record["heuristics"]
        return ["        min_compute_capability=(8, 0),", *["        constexprs=constexprs,"] * bool(named)]

    def _of_layout(self, argument: Record) -> str:
        own = f', triton="{argument["triton"]}"' if argument.get("triton") else ""
        texts = argument.get("stride_texts")
        return own + (f", strides=lambda {self._p(texts)}: ({', '.join(texts)},)" if texts else "")

    @staticmethod
    def _p(texts: list[str]) -> str:
        return "p" if any("p.shape" in one for one in texts) else "_p"

    def _shape(self, argument: Record) -> str:
        return f"({', '.join(argument['shape_texts'])},)" if argument["shape_texts"] else "()"

    def _number(self, argument: Record) -> str:
        text = argument.get("text")
        return f"lambda {self._p([text])}: {text}" if text else f"lambda _p: {number(argument['value'])}"


def dtype_of_problem(arguments: Sequence[Mapping[str, Any]]) -> str:
    """The dtype that problems of the kernel are in: that of the first array with floating-point numbers."""
    dtypes = [one["dtype"] for one in arguments if one["kind"] == "tensor" and one["dtype"] in UNIT_ROUNDOFF]
    return dtypes[0] if dtypes else "float32"
