"""The parameters of a source's entry function beside those that the declaration says it is launched with.

No compiler tells that they differ: a launch passes addresses, and an `int` would get the bits of a `float`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping

from tilewright.kernels.kernel import REAL, Argument, Kernel, Scalar, Variant
from tilewright.kernels.own import example
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.cpu.compile import HostCompiler, find_compiler
from tilewright.tuner.errors import NoCompilerError
from tilewright.tuner.kernel_check.report import Finding, KernelCheckReport

_SYSTEM_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<[^>]*>.*$", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+).*$", re.MULTILINE)
_ALIAS = re.compile(r"\busing\s+(\w+)\s*=\s*([\w\s]+?)\s*;|\btypedef\s+([\w\s]+?)\s+(\w+)\s*;")
_QUALIFIER = re.compile(r"\b(?:__restrict__|__restrict|restrict|volatile|__grid_constant__|struct)\b|\[\[.*?\]\]")
_NUMBER = re.compile(r"(?:(?:unsigned|signed|long|short|int|char|bool)\s*)+|float|double|size_t|u?int(?:8|16|32|64)_t")
_BYTES = frozenset({"char", "unsigned char", "signed char", "uint8_t"})
"""Types that a source may read raw memory by; so may vectors, such as `float4`, and `void`."""


def check_parameters(kernel: Kernel, report: KernelCheckReport) -> None:
    """Adds an error for each parameter that is not as declared, and a note where they cannot be read."""
    try:
        compiler = find_compiler()
    except NoCompilerError:
        compiler = None  # what no macro hides can be read all the same
    for variant in kernel.variants:
        for dtype in kernel.dtypes:
            where = f"{variant.name} {dtype}"
            problem = example(kernel, dtype, {})
            text = _text(kernel, variant, problem, compiler)
            parameters = None if text is None else _parameters(text, kernel.entry)
            if parameters is None:
                message = f"{variant.source}: the parameters of {kernel.entry} cannot be read, and were not compared"
                report.add([Finding("note", "declaration", where, message)])
                continue
            flaws = _flaws(kernel, variant, problem, parameters)
            report.add(Finding("error", "declaration", where, f"{variant.source}: {flaw}") for flaw in flaws)


def _text(kernel: Kernel, variant: Variant, problem: Problem, compiler: HostCompiler | None) -> str | None:
    """The source of the variant's default after the preprocessor; None where that fails."""
    macros = kernel.definitions(problem, variant.space().default())
    source = _SYSTEM_INCLUDE.sub("", kernel.source(variant.name))  # CUDA's own headers need not be here
    if compiler is None:
        source = _DEFINE.sub(lambda line: "" if line[1] in macros else line[0], _COMMENT.sub(" ", source))
        return re.sub(r"\b\w+\b", lambda word: macros.get(word[0], word[0]), source)
    words = [*compiler.command, "-E", "-P", "-w", "-x", "c++", "-std=c++17"]
    words += [f"-D{name}={value}" for name, value in macros.items()]
    try:
        ran = subprocess.run([*words, "-"], input=source, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout


def _parameters(text: str, entry: str) -> list[str] | None:
    """The parameters of the entry's definition or declaration, each with its aliases resolved; None where unclear."""
    start = re.search(rf"__global__(?:(?!__global__)[^;{{}}])*?\b{entry}\s*\(", text)
    if start is None:
        return None
    parts, depth = [""], 1
    for character in text[start.end() :]:
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(character, 0)
        if depth == 0:
            break
        if character == "," and depth == 1:
            parts.append("")
        else:
            parts[-1] += character
    hidden = set(_DEFINE.findall(text))  # only where there was no preprocessor
    if any("#" in part or hidden.intersection(re.findall(r"\w+", part)) for part in parts):
        return None
    aliases = {found[1] or found[4]: found[2] or found[3] for found in _ALIAS.finditer(text)}
    named = [" ".join(part.partition("=")[0].split()) for part in parts]
    return [_resolved(part, aliases) for part in named if part not in {"", "void"}]


def _resolved(part: str, aliases: Mapping[str, str]) -> str:
    for _ in range(8):  # an alias of an alias
        part = re.sub(r"\b\w+\b", lambda word: aliases.get(word[0], word[0]), part)
    return part


def _flaws(kernel: Kernel, variant: Variant, problem: Problem, parameters: list[str]) -> Iterator[str]:
    declared: list[Argument | None] = [*kernel.arguments]
    if variant.workspace_bytes(variant.space().default().values, problem):
        declared.append(None)
    if len(parameters) != len(declared):
        names = ", ".join("workspace" if argument is None else argument.name for argument in declared)
        yield f"{kernel.entry} takes {len(parameters)} parameters; the declaration passes {len(declared)}: {names}"
        return
    for place, (part, argument) in enumerate(zip(parameters, declared, strict=True), 1):
        flaw = _flaw(part, argument, REAL[problem.dtype])
        if flaw is not None:
            name = "workspace" if argument is None else argument.name
            yield f"parameter {place} is `{part}`, and the declaration passes {name} as {flaw}"


def _flaw(part: str, argument: Argument | None, real: str) -> str | None:
    """What is passed, where the parameter is something else; None where it fits, or nobody can tell."""
    is_pointer = "*" in part or part.endswith("]")
    head = _QUALIFIER.sub(" ", re.split(r"[*\[]", part)[0])
    words = [word for word in head.split() if word != "const"]
    if len(words) > 1 and ("*" not in part):
        words.pop()  # the parameter's name
    kind = " ".join(words)
    if isinstance(argument, Scalar):
        is_wrong = is_pointer or (_NUMBER.fullmatch(kind) is not None and kind != real)
        return f"a `{real}`" if is_wrong else None
    if not is_pointer:
        return "an address" if _NUMBER.fullmatch(kind) else None
    if argument is None:
        return None
    if _NUMBER.fullmatch(kind) and kind not in _BYTES and kind != real:
        return f"the address of `{real}`s"
    if argument.role != "input" and re.search(r"\bconst\b", part.partition("*")[0]):
        return f"its {argument.role}, which must not be const"
    return None
