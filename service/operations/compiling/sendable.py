"""What may be compiled on another host: a source that names no file, by NVRTC, with flags that name none either."""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from typing import Any

from tilewright.service.store.models.compiling import MOST_FACTS_BYTES, MOST_SOURCE_BYTES
from tilewright.tuner.compile.compilation import Compilation

_FLAG = re.compile(
    r"-D ?\w+(=[\w.+-]*)?|-lineinfo|--generate-line-info|(-|--)(use_fast_math|extra-device-vectorization|restrict)"
    r"|(-|--)(ftz|prec-sqrt|prec-div|fmad|maxrregcount|split-compile)=\w+"
)
_NAMES_A_FILE = re.compile(
    r"(#|%:|\?\?=)(\s|/\*.*?\*/)*(include|import|embed)|__has_(include|embed)|\?\?/|\bincbin\b", re.DOTALL
)
_SPLICE = re.compile(r"\\[ \t\f\v]*\r?\n")
_ARCH = re.compile(r"sm_[0-9]{2,3}[a-z]?")
_MACRO = re.compile(r"[A-Za-z_]\w*")

_SOURCES_KEPT = 64
"""Whose verdict and hash are remembered: hundreds of configurations are compiled from one source, of some 70 KB."""


def why_not(work: Compilation) -> str | None:
    """The reason for which the compilation must stay on its own host; None where another may make it.

    A compiler reads any file that a source includes, and could put it into a log or a cubin; so no file may be named.
    """
    if work.compiler != "nvrtc":
        return "only NVRTC compiles on other hosts"
    if bad := next((flag for flag in work.flags if not _FLAG.fullmatch(flag)), None):
        return f"the flag {bad} is not one that a compile worker takes"
    if not _ARCH.fullmatch(work.arch) or not all(_MACRO.fullmatch(name) for name, _ in work.definitions):
        return "the architecture or a definition is not one that a compiler takes"
    if any(_NAMES_A_FILE.search(_SPLICE.sub("", value)) for _, value in work.definitions):
        return "a definition names a file of the host that compiles it"
    if len(json.dumps(facts_of(work))) > MOST_FACTS_BYTES // 2:
        return "the definitions are too long"
    return _source_stays(work.source)


@lru_cache(maxsize=_SOURCES_KEPT)
def _source_stays(source: str) -> str | None:
    if len(source.encode()) > MOST_SOURCE_BYTES:
        return "the source is too long"
    return (
        "the source names a file of the host that compiles it"
        if _NAMES_A_FILE.search(_SPLICE.sub("", source))
        else None
    )


def facts_of(work: Compilation) -> dict[str, Any]:
    """Everything but the source, as the request's row has it."""
    return {
        "definitions": [list(definition) for definition in work.definitions],
        "arch": work.arch,
        "entry": work.entry,
        "flags": list(work.flags),
    }


def compilation_of(source: str, facts: dict[str, Any]) -> Compilation:
    """The compilation of a row; raises ValueError where the row is not one that `facts_of` made."""
    try:
        definitions = tuple((str(name), str(value)) for name, value in facts["definitions"])
        flags = tuple(str(flag) for flag in facts["flags"])
        return Compilation(source, definitions, str(facts["arch"]), str(facts["entry"]), "nvrtc", flags)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the request's facts are incomplete: {error!r}") from error


@lru_cache(maxsize=_SOURCES_KEPT)
def hash_of(source: str) -> str:
    """The name of a source in the database: its SHA-256."""
    return hashlib.sha256(source.encode()).hexdigest()
