"""Every page, with three GPU models and two hundred shapes: its weight, and the clicks from it to tuning again."""

import gzip
import html
import re
from functools import cache

import pytest
import three_models
from factories import NAIVE, TILED_16, TILED_32, Rows
from sqlalchemy import select, text

from tilewright.service.dashboard import STATIC
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models

MOST_BYTES, MOST_BYTES_IN_ALL = 60 * 1024, 500 * 1024
SHAPE = "m%3D1000,n%3D1000,k%3D1000"
CHARTS = "vendor/echarts.min.js"
PATHS = (
    "/",
    "/?kernel=gemm&device_model=nvidia-h200",
    "/results",
    "/compare?kernel=gemm&a=nvidia-h200&b=nvidia-h100&show=all",
    "/history",
    "/views",
    f"/ask?kernel=gemm&device_model=nvidia-h200&shape={SHAPE}",
    "/kernels",
    "/kernels/gemm",
    f"/kernels/gemm/problem?shape={SHAPE}",
    "/device-models/nvidia-h200",
    "/attention",
    "/demand",
    "/jobs",
    "/schedules",
    "/fleet",
    "/access",
)
NO_PROBLEM = ("/kernels", "/schedules", "/fleet", "/access", "/views", "/sign-in")
"""Pages that show none here. The fleet's lead to those of the failed jobs."""
TUNES = re.compile(r'hx-post="/v1/(jobs|attention:tune|demand:tune)')


@pytest.fixture
def paths(client) -> list[str]:
    """The pages, with one of each kind that is about a row."""
    with transaction() as session:
        rows = Rows(session)
        three_models.fill(rows)
        spans = [(1, 40, NAIVE), (41, 200, TILED_16), (201, 8192, TILED_32)]
        times = {c: {1: 0.01, 128: 0.03, 8192: 1.7} for _, _, c in spans}
        table = rows.table({"m": "1..8192", "n": 4096, "k": 4096}, spans, times)
        study = session.scalars(select(models.Trial.study_id).order_by(models.Trial.id.desc())).first()
        job = models.TuningJob
        jobs = {state: job_id for job_id, state in session.execute(select(job.id, job.state))}
    with transaction() as session:
        session.execute(text("ANALYZE"))
    rest = [f"/studies/{study}", f"/studies/{study}/trials/0", f"/tables/{table}"]
    return [*PATHS, *rest, *(f"/jobs/{job_id}" for job_id in jobs.values())]


def weighed(shown: str) -> tuple[int, int]:
    """The bytes of a page with its style sheet and scripts, all gzipped, and those of the charts' library."""
    files = {name.partition("?")[0] for name in re.findall(r'(?:src|href|content)="/static/([^"]+)"', shown)}
    files |= {"chart-tools.js", "columns.js", "free-chart.js"} if CHARTS in files else set()
    sizes = {name: len(gzip.compress((STATIC / name).read_bytes())) for name in files}
    charts = sizes.pop(CHARTS, 0)
    return len(gzip.compress(shown.encode())) + sum(sizes.values()), charts


def is_tuning(shown: str) -> bool:
    return TUNES.search(shown) is not None


def test_every_page_is_light_and_tuning_again_is_two_clicks_away(page, paths):
    heavy, far, page = {}, [], cache(page)
    for path in paths:
        shown = page(path)
        own, charts = weighed(shown)
        if own > MOST_BYTES or own + charts > MOST_BYTES_IN_ALL:
            heavy[path] = own, charts
        if path in NO_PROBLEM or is_tuning(shown):  # the button itself is the first click
            continue
        body = html.unescape(shown.partition('<main id="main">')[2])
        link = re.search(r'href="(/kernels/[\w-]+/problem[^"#]*)', body)
        if link is None or not is_tuning(page(link[1])):
            far.append(path)
    assert (heavy, far) == ({}, [])
