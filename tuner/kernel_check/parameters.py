"""The parameters of a source's entry function beside those that the declaration says it is launched with.

No compiler tells that they differ: a launch passes addresses, and an `int` would get the bits of a `float`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence

from tilewright.kernels.dtypes import C_TYPES
from tilewright.kernels.kernel import Argument, Kernel, Scalar, Variant, unqualified
from tilewright.kernels.own import example
from tilewright.kernels.problem import Problem
from tilewright.tuner.compile.std_headers import without_cuda_headers
from tilewright.tuner.cuda_source.c_types import COMMENT, NUMBER, aliases_in, dtype_of, type_of, without_aliases
from tilewright.tuner.cuda_source.proposed import Values, names_a_block, proposed_macros, values_around
from tilewright.tuner.devices.cpu.compile import HOST_FOLDER, HostCompiler, find_compiler
from tilewright.tuner.errors import NoCompilerError
from tilewright.tuner.kernel_check.report import Finding, KernelCheckReport

_SYSTEM_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<[^>]*>.*$", re.MULTILINE)
_ANY_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)
_MACRO = re.compile(r"^#define (\w+) (\S.*)$", re.MULTILINE)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+).*$", re.MULTILINE)
_NOT_FOUND = re.compile(r"fatal error: '?([^:']+?)'?(?:: No such file| file not found)")
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
            if not variant.supports(problem):
                continue
            text = _text(kernel, variant, problem, compiler)
            parameters = None if text is None else parameters_of(text, unqualified(kernel.entry))
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
        source = _DEFINE.sub(lambda line: "" if line[1] in macros else line[0], COMMENT.sub(" ", source))
        return re.sub(r"\b\w+\b", lambda word: macros.get(word[0], word[0]), source)
    flags = ["-P", *(f"-D{name}={value}" for name, value in macros.items())]
    ran = _preprocessed(source, compiler, flags)
    return None if ran is None or ran.returncode else ran.stdout


def default_macros(source: str, flags: Sequence[str] = ()) -> dict[str, Values]:
    """Default and values of each macro that is a number and is used, as these flags let the source define it.

    One that conditions define differently is left out where no compiler is here to tell.
    """
    proposed = proposed_macros(source)
    named = _DEFINE.findall(source)
    several = {name for name in proposed if named.count(name) > 1}
    if not several:
        return proposed
    found = _defined(source, [flag for flag in flags if flag.startswith(("-D", "-U"))])
    one = {name: text for name, text in found.items() if name in several and text.isdigit() and int(text)}
    known = {name: values_around(int(text), is_block=names_a_block(name)) for name, text in one.items()}
    return {
        name: (int(one[name]), known[name]) if name in known else values
        for name, values in proposed.items()
        if name not in several or name in known
    }


def _defined(source: str, flags: Sequence[str]) -> dict[str, str]:
    """Every macro that is defined at the end of the source, as a GPU's compiler reads it; none without a compiler."""
    try:
        compiler = find_compiler()
    except NoCompilerError:
        return {}
    text = _ANY_INCLUDE.sub("", source)
    ran = _preprocessed(text, compiler, ["-dM", "-D__CUDACC__", "-D__CUDACC_RTC__", "-D__CUDA_ARCH__=900", *flags])
    return dict(_MACRO.findall(ran.stdout)) if ran is not None and not ran.returncode else {}


def _preprocessed(source: str, compiler: HostCompiler, flags: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """The preprocessed source; None where the preprocessor could not be run or took a minute."""
    words = [*compiler.command, "-E", "-w", "-x", "c++", "-std=c++17", *flags, "-"]
    try:
        return subprocess.run(words, input=source, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return None


def missing_header(kernel: Kernel) -> str | None:
    """A header in angle brackets that the CPU's compiler does not find, such as one of CUDA's; None without one."""
    try:
        compiler = find_compiler()
    except NoCompilerError:
        return None
    flags = [f"-I{HOST_FOLDER}", *(flag for flag in kernel.compiler_flags if flag.startswith(("-I", "-D")))]
    for variant in kernel.variants:
        macros = kernel.definitions(example(kernel, kernel.dtypes[0], {}), variant.space().default())
        source = "".join(f"#define {name} {value}\n" for name, value in macros.items())
        source += without_cuda_headers(kernel.source(variant.name))
        ran = _preprocessed(source, compiler, flags)
        missing = _NOT_FOUND.search(ran.stderr) if ran is not None else None
        if missing and f"<{missing[1]}>" in source:
            return missing[1]
    return None


def parameters_of(text: str, entry: str) -> list[str] | None:
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
    stated = set(aliases_in(text))
    aliases = dict(stated)
    # Both only where there was no preprocessor: macros, and aliases that an #if decides.
    hidden = {*_DEFINE.findall(text), *(name for name, kind in stated if aliases[name] != kind)}
    if any("#" in part or hidden.intersection(re.findall(r"\w+", part)) for part in parts):
        return None
    named = [" ".join(part.partition("=")[0].split()) for part in parts]
    return [without_aliases(part, aliases) for part in named if part not in {"", "void"}]


def _flaws(kernel: Kernel, variant: Variant, problem: Problem, parameters: list[str]) -> Iterator[str]:
    declared: list[Argument | None] = [*kernel.parameters]
    if variant.workspace_bytes(variant.space().default().values, problem):
        declared.append(None)
    maps = len(variant.tensor_maps(variant.space().default().values, problem))
    if maps and len(parameters) == len(declared) + maps:
        parameters = parameters[: len(declared)]  # they come last, and are structs
    if len(parameters) != len(declared):
        names = ", ".join("workspace" if argument is None else argument.name for argument in declared)
        yield f"{kernel.entry} takes {len(parameters)} parameters; the declaration passes {len(declared)}: {names}"
        return
    for place, (part, argument) in enumerate(zip(parameters, declared, strict=True), 1):
        flaw = _flaw(part, argument, problem)
        if flaw is not None:
            name = "workspace" if argument is None else argument.name
            yield f"parameter {place} is `{part}`, and the declaration passes {name} as {flaw}"


def _flaw(part: str, argument: Argument | None, problem: Problem) -> str | None:
    """The mismatch between an argument and its parameter, in words; None where it fits or cannot be told."""
    kind, is_pointer = type_of(part)
    is_number = NUMBER.fullmatch(kind) is not None
    if argument is None:
        return None if is_pointer or not is_number else "an address"
    dtype = argument.dtype_for(problem)
    is_other = is_number and dtype_of(kind) != dtype
    if isinstance(argument, Scalar):
        article = "an" if C_TYPES[dtype][0] in "aeiou" else "a"
        return f"{article} `{C_TYPES[dtype]}`" if is_pointer or is_other else None
    if not is_pointer or argument.texture is not None:
        passed = "an address" if argument.texture is None else "a texture, for a `cudaTextureObject_t`"
        is_texture = kind == "cudaTextureObject_t"
        is_wrong = is_pointer or is_number or is_texture != (argument.texture is not None)
        return passed if is_wrong else None
    if is_other and kind not in _BYTES:
        return f"the address of `{C_TYPES[dtype]}`s"
    if argument.role != "input" and re.search(r"\bconst\b", part.partition("*")[0]):
        return f"its {argument.role}, which must not be const"
    return None
