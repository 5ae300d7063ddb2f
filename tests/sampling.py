"""Sweeps of which the unit tests take a sample; all of them run by `make test-exhaustive`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

EXHAUSTIVE = pytest.mark.exhaustive
"""The mark of a case that runs nightly, while others like it run with the unit tests."""


def sampled(cases: Iterable[Any], is_usual: Callable[..., bool]) -> list[Any]:
    """The cases, tuples or single values, as parameters; those that are not usual carry the mark `exhaustive`."""
    tuples = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=() if is_usual(*case) else EXHAUSTIVE) for case in tuples]
