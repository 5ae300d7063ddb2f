"""A kernel's source as one text, with every included header inlined once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tilewright.kernels.errors import KernelError

INCLUDE = Path(__file__).parents[1] / "include"
"""Tilewright's own headers: what `-I` names where a compiler reads a `.cu` by itself."""

_INCLUDE_LINE = re.compile(r'[ \t]*#[ \t]*include[ \t]*"([^"]+)"[ \t]*(?://.*)?')
_ANY_INCLUDE = re.compile(r'[ \t]*#[ \t]*(?:include|include_next|import|embed)[ \t]*[<"]([^>"]+)[>"]')
_SUFFIXES = frozenset(
    (".cuh", ".cu", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".ipp", ".tpp", ".c", ".cc", ".cpp", ".cxx", ".def")
)
"""Endings of files that a source may include: their text gets into sources, logs and the database."""

_ONCE_LINE = re.compile(r"[ \t]*#[ \t]*pragma[ \t]+once\b.*")
_CONDITION_LINE = re.compile(r"[ \t]*#[ \t]*(if|endif)")


def defined_by(flags: Sequence[str]) -> dict[str, str]:
    """The macros that flags define, by name."""
    pairs = (flag.removeprefix("-D").partition("=") for flag in flags if flag.startswith("-D"))
    return {name: value if has_value else "1" for name, has_value, value in pairs}


def without_functions(source: str, entries: Sequence[str]) -> str:
    """The source with a declaration in place of each of these functions, each of which it defines once, as NAME(...).

    Macros make a template of the body, which nobody instantiates: a compiler reads it and makes no code of it.
    """
    macros = (
        f"#define {entry}(...) {entry}(__VA_ARGS__); template <int> __device__ void {entry}_elsewhere(__VA_ARGS__)\n"
        for entry in entries
    )
    return "".join(macros) + source


class IncludeError(KernelError):
    """A header that a source includes cannot be inlined."""


def resolved(path: Path, folders: Sequence[Path] = ()) -> str:
    """The text of the file with its headers in it; raises IncludeError, OSError and UnicodeDecodeError.

    A header in quotes is looked for as compilers do: in the folder of the file that includes it, then in `folders`,
    then among Tilewright's own. Headers in none of them, and those in angle brackets, are left to the compiler.
    """
    return _Inlining((*folders, INCLUDE)).text_of(path, ())


def _check_named(path: Path, name: str, header: Path | None) -> None:
    """Raises IncludeError for a file that is no header of a kernel, such as /etc/passwd."""
    if name.startswith("/"):
        raise IncludeError(f'{path} includes "{name}": name a header of its folders, and not by its whole path')
    if header is None and ".." in Path(name).parts:
        raise IncludeError(f'{path} includes "{name}", which is not there')
    if header is not None and header.suffix not in _SUFFIXES:
        raise IncludeError(f'{path} includes "{name}", which is no header: its name ends in none of those of C++')


class _Inlining:
    """The inlining of one source."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._once: dict[Path, bool] = {}  # headers with `#pragma once` that are there, and whether inside an #if

    def text_of(self, path: Path, includers: tuple[Path, ...], *, in_condition: bool = False) -> str:
        lines: list[str] = []
        depth, after_header = int(in_condition), False
        for line in path.read_text(encoding="utf-8-sig").split("\n"):
            if after_header and not line.strip():
                continue  # one empty line follows a header, as it always has: the texts of users' kernels stay the same
            after_header = False
            if condition := _CONDITION_LINE.match(line):
                depth += 1 if condition[1] == "if" else -1
            include = _INCLUDE_LINE.fullmatch(line)
            header = self._find(path.parent, include[1]) if include else None
            if named := _ANY_INCLUDE.match(line):
                _check_named(path, named[1], header)
            if include and header is None and include[1].endswith(".cuh"):
                places = ", ".join(map(str, (path.parent, *self._folders)))
                raise IncludeError(f'{path} includes "{include[1]}", which is in none of {places}')
            if header is not None:
                text = self._included(header, (*includers, path.resolve()), in_condition=depth > 0)
                lines += [text] if text is not None else []
                after_header = text is not None
            elif not (includers and _ONCE_LINE.fullmatch(line)):
                lines.append(line)
        return "\n".join(lines)

    def _find(self, here: Path, name: str) -> Path | None:
        return next((at.resolve() for folder in (here, *self._folders) if (at := folder / name).is_file()), None)

    def _included(self, header: Path, includers: tuple[Path, ...], *, in_condition: bool) -> str | None:
        """The header's text; None where it is there already."""
        if header in self._once:
            if self._once[header] and not in_condition:
                raise IncludeError(f"{includers[-1]} includes {header}, but that include is only inside an #if")
            return None
        if any(_ONCE_LINE.fullmatch(line) for line in header.read_text(encoding="utf-8-sig").split("\n")):
            self._once[header] = in_condition
        if header in includers:
            raise IncludeError(f"{header} includes itself: give it a `#pragma once`")
        return self.text_of(header, includers, in_condition=in_condition)
