"""Fills a temporary database with synthetic best configurations: legal ones, with times that nobody measured.

They are named as what they are: their device models are `synthetic-01` and so on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import insert, text
from sqlalchemy.orm import Session

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations import registry
from tilewright.service.operations.best.answer import BestQuery
from tilewright.service.operations.jobs.record_trial import configuration_hash
from tilewright.service.store import models
from tilewright.tuner.devices.device import DeviceModel, Environment

KERNEL = "gemm"
MODELS = 50
LIMITS = Limits(compute_capability=(9, 0), multiprocessors=132, memory_bytes=141 * 10**9, max_shared_bytes=232_448)
ENVIRONMENT = Environment("580.0 (synthetic)", "13.0", "nvrtc", "13.0", "none", "default")
SIZES = (1, 8192)
POOL_SHAPE = {"m": 4096, "n": 4096, "k": 4096}
POOL = 1000
"""Configurations drawn for the pool that winners come from; of each shape those are taken that it admits."""

FILL = """
SET LOCAL session_replication_role = replica; -- no foreign keys are checked and nobody is told: nothing listens yet
SET LOCAL synchronous_commit = off;
INSERT INTO studies (problem_id, device_model_id, environment_id, next_number, space_hash, space_size)
SELECT p.id, m.id, :environment, 1, 'synthetic', 1000
FROM picked JOIN problems p ON p.hash = picked.hash CROSS JOIN device_models m WHERE m.slug LIKE 'synthetic-%';
INSERT INTO trials (study_id, number, job_id, epoch, job_revision, kernel_variant_id, configuration, configuration_hash,
    outcome, time_ms, ranking_l2, warm_ms, gflops, gb_per_s, registers, shared_bytes, bound_ratio)
SELECT s.id, 0, :job, 1, 1, v.id, picked.configuration, picked.configuration_hash,
    'measured', t.time_ms, 'warm', t.time_ms, picked.flops / t.time_ms / 1e6, picked.moved / t.time_ms / 1e6,
    128, 0, 0.1
FROM studies s JOIN problems p ON p.id = s.problem_id JOIN picked ON picked.hash = p.hash
JOIN kernel_variants v ON v.name = picked.variant AND v.kernel_id = p.kernel_id
CROSS JOIN LATERAL (
    SELECT picked.time_ms * (0.8 + 0.4 * ((s.device_model_id * 7919 + s.id) % 1000) / 1000.0) AS time_ms) t;
INSERT INTO best_configurations (problem_id, device_model_id, environment_id, trial_id, job_id, time_ms, ci_low_ms,
    ci_high_ms, l2, gflops, gb_per_s, roof_ratio, default_ms, slowest_ms, library_name, library_ms, library_faster,
    ties, bound_ratio, library_bound_ratio)
SELECT s.problem_id, s.device_model_id, s.environment_id, t.id, :job, t.time_ms, t.time_ms * 0.99, t.time_ms * 1.01,
    'warm', t.gflops, t.gb_per_s, 0.6, t.time_ms * 2.1, t.time_ms * 17, 'none (synthetic)', t.time_ms * 1.05, false, 2,
    0.1, 0.2
FROM trials t JOIN studies s ON s.id = t.study_id WHERE s.space_hash = 'synthetic';
"""


@dataclass(frozen=True)
class Filled:
    """The contents of the database: every shape is tuned on every model."""

    models: Sequence[str]
    shapes: Sequence[Mapping[str, int]]

    def __len__(self) -> int:
        return len(self.models) * len(self.shapes)


def fill(session: Session, count: int, seed: int = 1) -> Filled:
    """`count` current best configurations of gemm over MODELS device models; the session is not committed."""
    kernel = catalogue().get(KERNEL)
    registry.register_kernels(session, registry.catalogue())
    slugs = [_register(session, number) for number in range(1, MODELS + 1)]
    picked = list(_winners(kernel, count // MODELS, random.Random(seed)))
    _add_problems(session, picked)
    session.execute(text(_PICKED))
    with session.connection().connection.cursor() as cursor, cursor.copy("COPY picked FROM STDIN") as copy:  # type: ignore[attr-defined]
        for problem, configuration, time_ms in picked:
            copy.write_row(
                (
                    problem.hash,
                    configuration.variant,
                    json.dumps(configuration.as_json()),
                    configuration_hash(kernel, configuration),
                    kernel.flops(problem),
                    kernel.bytes_moved(problem),
                    time_ms,
                )
            )
    session.execute(text("ANALYZE picked"))
    environment = registry.environment_row(session, ENVIRONMENT)
    bound = {"environment": environment.id, "job": _job(session, picked[0][0])}
    for statement in FILL.strip().split(";\n"):
        wanted = {name: value for name, value in bound.items() if f":{name}" in statement}
        session.execute(text(statement.rstrip(";")), wanted)
    return Filled(slugs, [problem.stated_shape for problem, _, _ in picked])


_PICKED = """
CREATE TEMPORARY TABLE picked (hash text, variant text, configuration jsonb, configuration_hash text, flops float8,
    moved float8, time_ms float8) ON COMMIT DROP
"""


def _register(session: Session, number: int) -> str:
    slug = f"synthetic-{number:02d}"
    limits = replace(LIMITS, multiprocessors=LIMITS.multiprocessors - number)
    model = DeviceModel(slug, f"Synthetic GPU {number}", "cuda", limits, 50 * 2**20, {"float32": 66_900.0}, 4_800.0)
    registry.register_device(session, model, f"GPU-{slug}", "no-host", 0, ENVIRONMENT)
    return slug


def _winners(kernel: Kernel, count: int, chance: random.Random) -> Iterator[tuple[Problem, Configuration, float]]:
    """Distinct problems, each with a configuration of its space and the time of its work at 5 to 50 TFLOP/s."""
    space = kernel.space(kernel.problem(POOL_SHAPE), LIMITS)
    pool = [space.feasible[chance.randrange(len(space))] for _ in range(POOL)]
    seen: set[tuple[int, ...]] = set()
    while len(seen) < count:
        sizes = tuple(chance.randint(*SIZES) for _ in kernel.axes)
        if sizes in seen:
            continue
        problem = kernel.problem(dict(zip(kernel.axes, sizes, strict=True)))
        asked = BestQuery(kernel, problem, "", LIMITS)
        tried = (pool[chance.randrange(POOL)] for _ in range(100))
        configuration = next((c for c in tried if asked.is_member(c)), None)
        if configuration is not None:
            seen.add(sizes)
            work = max(kernel.flops(problem), 10**7)
            yield problem, configuration, work / (chance.uniform(5, 50) * 1e9)


def _add_problems(session: Session, picked: Sequence[tuple[Problem, Configuration, float]]) -> None:
    kernel_id = session.execute(text("SELECT id FROM kernels WHERE name = :name"), {"name": KERNEL}).scalar_one()
    rows: list[dict[str, Any]] = [
        {
            "hash": problem.hash,
            "kernel_id": kernel_id,
            "shape": problem.stated_shape,
            "dtype": problem.dtype,
            "options": dict(problem.options),
        }
        for problem, _, _ in picked
    ]
    session.execute(insert(models.Problem), rows)


def _job(session: Session, problem: Problem) -> Any:
    row = registry.problem_row(session, problem)
    job = models.TuningJob(
        problem_id=row.id,
        queue="synthetic",
        budget_trials=1,
        state=models.JobState.DONE,
        phase="finished",
        trials_done=1,
    )
    session.add(job)
    session.flush()
    return job.id
