"""Results as a service with three GPU models and a CPU has them: a hundred shapes of gemm, and of other kernels."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from factories import CPU, H100, H200, NAIVE, NEW, OLD, TILED_16, TILED_32, Rows

from tilewright.kernels.space import Configuration
from tilewright.service.operations import registry
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.demand import RequestedProblem
from tilewright.service.store import models
from tilewright.service.store.models import JobState
from tilewright.tuner.outcome import Outcome

A100 = replace(
    H200,
    slug="nvidia-a100",
    name="NVIDIA A100-SXM4-80GB",
    limits=replace(H200.limits, compute_capability=(8, 0), multiprocessors=108),
    datasheet_gflops={"float32": 19_500.0},
    datasheet_gb_per_s=2_039.0,
)
GPUS = (H200, H100, A100)

SHAPES = 100
BEGAN = datetime(2026, 11, 1, tzinfo=UTC)
WIDE = Configuration.of("naive", {"BLOCK_X": 64, "BLOCK_Y": 4})
LONG_JOB = 76
"""The trials of the study that has many."""


def shapes(count: int = SHAPES) -> Iterator[dict[str, int]]:
    """Squares, layers of networks and odd ones, each once."""
    chosen, seen = random.Random(46), set()
    while len(seen) < count:
        sizes = [chosen.choice((64, 128, 256, 512, 784, 1024, 2048, 4096, 8192, 1023, 14336)) for _ in "mnk"]
        if tuple(sizes) not in seen:
            seen.add(tuple(sizes))
            yield dict(zip("mnk", sizes, strict=True))


def fill(rows: Rows, count: int = SHAPES) -> None:
    """All of it. Seven of ten problems are tuned on a model; some are stale, slower than before, or failed."""
    chosen, place = random.Random(7), 0
    for shape in shapes(count):
        for model in GPUS:
            if (chosen.random() if model != H200 else 0.0) > 0.7:
                continue
            place += 1
            if place % 41 == 0:
                study, problem, device = rows.study(shape, model=model)
                rows.job(problem, device, study, JobState.FAILED).error = "the worker died"
                continue
            _tuned(rows, shape, model, place, chosen)
    for m in (512, 1023):
        rows.best({"m": m, "n": m, "k": m}, 40.0, model=CPU, environment=NEW)
    _others(rows)
    _long_study(rows)
    _demand(rows)


def _tuned(rows: Rows, shape: dict[str, int], model, place: int, chosen: random.Random) -> None:
    flops = 2 * shape["m"] * shape["n"] * shape["k"]
    peak = model.datasheet_gflops["float32"] * 1e6  # of operations a millisecond
    share = chosen.uniform(0.35, 0.82)
    time_ms = max(flops / peak / share, 0.004)
    library_ms = time_ms * chosen.choice((0.8, 0.995, 1.0, 1.1, 1.3, 1.6, 2.2))
    of = {"model": model, "library_ms": library_ms, "configuration": chosen.choice((TILED_16, TILED_32, NAIVE))}
    if place % 10 == 0:  # in an older environment too
        best = rows.best(shape, time_ms * chosen.choice((0.8, 0.97, 1.3)), environment=OLD, **of)
        best.verified_at = BEGAN + timedelta(hours=place)
    best = rows.best(shape, time_ms, environment=OLD if place % 6 == 1 else NEW, **of)
    best.roof_ratio, best.gflops, best.bound_ratio = share, flops / time_ms / 1e6, chosen.uniform(0.01, 0.9)
    best.ci_low_ms, best.ci_high_ms = time_ms * 0.998, time_ms * chosen.choice((1.003, 1.004, 1.376))
    best.verified_at = BEGAN + timedelta(days=10, hours=place / 4)
    best.ties = place % 4
    rows.session.flush()


def _others(rows: Rows) -> None:
    for model in GPUS:
        for kernel, shape in (("linear", {"m": 128, "n": 256, "k": 784}), ("softmax", {"m": 512, "n": 1000})):
            study, problem, device = rows.study(shape, model=model, kernel=kernel)
            rows.job(problem, device, study, JobState.DONE)
            rows.job(problem, device, None, JobState.QUEUED, 0)
    study, problem, device = rows.study({"m": 333, "n": 333, "k": 333})
    rows.job(problem, device, study, JobState.CANCELLED)
    rows.job(problem, device, study, JobState.RUNNING, 3)


def _long_study(rows: Rows) -> None:
    """A search of many trials with finals."""
    chosen = random.Random(3)
    best = rows.best({"m": 1000, "n": 1000, "k": 1000}, 0.5, library_ms=0.6, configuration=WIDE)
    trial = rows.trial_of(best)
    study = rows.session.get_one(models.Study, trial.study_id)
    job = rows.session.get_one(models.TuningJob, trial.job_id)
    tried = [(x, y) for x in (8, 16, 32, 64, 128, 256) for y in range(1, 17) if (x, y) != (64, 4)]
    for place, (x, y) in enumerate(chosen.sample(tried, LONG_JOB - 1)):
        is_failed = place % 19 == 18
        time_ms = 0.5 * (1 + abs(x - 64) / 200 + abs(y - 4) / 30) * chosen.uniform(1.01, 1.1)
        rows.trial(
            study,
            job,
            Configuration.of("naive", {"BLOCK_X": x, "BLOCK_Y": y}),
            None if is_failed else time_ms,
            outcome=Outcome.LAUNCH_FAILED if is_failed else Outcome.MEASURED,
        )
    job.trials_done = LONG_JOB


def _demand(rows: Rows) -> None:
    kernel = registry.catalogue().get("gemm")
    asked = [kernel.problem({"m": m, "n": 4096, "k": 4096}) for m in (7, 300, 1)]
    for problem, times in zip(asked, (90, 12, 3), strict=True):
        demand.count(rows.session, {RequestedProblem.of(problem, "nvidia-h200"): times})
