"""JSON from outside as it is taken (I-JSON, RFC 7493, and a little narrower), refused with a pointer to the place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 32
MAX_INTEGER = 2**63 - 1
"""What the database's widest integer holds."""


class MalformedJSONError(ValueError):
    """The body is not JSON."""


class RefusedJSONError(ValueError):
    """The body is JSON that could mean two things, or that cannot be stored; `pointer` says where (RFC 6901)."""

    def __init__(self, pointer: str, reason: str) -> None:
        self.pointer, self.reason = pointer, reason
        super().__init__(f"{pointer or 'the body'}: {reason}")


class _TwiceNamed(dict[str, Any]):
    """An object in which a member was named twice; which value counts nobody can know."""

    member = ""


def check(body: bytes) -> None:
    """Nothing, for a body that may be parsed by anyone; raises MalformedJSONError or RefusedJSONError."""
    read(body)


def read(body: bytes) -> Any:
    """The value; raises MalformedJSONError or RefusedJSONError."""
    try:
        value = json.loads(
            body.decode("utf-8"), parse_constant=_no_constant, parse_int=_integer, object_pairs_hook=_object
        )
    except RecursionError:
        raise RefusedJSONError("", f"is nested deeper than {MAX_DEPTH} levels.") from None
    except UnicodeDecodeError:
        raise MalformedJSONError("The body is not UTF-8.") from None
    except json.JSONDecodeError as error:
        raise MalformedJSONError(f"{error.msg} at line {error.lineno}, column {error.colno}.") from None
    for pointer, depth, part in _walk(value):
        _check_part(pointer, depth, part)
    return value


def escape(name: str) -> str:
    """A member's name as part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _check_part(pointer: str, depth: int, part: Any) -> None:
    if depth > MAX_DEPTH:
        raise RefusedJSONError("", f"is nested deeper than {MAX_DEPTH} levels.")
    if isinstance(part, _TwiceNamed):
        raise RefusedJSONError(pointer, f"names the member {part.member!r} twice.")
    if isinstance(part, float) and part in {float("inf"), float("-inf")}:
        raise RefusedJSONError(pointer, "is larger than any number that can be stored.")
    if isinstance(part, int) and abs(part) > MAX_INTEGER:
        raise RefusedJSONError(pointer, f"must lie between -{MAX_INTEGER} and {MAX_INTEGER}.")
    names = part if isinstance(part, dict) else [part] if isinstance(part, str) else []
    if any("\0" in text for text in names):
        raise RefusedJSONError(pointer, "holds the character U+0000, which cannot be stored.")
    if any("\ud800" <= character <= "\udfff" for text in names for character in text):
        raise RefusedJSONError(pointer, "holds half of a surrogate pair, which is no character.")


def _walk(value: Any) -> Iterator[tuple[str, int, Any]]:
    """Every part with its pointer and depth, parents first, without recursion."""
    waiting: list[tuple[str, int, Any]] = [("", 0, value)]
    while waiting:
        pointer, depth, part = waiting.pop()
        yield pointer, depth, part
        if isinstance(part, dict):
            waiting += [(f"{pointer}/{escape(name)}", depth + 1, inner) for name, inner in part.items()]
        elif isinstance(part, list):
            waiting += [(f"{pointer}/{place}", depth + 1, inner) for place, inner in enumerate(part)]


def _no_constant(name: str) -> Any:
    raise MalformedJSONError(f"{name} is not a JSON number.")


def _integer(digits: str) -> int:
    # Python itself refuses to read more than 4300 digits; 40 are far outside what is allowed already.
    return int(digits) if len(digits) <= 40 else (MAX_INTEGER + 1)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    twice = _TwiceNamed(found)
    twice.member = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    return twice
