"""Strict JSON for requests: I-JSON (RFC 7493) and a little narrower; a refusal points to the place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

MAX_DEPTH = 32
MAX_INTEGER = 2**63 - 1
"""The largest value of the database's widest integer."""

_HALF_A_PAIR = re.compile("[\ud800-\udfff]")
_DOUBTFUL = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])|[0-9]{16}|[0-9][eE]")
"""Without these no part is refused but for its depth or a member that is named twice: no character that cannot be
stored, no number that is too large."""

_NO_BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^][{}"]++')  # possessive: nothing is kept to go back to
_EMPTY = re.compile(rb"\[\]|\{\}")


class MalformedJSONError(ValueError):
    """The body is not JSON."""


class RefusedJSONError(ValueError):
    """The body is JSON that is ambiguous or cannot be stored; `pointer` says where (RFC 6901)."""

    def __init__(self, pointer: str, reason: str) -> None:
        self.pointer, self.reason = pointer, reason
        super().__init__(f"{pointer or 'the body'}: {reason}")


class _TwiceNamed(dict[str, Any]):
    """An object that names a member twice, so that the member's value is ambiguous."""

    member = ""


def check(body: bytes) -> None:
    """Raises MalformedJSONError or RefusedJSONError for a body that parsers may read differently."""
    read(body)


def read(body: bytes, *, has_nan: bool = False) -> Any:
    """The value, with null for NaN and infinities where `has_nan`; raises MalformedJSONError or RefusedJSONError."""
    constant, objects = _as_null if has_nan else _no_constant, _Objects()
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=constant, parse_int=_integer, object_pairs_hook=objects)
    except RecursionError:
        raise RefusedJSONError("", f"is nested deeper than {MAX_DEPTH} levels.") from None
    except UnicodeDecodeError:
        raise MalformedJSONError("The body is not UTF-8.") from None
    except json.JSONDecodeError as error:
        raise MalformedJSONError(f"{error.msg} at line {error.lineno}, column {error.colno}.") from None
    if objects.has_twice_named or _DOUBTFUL.search(body) or _is_deep(body):
        for path, part in _walk(value):  # which takes ten times as long as reading
            _check_part(path, part)
    return value


def escape(name: str) -> str:
    """A member's name as part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _is_deep(body: bytes) -> bool:
    """Whether JSON is nested deeper than MAX_DEPTH levels: each turn takes the innermost brackets away."""
    left = _NO_BRACKETS.sub(b"", body)
    for _ in range(MAX_DEPTH):
        left = _EMPTY.sub(b"", left)
        if not left:
            return False
    return True


def _check_part(path: Sequence[str | int], part: Any) -> None:
    if len(path) > MAX_DEPTH:
        raise RefusedJSONError("", f"is nested deeper than {MAX_DEPTH} levels.")
    if isinstance(part, _TwiceNamed):
        raise RefusedJSONError(_pointer(path), f"names the member {part.member!r} twice.")
    if isinstance(part, float) and part in {float("inf"), float("-inf")}:
        raise RefusedJSONError(_pointer(path), "is larger than any number that can be stored.")
    if isinstance(part, int) and abs(part) > MAX_INTEGER:
        raise RefusedJSONError(_pointer(path), f"must lie between -{MAX_INTEGER} and {MAX_INTEGER}.")
    names = part if isinstance(part, dict) else [part] if isinstance(part, str) else []
    if any("\0" in text for text in names):
        raise RefusedJSONError(_pointer(path), "holds the character U+0000, which cannot be stored.")
    if any(_HALF_A_PAIR.search(text) for text in names):
        raise RefusedJSONError(_pointer(path), "holds half of a surrogate pair, which is not a character.")


def _walk(value: Any) -> Iterator[tuple[Sequence[str | int], Any]]:
    """Every part with its path, from the outside in, parents first and in their order, without recursion.

    The path is one list that changes: a pointer for each part would take as much memory as the longest name times the
    number of parts.
    """
    path: list[str | int] = []
    yield path, value
    waiting = [_members(value)]
    while waiting:
        for name, part in waiting[-1]:
            path.append(name)
            yield path, part
            if isinstance(part, dict | list):
                waiting.append(_members(part))
                break
            path.pop()
        else:
            waiting.pop()
            del path[-1:]


def _members(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return iter(value.items())
    return enumerate(value) if isinstance(value, list) else iter(())


def _pointer(path: Sequence[str | int]) -> str:
    return "".join(f"/{escape(str(name))}" for name in path)


def _as_null(_name: str) -> None:
    return None


def _no_constant(name: str) -> Any:
    raise MalformedJSONError(f"{name} is not a JSON number.")


def _integer(digits: str) -> int:
    # Python itself refuses to read more than 4300 digits; 40 are far outside what is allowed already.
    return int(digits) if len(digits) <= 40 else (MAX_INTEGER + 1)


class _Objects:
    """Makes objects of the members that were read."""

    def __init__(self) -> None:
        self.has_twice_named = False

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) == len(pairs):
            return members
        seen: set[str] = set()
        twice = _TwiceNamed(members)
        twice.member = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        self.has_twice_named = True
        return twice
