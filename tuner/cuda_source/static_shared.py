"""The static shared memory of a function, as an expression of its parameters."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from tilewright.kernels.dtypes import ITEM_BYTES
from tilewright.tuner.cuda_source.c_types import NUMBER, dtype_of

_DECLARED = re.compile(r"(\bextern\s+)?\b__shared__\s+(?:volatile\s+)?([\w ]+?)\s+(\w+)\s*((?:\[[^\]]*\]\s*)*);")
_VECTOR = re.compile(r"(float|double|int|uint)([234])")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\S[^\n]*)$", re.MULTILINE)
_CONDITION = re.compile(r"\(?\s*(\w+)\s*(==|!=|<=?|>=?)\s*(\d+)\s*\)?")
_WORD = re.compile(r"[A-Za-z_]\w*")
MOST_MACROS = 16
ALIGNMENT = 16


def static_shared_bytes(body: str, source: str, parameters: Collection[str]) -> str | None:
    """Bytes as a Python expression of `c`, or an upper bound where a condition is not simple.

    "" where the function has none, None where a size or a type cannot be told. `body` is what stands between the
    function's braces, `source` what defines its macros, both without comments.
    """
    defined = list(_MACRO.finditer(source))
    names = [found[1] for found in defined]
    macros = {found[1]: found[2] for found in defined if names.count(found[1]) == 1 and found[1] not in parameters}
    parts, sizes = [], set()
    for kind, dimensions, condition in _declarations(body, parameters):
        item_bytes = _bytes_of(kind)
        factors = [_resolved(one, macros, parameters) for one in dimensions]
        if item_bytes is None or None in factors:
            return None
        sizes.add(item_bytes)
        parts.append(" * ".join([str(item_bytes), *(f"({factor})" for factor in factors), *condition]))
    if len(sizes) > 1:  # what follows a smaller type may begin later
        parts = [f"-(-{part} // {ALIGNMENT}) * {ALIGNMENT}" for part in parts]
    return " + ".join(parts)


def _declarations(body: str, parameters: Collection[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """The C type, the dimensions, and as factors the conditions that it stands under."""
    conditions: list[str] = []
    for line in re.split(r"(?=^[ \t]*#)|(?<=\n)", body, flags=re.MULTILINE):
        directive = re.match(r"[ \t]*#[ \t]*(if\w*|elif|else|endif)\b[ \t]*(.*)", line)
        if directive is None:
            for found in _DECLARED.finditer(line):
                if not found[1]:
                    yield found[2], re.findall(r"\[([^\]]*)\]", found[4]), [one for one in conditions if one]
        elif directive[1].startswith("if"):
            conditions.append(_condition(directive, parameters))
        elif directive[1] == "endif":
            conditions = conditions[:-1]
        elif conditions:
            before = conditions.pop()
            conditions.append(f"(1 - {before})" if directive[1] == "else" and before else "")


def _condition(directive: re.Match[str], parameters: Collection[str]) -> str:
    """A factor that is 1 where the condition holds; "" where it cannot be told."""
    simple = _CONDITION.fullmatch(directive[2].strip())
    if directive[1] != "if" or simple is None or simple[1] not in parameters:
        return ""
    return f"(c.{simple[1]} {simple[2]} {simple[3]})"


def _bytes_of(kind: str) -> int | None:
    vector = _VECTOR.fullmatch(kind)
    scalar = vector[1].replace("uint", "unsigned int") if vector else kind
    if not NUMBER.fullmatch(scalar):
        return None
    return ITEM_BYTES[dtype_of(scalar)] * (int(vector[2]) if vector else 1)


def _resolved(text: str, macros: dict[str, str], parameters: Collection[str]) -> str | None:
    """A dimension in terms of parameters and numbers; None where there are other names, or more than arithmetic."""
    for _ in range(MOST_MACROS):
        resolved = _WORD.sub(lambda word: f"({macros[word[0]]})" if word[0] in macros else word[0], text)
        if resolved == text:
            break
        text = resolved
    if not re.fullmatch(r"[\w\s+\-*/%()]+", text) or re.search(r"\d[a-zA-Z]|\*\*", text):
        return None
    if any(word not in parameters for word in _WORD.findall(text)):
        return None
    return _WORD.sub(r"c.\g<0>", " ".join(text.split())).replace("/", "//")
