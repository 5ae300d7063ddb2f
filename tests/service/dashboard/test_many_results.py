"""A hundred thousand results: what pages take and weigh. Slow to fill, so it runs where TILEWRIGHT_MANY is set."""

import gzip
import os
import statistics

import pytest
from cost import cost_s
from factories import H100
from sqlalchemy import text
from test_result_pages import MANY_RESULTS

from tilewright.service.dashboard import STATIC
from tilewright.service.operations.transaction import transaction

MOST_MS, MOST_BYTES = 300, 600_000
COUNT = int(os.environ.get("TILEWRIGHT_MANY", "0"))
pytestmark = pytest.mark.skipif(not COUNT, reason="TILEWRIGHT_MANY=100000 fills a database for a minute")
PATHS = (
    "/",
    "/?family=square",
    "/?family=odd%20sizes",
    "/?shape=m%3D1500",
    "/results",
    "/device-models/nvidia-h200",
    "/studies/1",
    "/compare",
    "/compare?kernel=gemm&a=nvidia-h200&b=nvidia-h100",
    "/compare?kernel=gemm&a=nvidia-h200&b=nvidia-h200&a_at=2026-11-01T00:00",
    "/kernels/gemm/problem?shape=m%3D1500,n%3D100,k%3D784",
    "/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D1500,n%3D100,k%3D784",
    "/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D999,n%3D100,k%3D784",
    "/jobs",
    "/fleet",
    "/demand",
    "/schedules",
)
OWN = ("charts.js", "live.js", "actions.js", "copy.js", "style.css")
# The newest studies get trials enough to predict from: as many as a prediction reads.
TRIALS = """
INSERT INTO trials (study_id, number, job_id, job_revision, epoch, kernel_variant_id, configuration,
    configuration_hash, outcome, time_ms, ranking_l2, warm_ms)
SELECT study_id, place, job_id, 0, 0, (SELECT max(v.id) FROM kernel_variants v WHERE v.name = 'naive'),
    jsonb_build_object('variant', 'naive', 'BLOCK_X', x, 'BLOCK_Y', y), 'naive ' || place, 'measured',
    time_ms * (1 + place * 0.05), 'warm', time_ms * (1 + place * 0.05)
FROM (SELECT * FROM trials ORDER BY id DESC LIMIT 800) AS newest,
    (SELECT row_number() OVER () AS place, x, y FROM unnest(ARRAY[8, 16, 32, 64, 128]) x, unnest(ARRAY[1, 2, 4, 8]) y) c
"""


@pytest.fixture
def many(client, commit):
    """COUNT results on two device models, each with a study and a trial; the newest with twenty more trials."""
    commit(lambda rows: [rows.best(library_ms=0.5), rows.best(model=H100)])
    with transaction() as session:
        session.execute(text(MANY_RESULTS), {"count": COUNT // 2})
        session.execute(text(TRIALS))


def test_pages_over_many_results_are_quick_and_light(page, many):
    """The median of five, warm; bytes with the scripts and the style sheet, all gzipped."""
    scripts = ("vendor/echarts.min.js", "vendor/htmx.min.js", "vendor/htmx-sse.min.js", *OWN)
    shared = sum(len(gzip.compress((STATIC / name).read_bytes())) for name in scripts)
    slow, heavy, figures = [], [], {}
    for path in PATHS:
        shown = page(path)
        taken_ms = [cost_s(lambda path=path: page(path)) * 1e3 for _ in range(5)]
        weight = shared + len(gzip.compress(shown.encode()))
        figures[path] = f"{statistics.median(taken_ms):.0f} ms, least {min(taken_ms):.0f}, {weight / 1e3:.0f} kB"
        slow += [path] if min(taken_ms) >= MOST_MS else []
        heavy += [path] if weight >= MOST_BYTES else []
    print(*(f"{path}: {taken}" for path, taken in figures.items()), sep="\n")  # noqa: T201 - seen with -s
    assert (slow, heavy) == ([], []), figures
