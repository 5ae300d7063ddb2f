"""How pages and the command line name a problem: axes at their defaults are never said, unusual ones always."""

import re

import pytest
from factories import OLD, SHAPE
from sqlalchemy import select
from sqlalchemy.orm import joinedload

from tilewright.service.cli.arguments import describe
from tilewright.service.dashboard import formatting
from tilewright.service.operations.registry import catalogue, problem_answer
from tilewright.service.store import models

PATHS = (
    "/?kernel=gemm",
    "/results",
    "/attention",
    "/jobs",
    "/jobs/{job}",
    "/studies/{study}",
    "/studies/{study}/trials/0",
    "/compare?kernel=gemm&a=nvidia-h200&b=nvidia-h200&show=all",
    "/kernels/gemm/problem?shape={shape}",
    "/ask?kernel=gemm&device_model=nvidia-h200&shape={shape}",
    "/device-models/nvidia-h200",
)
OPTIONAL = re.compile(r"\b(batch|ld[abc]|stride_[abc])(=|%3D|&#39;: |': )(\d+)")


@pytest.fixture
def stored(commit):
    """A gemm with a best, stored for a shape."""

    def store(shape):
        def make(rows):
            rows.best(shape, environment=OLD)
            best = rows.best(shape, library_ms=0.5)
            study = rows.session.scalars(select(models.Study).where(models.Study.problem_id == best.problem_id)).first()
            job = rows.session.scalars(select(models.TuningJob).where(models.TuningJob.study_id == study.id)).one()
            (problem,) = rows.session.scalars(select(models.Problem).options(joinedload(models.Problem.kernel)))
            return problem_answer(problem), {"job": job.id, "study": study.id}

        return commit(make)

    return store


@pytest.mark.parametrize("path", PATHS)
def test_axes_at_their_defaults_are_said_nowhere(page, stored, path):
    every = dict(catalogue().get("gemm").problem(SHAPE).shape)
    assert set(every) > set(SHAPE)
    problem, ids = stored(every)
    shown = page(path.format(shape="m=256,n=100,k=784", **ids))
    assert describe(problem) == "gemm m=256,n=100,k=784 float32"
    assert not OPTIONAL.search(shown)


@pytest.mark.parametrize("path", PATHS)
def test_unusual_axes_are_said_and_no_others(page, stored, path):
    problem, ids = stored({**SHAPE, "batch": 4, "lda": 800})
    shown = page(path.format(shape="m=256,n=100,k=784,batch=4,lda=800", **ids))
    assert describe(problem) == "gemm m=256,n=100,k=784,batch=4,lda=800 float32"
    assert {(name, value) for name, _, value in OPTIONAL.findall(shown)} == {("batch", "4"), ("lda", "800")}


def test_a_long_text_may_break_behind_its_commas_and_a_short_one_stays_whole():
    long = "conv2d batch=8,height=14,width=14,channels=256,filters=256,kernel_h=3<"
    assert str(formatting.wrapping(long)).count(",<wbr>") == long.count(",")
    assert str(formatting.wrapping(long)).endswith("kernel_h=3&lt;")
    assert str(formatting.wrapping("gemm m=4,n=5,k=6 float32")) == "gemm m=4,n=5,k=6 float32"


def test_a_uuid_within_a_sentence_breaks_over_no_two_lines():
    uuid = "GPU-3f2a9c41-b7d6-4e05-a1c8-e97f00112233"
    said = formatting.whole_identifiers(f"<b> of {uuid} and {uuid[4:]}.")
    assert said == f'&lt;b&gt; of <span class="name">{uuid}</span> and <span class="name">{uuid[4:]}</span>.'
    assert formatting.whole_identifiers("2026-11-23 & more") == "2026-11-23 &amp; more"
