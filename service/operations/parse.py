"""Shapes and options as text: `m=256,n=100` and `trans_b=true`, for the command line and for query strings alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

from tilewright.service.errors import InvalidRequestError

Value = TypeVar("Value", int, str, bool | str, int | str)

KEPT_PAIRS = 1 << 14
"""Pairs like `m=256` that are read once: `GET best` reads three in every question, of few different ones."""

SHAPE_EXAMPLE = "m=256,n=100,k=784"
OPEN_EXAMPLE = "m=1..8192,n=4096,k=4096"
OPTIONS_EXAMPLE = "trans_a=false,trans_b=true"
RENAME_EXAMPLE = "BLOCK_M=TILE_M,stages=STAGES"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_WHOLE = re.compile(r"-?[0-9]{1,18}")  # more digits than any axis; the kernel says which sizes it takes
_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_FLAGS = {"true": True, "false": False}

_NUMBER = r"-?\d{1,18}(?:\.\d{1,30})?(?:e[+-]?\d{1,3})?"
_BOUNDS = re.compile(rf"([A-Za-z]\w{{0,63}})=({_NUMBER})(?:\.\.({_NUMBER}))?")


def parse_shape(text: str | Iterable[str]) -> dict[str, int]:
    """Axis sizes by name; raises InvalidRequestError naming `shape`, or the axis. The kernel checks the sizes."""
    shape = _by_name("shape", text, _axis, SHAPE_EXAMPLE)
    if not shape:
        raise InvalidRequestError("shape", "no axis is given.", SHAPE_EXAMPLE)
    return shape


def parse_open_shape(text: str | Iterable[str]) -> dict[str, int | str]:
    """Axis sizes by name; a range, such as `m=1..8192`, stays text. Raises as `parse_shape`."""
    shape = _by_name("shape", text, _open_axis, OPEN_EXAMPLE)
    if not shape:
        raise InvalidRequestError("shape", "no axis is given.", OPEN_EXAMPLE)
    return shape


def parse_options(text: str | Iterable[str] | None) -> dict[str, bool | str]:
    """Options by name, `true` and `false` as flags; raises InvalidRequestError naming `options`, or the option."""
    return _by_name("options", text, _option, OPTIONS_EXAMPLE) if text else {}


def parse_renames(text: str | Iterable[str] | None) -> dict[str, str]:
    """Our names of parameters by theirs; raises InvalidRequestError naming `rename`, or their name."""
    return _by_name("rename", text, _rename, RENAME_EXAMPLE) if text else {}


def parse_selection(text: str | None) -> dict[str, tuple[float, float]]:
    """`TILE_M=128,STAGES=3..4,time=0.1..0.2` as bounds by name; raises InvalidRequestError naming `select`."""
    bounds = {}
    for part in filter(None, map(str.strip, (text or "").split(","))):
        match = _BOUNDS.fullmatch(part)
        if part.startswith("variant="):
            raise InvalidRequestError("select", "a variant has no bounds; choose one by variant=NAME, beside select.")
        if match is None:
            reason = f"{part[:40]!r} must have the form NAME=LOW..HIGH or NAME=VALUE, like TILE_M=64..128."
            raise InvalidRequestError("select", reason)
        bounds[match[1]] = (float(match[2]), float(match[3] or match[2]))
    return bounds


def format_shape(shape: Mapping[str, int | str]) -> str:
    """The text that `parse_open_shape` reads, and `parse_shape` where no size is a range."""
    return ",".join(f"{axis}={size}" for axis, size in shape.items())


def format_options(options: Mapping[str, bool | str]) -> str:
    """The text that `parse_options` reads; empty for no options."""
    words = ((name, str(value).lower() if isinstance(value, bool) else value) for name, value in options.items())
    return ",".join(f"{name}={word}" for name, word in words)


def _by_name(
    field: str, text: str | Iterable[str], read: Callable[[str], tuple[str, Value]], example: str
) -> dict[str, Value]:
    """The values of every `name=value`, between commas and over repetitions."""
    line = text if isinstance(text, str) else ",".join(part for part in text if part.strip())
    items = list(map(read, line.split(","))) if line.strip() else []
    values = dict(items)
    if len(values) < len(items):
        names = [name for name, _ in items]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        what = {"shape": "axis", "rename": "name"}.get(field, "option")
        raise InvalidRequestError(f"{field}.{twice}", f"the {what} {twice} is given twice.", example)
    return values


@lru_cache(maxsize=KEPT_PAIRS)
def _axis(pair: str) -> tuple[str, int]:
    axis, size = _name_and_value("shape", pair, SHAPE_EXAMPLE)
    if ".." in size:
        reason = f"{size[:40]!r} is a range; tuning jobs, schedules and tables take one."
        raise InvalidRequestError(f"shape.{axis}", reason, SHAPE_EXAMPLE)
    if not _WHOLE.fullmatch(size):
        raise InvalidRequestError(f"shape.{axis}", f"{size[:40]!r} is not a whole number.", SHAPE_EXAMPLE)
    return axis, int(size)


def _open_axis(pair: str) -> tuple[str, int | str]:
    return _name_and_value("shape", pair, OPEN_EXAMPLE) if ".." in pair else _axis(pair)


@lru_cache(maxsize=KEPT_PAIRS)
def _option(pair: str) -> tuple[str, bool | str]:
    name, value = _name_and_value("options", pair, OPTIONS_EXAMPLE)
    if not _WORD.fullmatch(value):
        reason = f"{value[:40]!r} is neither true, false nor a word."
        raise InvalidRequestError(f"options.{name}", reason, OPTIONS_EXAMPLE)
    return name, _FLAGS.get(value.lower(), value)


def _rename(pair: str) -> tuple[str, str]:
    theirs, ours = _name_and_value("rename", pair, RENAME_EXAMPLE)
    if not _NAME.fullmatch(ours) or ours in _FLAGS:
        raise InvalidRequestError(f"rename.{theirs}", f"{ours[:40]!r} is not a parameter's name.", RENAME_EXAMPLE)
    return theirs, ours


def _name_and_value(field: str, pair: str, example: str) -> tuple[str, str]:
    name, equals, value = (piece.strip() for piece in pair.partition("="))
    if not equals or not _NAME.fullmatch(name) or not value:
        raise InvalidRequestError(field, f"{pair.strip()[:40]!r} is not of the form name=value.", example)
    return name, value
