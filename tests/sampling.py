"""Sweeps of which the unit tests take a sample (`make test-exhaustive` runs all), and shapes that kernels take."""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tilewright.kernels.errors import InvalidProblemError

EXHAUSTIVE = pytest.mark.exhaustive
"""The mark of a case that runs nightly, while others like it run with the unit tests."""


def sampled(cases: Iterable[Any], is_usual: Callable[..., bool]) -> list[Any]:
    """The cases, tuples or single values, as parameters; those that are not usual carry the mark `exhaustive`."""
    tuples = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=() if is_usual(*case) else EXHAUSTIVE) for case in tuples]


def take_turns(cases: Sequence[pytest.Item]) -> None:
    """Of a test with the mark `in_turn(n)` a commit runs every n-th case, from one that its hash chooses; nightly all.

    For cases that share their causes of failure: each has its turn, and no commit is without one. A test without other
    cases, whose parts have tests of their own, is run by every n-th commit.
    """
    usual = [case for case in cases if case.get_closest_marker(EXHAUSTIVE.name) is None]
    if usual and (mark := usual[0].get_closest_marker("in_turn")):
        first, step = turn(mark.args[0], usual[0].nodeid)
        kept = usual[first % min(step, len(usual)) :: step] if len(usual) > 1 or first == 0 else []
        for case in {*usual} - {*kept}:
            case.add_marker(EXHAUSTIVE)


def turn(parts: int, name: str) -> tuple[int, int]:
    """The slice of a list that this commit runs, as start and step: one of `parts` parts, chosen by hash and name."""
    return zlib.crc32(f"{current_commit()} {name}".encode()) % parts, parts


@cache
def current_commit() -> str:
    """The hash of the commit that is checked out; empty outside a git checkout."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def shape_or_example(kernel, shape):
    """The shape where it is a problem of the kernel, else that of its example."""
    try:
        kernel.problem(shape)
    except InvalidProblemError:
        return dict(kernel.example_shape)
    return shape
