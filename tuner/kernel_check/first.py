"""A first declaration of a kernel, from its source alone: arguments by their C types, parameters by their macros.

What no source tells is assumed: how tensors are shaped, how the kernel is launched. The declaration says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.kernels.dtypes import HALF, REAL
from tilewright.tuner.kernel_check.parameters import COMMENT, NUMBER, dtype_of, parameters_of, type_of

_LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)")
_FUNCTION = re.compile(r"(template\s*<[^;{}]*?)?__global__[\s\w]*?\b(\w+)\s*\(")
_DEFINITIONS = re.compile(r"^[ \t]*#[ \t]*define\b.*$", re.MULTILINE)
_NUMBER_DEFINED = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?!SHAPE_|REAL)(\w{2,})[ \t]+([1-9]\d*)[ \t]*(?://.*)?$", re.MULTILINE
)
_GUARD = re.compile(r"#[ \t]*ifndef[ \t]+(\w+)[ \t]*\n[ \t]*$")
_TEMPLATE_PARAMETER = re.compile(
    r"(typename|class|bool|(?:(?:unsigned|int|long|short|size_t)\s*)+)\s(\w+)\s*(?:=\s*(\w+))?"
)
_BLOCK = re.compile(r"block|thread", re.IGNORECASE)
_VECTOR = re.compile(r"(float|double|char|uchar|short|ushort|int|uint|longlong|ulonglong)([234])")

MOST_THREADS, FARTHEST = 1024, 4
"""Values are proposed up to a block's most threads, and from a quarter of the source's own to four times as much."""

EXAMPLE_SIZES = (1 << 20, 1024, 128)
"""Of every axis, where there are one, two or three."""


class UnclearSourceError(Exception):
    """No declaration can be made from this source."""


@dataclass(frozen=True)
class FirstDeclaration:
    """The files of a kernel's folder: its declaration, and its source with every parameter's macro inside #ifndef."""

    name: str
    declaration: str
    source: str


def first_declaration(source: str, file_name: str, entry: str | None = None) -> FirstDeclaration:
    """Made from the source, of the function `entry` where it has several; raises UnclearSourceError."""
    text = _DEFINITIONS.sub(" ", _LAUNCH_BOUNDS.sub(" ", COMMENT.sub(" ", source)))
    function, template = _chosen(text, entry)
    entry, types, proposed = _instance(function, template)
    parts = [
        re.sub(rf"\b({'|'.join(types)})\b", "REAL", part) if types else part
        for part in parameters_of(text, function) or ()
    ]
    arguments = [_Argument.of(part, text) for part in parts]
    if not any(argument.role in {"output", "inout"} for argument in arguments):
        raise UnclearSourceError(f"{function} writes nothing: none of its parameters is a pointer to what is not const")
    name = re.sub(r"^[^a-z]+", "", re.sub(r"\W", "", function.lower())) or "kernel"
    declaration = _declaration(name, entry, file_name, arguments, proposed_macros(source) | proposed)
    return FirstDeclaration(name, declaration, _guarded(source))


def _chosen(text: str, entry: str | None) -> tuple[str, str]:
    """The function's name, and its template's parameters as they are written; "" for a function that is no template."""
    functions = {found[2]: found[1] or "" for found in _FUNCTION.finditer(text)}
    names = ", ".join(functions) or "none"
    if entry is None and len(functions) != 1:
        raise UnclearSourceError(f"name one __global__ function; the source has {names}")
    chosen = entry or next(iter(functions))
    if chosen not in functions:
        raise UnclearSourceError(f"there is no __global__ function {chosen!r}; the source has {names}")
    return chosen, functions[chosen].partition("<")[2].rpartition(">")[0]


def _instance(function: str, template: str) -> tuple[str, list[str], dict[str, tuple[int, list[int]]]]:
    """The entry, with REAL for types and macros for numbers; those types' names; those macros' defaults and values."""
    words, types, proposed = [], [], {}
    for part in filter(None, map(str.strip, template.split(","))):
        found = _TEMPLATE_PARAMETER.fullmatch(part)
        if found is None:
            raise UnclearSourceError(
                f"{function} is a template of `{part}`, neither a type nor a number: write its declaration by hand"
            )
        kind, name, default = found.groups()
        if kind in {"typename", "class"}:
            types.append(name)
            words.append("REAL")
            continue
        macro, is_block = f"GIVEN_{name}", names_a_block(name)  # another name: a macro would change the template's own
        own = int(default) if (default or "").isdigit() else 256 if is_block else 4
        values = (int(default in {"true", "1"}), [0, 1]) if kind == "bool" else None
        proposed[macro] = values or (own, values_around(own, is_block=is_block))
        words.append(macro)
    return (f"{function}<{', '.join(words)}>" if words else function), types, proposed


@dataclass(frozen=True)
class _Argument:
    """A parameter of the function. `dtype` None is REAL; `components` of a vector type; no `role`: a number."""

    name: str
    role: str
    dtype: str | None
    components: int = 1

    @classmethod
    def of(cls, part: str, text: str) -> _Argument:
        """By the parameter as it is written; `text` is what uses it."""
        kind, is_pointer = type_of(part)
        vector = _VECTOR.fullmatch(kind)
        scalar = (
            re.sub("^u(?=[cs]|int|long)", "unsigned ", vector[1]).replace("longlong", "long long") if vector else kind
        )
        if kind == "cudaTextureObject_t":
            raise UnclearSourceError(
                f"`{part}` is a texture, whose kind no source tells: write the declaration by hand, with Tensor(…, "
                "texture=Texture(…)) for it (docs/adding-a-kernel.md, Textures)"
            )
        if scalar != "REAL" and not NUMBER.fullmatch(scalar):
            raise UnclearSourceError(
                f"`{part}` is of no type that can be passed: numbers, and pointers to numbers and vectors"
            )
        name = re.findall(r"\w+", part.partition("[")[0])[-1]
        role = _role(part, name, text) if is_pointer else ""
        return cls(name, role, None if scalar == "REAL" else dtype_of(scalar), int(vector[2]) if vector else 1)

    def declared(self, sizes: list[str], dtype: str) -> str:
        """As the declaration has it, of a kernel with these axes that computes in that dtype."""
        own = "" if self.dtype in {None, dtype} else f', dtype="{self.dtype}"'
        if self.role:
            shape = [*(f'"{axis}"' for axis in sizes), *([str(self.components)] if self.components > 1 else [])]
            return f'Tensor("{self.name}", "{self.role}", shape_of({", ".join(shape)}){own}),'
        axis = self.name.lower()
        value = f'lambda p: p.shape["{axis}"]' if axis in sizes else "lambda _p: 1"
        return f'Scalar("{self.name}", {value}{own}),'

    @property
    def is_size(self) -> bool:
        """Whether it is an integer passed by itself, which is taken for the size of an axis."""
        return not self.role and self.dtype not in {None, *REAL}


def _role(part: str, name: str, text: str) -> str:
    """An output is only assigned to; what else is written is restored before each launch, which is right for both."""
    if re.search(r"\bconst\b", part.partition("*")[0]):
        return "input"
    uses = len(re.findall(rf"\b{name}\b", text)) - 1  # one is the parameter itself
    assigned = len(re.findall(rf"\b{name}\s*\[[^\]]*\]\s*=(?!=)", text))
    return "output" if assigned == uses > 0 else "inout"


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
    name: str, entry: str, file_name: str, arguments: list[_Argument], tuned: dict[str, tuple[int, list[int]]]
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
            ),
        ),
    ),
    example_shape={{{shape}}},
)
'''
