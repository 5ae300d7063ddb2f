"""Pydantic's messages about wrong fields in the words of our own refusals: `must be …`, `is missing`."""

from __future__ import annotations

import re

_WORDS = (
    (re.compile(r"^Value error, "), ""),
    (re.compile(r"^Input should be a valid (\w+), unable to parse string as an? \w+$"), r"must be a valid \1"),
    (re.compile(r"^(Input|Value|String|List|Dictionary|Tuple|Set) should "), "must "),
    (re.compile(r"^Field required$"), "is missing"),
    (re.compile(r"^Extra inputs are not permitted$"), "is not a known field"),
)


def plain(message: str) -> str:
    """The message as a predicate of the field's name, such as `must be greater than 0`."""
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    return message
