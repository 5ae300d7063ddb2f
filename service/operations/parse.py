"""Shapes and options as text: `m=256,n=100` and `trans_b=true`, for the command line and for query strings alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tilewright.service.errors import InvalidRequestError

SHAPE_EXAMPLE = "m=256,n=100,k=784"
OPTIONS_EXAMPLE = "trans_a=false,trans_b=true"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_WHOLE = re.compile(r"-?[0-9]{1,18}")  # more digits than any axis; the kernel says which sizes it takes
_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_FLAGS = {"true": True, "false": False}


def parse_shape(text: str | Iterable[str]) -> dict[str, int]:
    """Axis sizes by name; raises InvalidRequestError naming `shape`, or the axis. The kernel judges the sizes."""
    shape: dict[str, int] = {}
    for axis, size in _pairs("shape", text, SHAPE_EXAMPLE):
        if axis in shape:
            raise InvalidRequestError(f"shape.{axis}", f"the axis {axis} is given twice.", SHAPE_EXAMPLE)
        if not _WHOLE.fullmatch(size):
            raise InvalidRequestError(f"shape.{axis}", f"{size[:40]!r} is not a whole number.", SHAPE_EXAMPLE)
        shape[axis] = int(size)
    if not shape:
        raise InvalidRequestError("shape", "no axis is given.", SHAPE_EXAMPLE)
    return shape


def parse_options(text: str | Iterable[str] | None) -> dict[str, bool | str]:
    """Options by name, `true` and `false` as flags; raises InvalidRequestError naming `options`, or the option."""
    options: dict[str, bool | str] = {}
    for name, value in _pairs("options", text or (), OPTIONS_EXAMPLE):
        if name in options:
            raise InvalidRequestError(f"options.{name}", f"the option {name} is given twice.", OPTIONS_EXAMPLE)
        if not _WORD.fullmatch(value):
            raise InvalidRequestError(
                f"options.{name}", f"{value[:40]!r} is neither true, false nor a word.", OPTIONS_EXAMPLE
            )
        options[name] = _FLAGS.get(value.lower(), value)
    return options


def format_shape(shape: dict[str, int]) -> str:
    """The text that `parse_shape` reads."""
    return ",".join(f"{axis}={size}" for axis, size in shape.items())


def format_options(options: dict[str, bool | str]) -> str:
    """The text that `parse_options` reads; empty for no options."""
    words = ((name, str(value).lower() if isinstance(value, bool) else value) for name, value in options.items())
    return ",".join(f"{name}={word}" for name, word in words)


def _pairs(field: str, text: str | Iterable[str], example: str) -> Iterator[tuple[str, str]]:
    """Name and value of every `name=value`, between commas and over repetitions."""
    for part in [text] if isinstance(text, str) else text:
        if not part.strip():
            continue
        for pair in part.split(","):
            name, equals, value = (piece.strip() for piece in pair.partition("="))
            if not equals or not _NAME.fullmatch(name) or not value:
                raise InvalidRequestError(field, f"{pair.strip()[:40]!r} is not of the form name=value.", example)
            yield name, value
