"""A variant whose source is a Python file with a Triton function: read here as text, and never run."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilewright.kernels.dtypes import is_integer
from tilewright.kernels.fields.arguments import Argument, Scalar, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Values
from tilewright.kernels.variant import Launch, Variant, no_constexprs, no_workspace

OPTIONS = ("num_warps", "num_stages", "maxnreg")
"""Parameters that Triton's compiler takes; every other one is a constexpr of the function."""

WARPS = 4
"""Warps of a program where `num_warps` is no parameter: Triton's own default."""

TYPES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
}
"""Triton's name of a dtype."""

ELEMENTS = {"i1": "bool", "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2"}
"""Triton's names of types of one byte that NumPy has not, handled as uint8, and PyTorch's."""

DIVISOR = 16
"""Triton compiles a variant of its own for integers, and for addresses in bytes, that are multiples of this."""


def is_triton(source: str) -> bool:
    """Whether the file is a Triton source, by its name."""
    return source.endswith(".py")


def programs(grid: Callable[[Values, Problem], Sequence[int]]) -> Callable[[Values, Problem], Launch]:
    """A launch of so many programs, up to three numbers; a program has `num_warps` warps."""

    def launch(values: Values, problem: Problem) -> Launch:
        x, y, z, *_ = (*grid(values, problem), 1, 1)
        return Launch((x, y, z), (32 * values.get("num_warps", WARPS), 1, 1))

    return launch


class Named(str):
    """A type as Triton names it, such as fp16, or a function of the source: a constexpr that is not text."""

    __slots__ = ()


def constants_of(constexprs: Mapping[str, object]) -> dict[str, str]:
    """The values of constexprs as definitions have them: as Python writes them, and names as they are."""
    return {name: str(value) if isinstance(value, Named) else repr(value) for name, value in constexprs.items()}


def next_power_of_2(number: int) -> int:
    """The least power of two that is not less than the number, as `triton.next_power_of_2`."""
    return 1 << (int(number) - 1).bit_length()


@dataclass(frozen=True)
class GivenArray:
    """An array of a launch, with the attributes that a function under `triton.heuristics` may read."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def size(self, axis: int | None = None) -> tuple[int, ...] | int:
        """The size of one axis, or of all."""
        return self.shape if axis is None else self.shape[axis]

    def stride(self, axis: int | None = None) -> tuple[int, ...] | int:
        """The stride of one axis, or of all."""
        return self.strides if axis is None else self.strides[axis]

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def given(arguments: Sequence[Argument], problem: Problem, others: Mapping[str, object]) -> dict[str, Any]:
    """The arguments and constexprs by name, as `triton.heuristics` hands them to its functions."""
    named: dict[str, Any] = dict(others)
    for argument in arguments:
        if isinstance(argument, Tensor):
            layout = argument.layout(problem)
            named[argument.name] = GivenArray(layout.shape, layout.strides)
        else:
            named[argument.name] = argument.number(problem)
    return named


@dataclass(frozen=True)
class TritonFunction:
    """The parameters of a Triton function by name, in order: those that are passed, and the constexprs."""

    passed: tuple[str, ...]
    constexprs: tuple[str, ...]
    required: frozenset[str]  # of the constexprs: those without a default


@lru_cache(maxsize=64)
def function_of(source: str, entry: str) -> TritonFunction | None:
    """The function of that name; None where no `@triton.jit` function of it is at the top of the file.

    Raises SyntaxError where the file is not Python.
    """
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == entry and any(map(_is_jit, node.decorator_list)):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            constexprs = [
                a.arg for a in arguments if a.annotation is not None and _last_name(a.annotation) == "constexpr"
            ]
            positional = [*node.args.posonlyargs, *node.args.args]
            with_default = {a.arg for a in positional[len(positional) - len(node.args.defaults) :]}
            pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            with_default |= {a.arg for a, default in pairs if default is not None}
            passed = tuple(a.arg for a in arguments if a.arg not in constexprs)
            return TritonFunction(passed, tuple(constexprs), frozenset(constexprs) - with_default)
    return None


def sizes_of(source: str, entry: str, shape: Mapping[str, int], defined: Mapping[str, str]) -> dict[str, str]:
    """The size of each axis that names a tl.constexpr, in either case: `M` or `m` for the axis m.

    Not of a constexpr that `defined` has a value for; none where the source has no such function.
    """
    try:
        function = function_of(source, entry)
    except SyntaxError:
        return {}
    sizes = {axis.lower(): str(size) for axis, size in shape.items()}
    names = function.constexprs if function else ()
    return {name: sizes[name.lower()] for name in names if name.lower() in sizes and name not in defined}


def is_same_function(source: str, other: str, entry: str) -> bool:
    """Whether both texts define the function alike, whatever its decorators, comments and layout."""
    return _definition(source, entry) == _definition(other, entry) is not None


def _definition(source: str, entry: str) -> str | None:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == entry:
            node.decorator_list = []
            return ast.dump(node)
    return None


def is_passed(argument: Argument, problem: Problem) -> bool:
    """Whether a launch passes the argument: Triton compiles a whole number that is 1 in as a constant."""
    return not (isinstance(argument, Scalar) and _fixed(argument, problem) == 1)


def signature(arguments: Sequence[Argument], problem: Problem) -> tuple[str, ...]:
    """The type of each argument as Triton's own ahead-of-time compiler is told it: `*fp32:16`, `i32:16`, `fp32`, `1`.

    Behind the colon stands what the value is a multiple of. The problem is fixed, and so are its whole numbers; every
    launch checks that arrays begin at a multiple of 16 bytes.
    """
    return tuple(_type_of(argument, problem) for argument in arguments)


def is_compiled_in(argument: Scalar, problem: Problem) -> bool:
    """Whether the compiled code relies on the argument's value, so that no launch may pass another."""
    return is_integer(argument.dtype_for(problem))


def _fixed(argument: Scalar, problem: Problem) -> float | None:
    return argument.number(problem) if is_compiled_in(argument, problem) else None


def _type_of(argument: Argument, problem: Problem) -> str:
    name = TYPES[argument.dtype_for(problem)]
    if isinstance(argument, Tensor):
        return f"*{argument.triton or name}:{DIVISOR}"
    value = _fixed(argument, problem)
    if value == 1:
        return "1"
    return name if value is None or value % DIVISOR else f"{name}:{DIVISOR}"


def flaws(
    entry: str, variant: Variant, source: str, arguments: Sequence[Argument], defined: Mapping[str, str]
) -> Iterator[str]:
    """Every fault of a Triton variant's source beside its declaration; `defined` is what the example defines."""
    try:
        function = function_of(source, entry)
    except SyntaxError as error:
        yield f"{variant.source} is not Python: line {error.lineno}: {error.msg}"
        return
    if function is None:
        yield f"{variant.source} does not define {entry}: there must be a function of that name under @triton.jit"
        return
    taken = [name for name in function.passed if name not in defined]
    if len(taken) != len(arguments):
        names = ", ".join(argument.name for argument in arguments)
        passed = ", ".join(taken)
        yield (
            f"{entry} takes {len(taken)} parameters that are not tl.constexpr ({passed}); "
            f"the declaration passes {len(arguments)}: {names}"
        )
    for parameter in variant.parameters:
        if parameter.name not in (*function.constexprs, *OPTIONS) and variant.constexprs is no_constexprs:
            yield (
                f"{variant.source}: the parameter {parameter.name} is neither a tl.constexpr of {entry} nor one of "
                f"{', '.join(OPTIONS)}"
            )
    for name in sorted(function.required - defined.keys()):
        values = ", ".join(defined)
        yield f"{variant.source}: nothing gives the tl.constexpr {name} of {entry} a value. There are {values}"
    if variant.before or variant.packing or variant.workspace_bytes is not no_workspace:
        yield "a Triton variant is one launch, and has no workspace"


def _is_jit(decorator: ast.expr) -> bool:
    return _last_name(decorator.func if isinstance(decorator, ast.Call) else decorator) == "jit"


def _last_name(node: ast.expr) -> str:
    """The last name of an annotation: `constexpr` for `tl.constexpr`, `constexpr` and `"tl.constexpr"`."""
    text = node.value if isinstance(node, ast.Constant) else ast.unparse(node)
    return str(text).rpartition(".")[2]
