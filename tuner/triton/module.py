"""A Triton source run as a module. Only in processes that are there for nothing else: it is somebody's Python code."""

from __future__ import annotations

import ast
import linecache
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from tilewright.kernels.triton import OPTIONS

_NAME = "tilewright_triton_source"


def loaded(source: str, file_name: str) -> ModuleType:
    """The module that the source makes, loaded anew; it may raise anything.

    It needs no file: Triton reads its functions' text from `linecache`, and errors name the lines of `file_name`.
    """
    module = ModuleType(_NAME)
    module.__file__ = file_name
    linecache.cache[file_name] = (len(source), None, source.splitlines(keepends=True), file_name)
    sys.modules[_NAME] = module
    exec(compile(source, file_name, "exec"), module.__dict__)  # noqa: S102 - what this process is for
    return module


def constexprs(
    names: Sequence[str], definitions: Mapping[str, str], module: ModuleType | None = None
) -> dict[str, Any]:
    """The values of the constexprs that problem and configuration define; functions come from the module."""
    import triton.language as tl  # noqa: PLC0415 - takes a second, and the extra `triton`

    def value(text: str) -> Any:
        if not text.isidentifier() or text in {"True", "False", "None"}:
            return ast.literal_eval(text)
        return getattr(module, text) if module is not None and hasattr(module, text) else tl.str_to_ty(text, None)

    return {name: value(definitions[name]) for name in names if name in definitions}


def words_of(error: BaseException, file_name: str) -> str:
    """The first fault in words, with the innermost line of the source, if it ran; then Triton's own account."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    frames = [frame for frame in traceback.extract_tb(first.__traceback__) if frame.filename == file_name]
    where = f"{file_name}, line {frames[-1].lineno}: " if frames else ""
    lines = str(first).strip().splitlines() or [""]
    what = str(first)
    if lines[0].startswith("at "):  # of the function, whose text stands between
        what = f"{lines[-1]} ({lines[0].rstrip(':')} of the function)"
    text = f"error: {where}{type(first).__name__}: {what}"
    return text if error is first and len(lines) == 1 else f"{text}\n{error}"


def compiler_options(definitions: Mapping[str, str]) -> dict[str, int]:
    """Triton's own options that the configuration has."""
    return {name: int(definitions[name]) for name in OPTIONS if name in definitions}
