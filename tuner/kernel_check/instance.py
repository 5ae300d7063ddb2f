"""The instance of a kernel's template that a first declaration names as its entry."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.tuner.cuda_source.passed import UnclearSourceError
from tilewright.tuner.cuda_source.proposed import Values, names_a_block, values_around
from tilewright.tuner.cuda_source.tree import KernelFunction, TemplateParameter
from tilewright.tuner.kernel_check.geometry import THREADS

_WHOLE = re.compile(r"(?:unsigned|signed|int|long|short|char|size_t|auto|u?int(?:8|16|32|64)?(?:_t)?)(?:\s+\w+)*")


@dataclass(frozen=True)
class Instance:
    """A called entry: what stands for each type and number in it, and the parameters that stand for numbers."""

    called: str
    types: dict[str, str]
    numbers: dict[str, str]
    proposed: dict[str, Values]

    @classmethod
    def of(cls, kernel: KernelFunction, given: Sequence[str] | None) -> Instance:
        """The kernel with the given template arguments, else with REAL for types and a macro for each number."""
        declared = kernel.template_parameters
        if given is not None:
            pairs = list(zip(declared, given, strict=False))
            types = {one.name: word for one, word in pairs if one.kind == "typename"}
            numbers = {one.name: word for one, word in pairs if one.kind != "typename"}
            return cls(f"{kernel.entry}<{', '.join(given)}>", types, numbers, {})
        types, numbers, words, proposed = {}, {}, [], {}
        for one in declared:
            if one.kind == "typename":
                types[one.name] = "REAL"
                words.append(_real(one, kernel))
            else:
                macro = f"GIVEN_{one.name}"  # a macro of its own name would change the template's
                proposed[macro] = _values(one, kernel)
                numbers[one.name] = macro
                words.append(macro)
        return cls(f"{kernel.entry}<{', '.join(words)}>" if words else kernel.entry, types, numbers, proposed)

    def read(self, text: str) -> str:
        """The text with each template parameter replaced by what stands for it."""
        words = self.types | self.numbers
        return re.sub(r"\b[A-Za-z_]\w*\b", lambda word: words.get(word[0], word[0]), text)

    @property
    def names(self) -> set[str]:
        """Every name in the entry as it is called."""
        return set(re.findall(r"[A-Za-z_]\w*", self.called))


def _real(one: TemplateParameter, kernel: KernelFunction) -> str:
    if not re.search(rf"\b{one.name}\b", " ".join(kernel.parameters)):
        reason = f"which no parameter has: name it, --entry '{kernel.entry}<…>' with all arguments of the template"
        raise UnclearSourceError(f"line {kernel.line}: {kernel.name} is a template of type {one.name}, {reason}")
    return "REAL"


def _values(one: TemplateParameter, kernel: KernelFunction) -> Values:
    """Default and values of the parameter that stands for a number; raises UnclearSourceError where it is none."""
    if one.kind == "bool":
        return int(one.default in {"true", "1"}), [0, 1]
    if not _WHOLE.fullmatch(one.kind):
        parameter = f"{one.kind} {one.name}".strip()
        reason = "neither a type nor a whole number: write its declaration by hand"
        raise UnclearSourceError(f"line {kernel.line}: {kernel.name} is a template of `{parameter}`, {reason}")
    is_block = names_a_block(one.name)
    own = int(one.default) if one.default.isdigit() else THREADS[1][0] if is_block else 4
    return own, values_around(own, is_block=is_block)


def arguments_in(text: str) -> list[str]:
    """The arguments of a template, from the text after its `<`."""
    parts, depth = [""], 0
    for character in text.strip().removesuffix(">"):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [" ".join(part.split()) for part in parts if part.strip()]
