"""A study's trials column by column, and the packed bytes that browsers get."""

import gzip
import json
import math
import random

import numpy as np
import pytest
from factories import NAIVE, TILED_16, TILED_32, Rows

from tilewright.service.dashboard.charts.packed import packed
from tilewright.service.operations.studies.columns import Columns, columns
from tilewright.tuner.outcome import Outcome


@pytest.fixture
def study_id(session):
    """A study of four trials: two of a variant, one of another, one that failed."""
    rows = Rows(session)
    study, problem, device = rows.study()
    job = rows.job(problem, device, study)
    for configuration, time_ms, outcome in (
        (TILED_16, 2.0, Outcome.MEASURED),
        (NAIVE, 9.0, Outcome.MEASURED),
        (TILED_32, None, Outcome.WRONG_RESULT),
        (TILED_16.of("tiled", {"TILE_WIDTH": 8}), 1 / 3, Outcome.MEASURED),
    ):
        trial = rows.trial(study, job, configuration, time_ms, outcome=outcome)
        trial.wall_s, trial.registers = 1.5, 64
    session.flush()
    return study.id


def read(found: bytes) -> dict[str, list]:
    """The columns in the bytes, as the browser reads them."""
    end = 4 + int.from_bytes(found[:4], "little")
    header, offset, read = json.loads(found[4:end]), end, {}
    for column in header["columns"]:
        kind = {"rising": "<u4", "number": "<f4", "place1": "<u1", "place2": "<u2"}[column["kind"]]
        values = np.frombuffer(found, kind, header["rows"], offset)
        offset += -(-values.nbytes // 4) * 4
        if column["kind"] == "rising":
            values = np.cumsum(values) * column["step"]
        read[column["name"]] = [column["values"][v] for v in values] if "values" in column else values.tolist()
    assert offset == len(found)
    return read


def test_bytes_hold_what_the_columns_say(session, study_id):
    found = columns(session, study_id, "tiled", ["TILE_WIDTH"], resources=["registers"])
    assert found.values["TILE_WIDTH"] == [16, None, 32, 8]
    shown = read(packed(found))
    assert shown["trial"] == [0, 1, 2, 3]
    assert shown["spent"] == pytest.approx([1.5, 3, 4.5, 6], abs=1e-4)
    assert shown["outcome"] == ["measured", "measured", "wrong_result", "measured"]
    assert shown["variant"] == ["tiled", "naive", "tiled", "tiled"]
    assert shown["TILE_WIDTH"] == [16, None, 32, 8]
    assert shown["registers"] == [64] * 4
    assert math.isnan(shown["time"].pop(2))
    assert shown["time"] == pytest.approx([2.0, 9.0, 1 / 3], rel=1e-5)


def test_only_what_was_added_since_and_nothing_is_fine_too(session, study_id):
    later = columns(session, study_id, "tiled", ["TILE_WIDTH"], after=1)
    assert later.numbers == (2, 3)
    assert list(later.spent_s) == [4.5, 6.0]
    assert read(packed(columns(session, study_id, "tiled", ["TILE_WIDTH"], after=3)))["trial"] == []


def test_twenty_thousand_trials_are_few_bytes():
    chance, count = random.Random(3), 20_000
    times = [math.exp(chance.gauss(0, 1)) for _ in range(count)]
    many = Columns(
        range(count),
        times,
        list(np.cumsum([chance.random() for _ in range(count)])),
        ["measured"] * count,
        ["tiled"] * count,
        {f"P{place}": [chance.choice([1, 2, 4, 8]) for _ in range(count)] for place in range(8)},
        {},
    )
    assert len(gzip.compress(packed(many), 5)) < 150_000
