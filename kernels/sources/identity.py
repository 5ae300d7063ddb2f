"""The identity of a source: a hash over its code, which neither comments nor white space change.

Results, locks and bundles state the hash of the source that they were measured with. `Kernel.has_source` compares such
a hash with today's source, and nothing else does.
"""

from __future__ import annotations

import hashlib
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

FORMER = Path(__file__).parent / "former_sources.txt"
"""Hashes of version 38fc7d8, which took them over the text, and of sources with the same code since.

Made by tools/former_sources.py, gone with release 1.0.
"""

PREFIX = 16
"""Hexadecimal digits of a hash in that file: enough to tell some hundred sources apart."""

_SPLICE = re.compile(r"\\\r?\n")
_RAW = r'(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\([\s\S]*?\)(?P=fence)"'
_QUOTED = r"""(?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
_NUMBER = r"(?<!\w)\.?\d(?:'?[\w.]|(?<=[eEpP])[+-])*"
_OPERATOR = r"<<<|>>>|<=>|<<=|>>=|\.\.\.|->\*|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|##|\.\*"
_RAW_OR_PLAIN = re.compile(rf"(?P<raw>{_RAW})|{_QUOTED}|{_NUMBER}|//(?:\\\r?\n|[^\n])*|/\*[\s\S]*?\*/|\\\r?\n")
_BLOCK_OR_PLAIN = re.compile(rf"(?P<block>/\*[\s\S]*?\*/)|{_QUOTED}|{_NUMBER}|//[^\n]*")
_TOKEN = re.compile(rf"//.*|\s+|({_QUOTED}|{_NUMBER}|\w+|{_OPERATOR}|.)")
_MACRO = re.compile(r"\s*(?:#|%:)\s*define\s+\w+\(")
_DIRECTIVE = re.compile(r"\s*(?:#|%:)")


def code_hash(source: str, flags: Sequence[str] = (), *, is_triton: bool = False) -> str:
    """SHA-256, hexadecimal, over the tokens of a CUDA C++ or Triton source and the flags that it is compiled with.

    Ends of lines count where they end a directive, or a statement of Python. A Triton source that is not Python is
    hashed as it is.
    """
    tokens = _python_tokens(source) if is_triton else _cuda_tokens(source)
    return hashlib.sha256("\n".join([*tokens, *(f"\0{flag}" for flag in flags)]).encode()).hexdigest()


def text_hash(source: str) -> str:
    """SHA-256, hexadecimal, of the text: what version 38fc7d8 wrote as a source's hash."""
    return hashlib.sha256(source.encode()).hexdigest()


class Former(NamedTuple):
    """An earlier source: today's hash of it, and whether its machine code is unchanged."""

    now: str
    is_same: bool


def former(stated: str) -> Former | None:
    """The former source with that hash; None where there was none."""
    return _former_sources().get(stated[:PREFIX])


@cache
def _former_sources() -> dict[str, Former]:
    return _read_former(FORMER) if FORMER.is_file() else {}


def _read_former(path: Path) -> dict[str, Former]:
    rows = (line.split() for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return {then: Former(now, relation == "same") for relation, then, now in rows}


def _cuda_tokens(source: str) -> Iterator[str]:
    """Runs of tokens, a line each, with an empty one behind each directive."""
    for line in _in_plain_lines(source).split("\n"):
        yield from _tokens_of_line(line)


@lru_cache(maxsize=32768)  # headers are in many sources: 2.8 MB have 8,000 different lines
def _tokens_of_line(line: str) -> tuple[str, ...]:
    tokens = [token for token in _TOKEN.findall(line) if token]
    if not tokens or not _DIRECTIVE.match(line):
        return tuple(tokens)
    if _MACRO.match(line):  # `F(x)` right behind `define` has parameters, `F (x)` has none
        tokens[2] += "("
    return (*tokens, "")


def _in_plain_lines(source: str) -> str:
    """The source without continued lines, comments of several lines and raw strings, which have their hash instead."""
    if 'R"' in source:
        source = _RAW_OR_PLAIN.sub(lambda m: f'R"{text_hash(m[0])}"' if m["raw"] else _SPLICE.sub("", m[0]), source)
    else:
        source = _SPLICE.sub("", source)
    return _BLOCK_OR_PLAIN.sub(lambda m: " " if m["block"] else m[0], source) if "/*" in source else source


def _python_tokens(source: str) -> Iterator[str]:
    """Tokens with the blocks that they stand in; f-strings in one piece, as Python 3.11 has them."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return iter((source,))
    return _without_layout(tokens, source.splitlines(keepends=True))


def _without_layout(tokens: Sequence[tokenize.TokenInfo], lines: Sequence[str]) -> Iterator[str]:
    depth, begun = 0, (0, 0)
    for token in tokens:
        kind = tokenize.tok_name[token.type]
        if kind.startswith("FSTRING_"):
            begun = token.start if kind == "FSTRING_START" and depth == 0 else begun
            depth += {"FSTRING_START": 1, "FSTRING_END": -1}.get(kind, 0)
            if depth == 0:
                yield _between(lines, begun, token.end)
        elif depth == 0 and kind not in {"COMMENT", "NL", "ENCODING"}:
            yield kind if kind in {"NEWLINE", "INDENT", "DEDENT"} else token.string


def _between(lines: Sequence[str], begin: tuple[int, int], end: tuple[int, int]) -> str:
    """The text from one place to another, each a line from 1 and a column."""
    if begin[0] == end[0]:
        return lines[begin[0] - 1][begin[1] : end[1]]
    inner = lines[begin[0] : end[0] - 1]
    return "".join([lines[begin[0] - 1][begin[1] :], *inner, lines[end[0] - 1][: end[1]]])
