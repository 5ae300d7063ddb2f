"""Files that version 38fc7d8 wrote are read as docs/compatibility.md says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from made_bundles import GEMM, PLACE, PROBLEM, choose

from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.known.answers import AnswerCache

WRITTEN = Path(__file__).parents[2] / "data" / "version_before"


@pytest.fixture
def answers(tmp_path):
    """A cache with the answer that was written, which was asked for at ANSWERED_S."""
    shutil.copytree(WRITTEN / "answers", tmp_path / "answers")
    return tmp_path / "answers"


ANSWERED_S = 1764288000.0


def test_a_bundle_is_used():
    found = choose(Runtime(bundle=WRITTEN / "bundle"))
    assert (found.origin, found.match, str(found.configuration)) == ("bundle", "exact", "tiled TILE_WIDTH=8")


def test_an_answer_is_used_for_a_day(answers):
    within = AnswerCache(answers, clock=lambda: ANSWERED_S + 3600).get(GEMM, PROBLEM, PLACE)
    assert within is not None
    assert str(within.configuration) == "tiled TILE_WIDTH=8"
    assert AnswerCache(answers, clock=lambda: ANSWERED_S + 90_000).get(GEMM, PROBLEM, PLACE) is None
