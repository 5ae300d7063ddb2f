"""Tables of results are in the order of the value that their column shows, either way; what has none comes last."""

import random

import pytest
from factories import H100, H200, NAIVE, SHAPE, TILED_16

from tilewright.service.operations.best.results_table import COLUMNS, TableFilter, result_table, results_by_model

SHOWN = {
    "verified": lambda row: row.verified_at,
    "problem": lambda row: sorted(row.problem.shape.values()),
    "model": lambda row: row.device_model,
    "configuration": lambda row: row.variant,
    "time": lambda row: row.time_ms,
    "rate": lambda row: row.gflops,
    "roof": lambda row: row.roof_ratio,
    "default": lambda row: row.gain_over_default,
    "library": lambda row: row.library and row.library.time_ms / row.time_ms,
}


@pytest.fixture
def filled(rows):
    """Results of two models whose values have orders of their own; some lack what may be missing."""
    draw = random.Random(5)
    for number in range(12):
        configuration = (TILED_16, NAIVE)[number % 2]
        best = rows.best(
            SHAPE | {"m": 2**number},
            1 + draw.random(),
            model=(H200, H100)[number % 3 == 0],
            library_ms=1 + draw.random() if number % 4 else None,
            configuration=configuration,
        )
        best.default_ms, best.gflops = (None, None) if number % 5 == 0 else (2 + draw.random(), draw.random())
        best.roof_ratio = draw.random() if number % 5 else None
    rows.session.flush()
    return rows.session


@pytest.mark.parametrize("column", sorted(COLUMNS))
@pytest.mark.parametrize("direction", ["", "-"])
def test_rows_are_in_the_order_of_the_column(filled, column, direction):
    by_model = results_by_model(filled, TableFilter(), direction + column, each=12)
    tables = [
        result_table(filled, TableFilter(), direction + column, limit=12),
        *(of.items for of in by_model.values()),
    ]
    assert [len(table) for table in tables] == [12, *(of.total for of in by_model.values())]
    for table in tables:
        shown = [SHOWN[column](row) for row in table]
        there = [value for value in shown if value is not None]
        assert shown == sorted(there, reverse=bool(direction)) + [None] * (len(shown) - len(there))
