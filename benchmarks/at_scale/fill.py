"""Fills a database as years of tuning would: every trial is one of a recording, with its configuration and its times.

Of the problems `hot` are tuned on every device model, with most of the trials; the others are cold: tuned once, on one
model each, of which the first have most. Device models are named `synthetic-0001` and so on: none of them exists.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.service.operations import registry
from tilewright.service.operations.best.answer import BestQuery
from tilewright.service.operations.jobs.record_trial import configuration_hash
from tilewright.service.operations.staleness.standing import source_keys
from tilewright.service.store import session as store_session
from tilewright.tuner.devices.device import DeviceModel, Environment
from tilewright.tuner.loop.statistics import spread
from tilewright.tuner.recorded.recordings import Entry, read_recording

RECORDING = Path(__file__).parents[1] / "recordings" / "gemm_register_2048x2048x2048_nvidia-h200.json.gz"
LIMITS = Limits((9, 0), 132, 141 * 10**9, max_shared_bytes=232_448, shared_bytes_per_multiprocessor=233_472)
ENVIRONMENT = Environment("580.0 (synthetic)", "13.0", "nvrtc", "13.0", "none", "default")
VARIANT = "register"
POOL = 2000
PROBES = ({"m": 16, "n": 256, "k": 256}, {"m": 8192, "n": 8192, "k": 8192}, {"m": 777, "n": 1040, "k": 4096})
"""A recorded configuration is used if all of these shapes admit it; so do then, in all likelihood, those between."""
CHUNK = 20_000
"""Studies of one transaction."""
SETTLED = "SET LOCAL session_replication_role = replica; SET LOCAL synchronous_commit = off"
"""No foreign key is checked and nobody is notified: nothing listens yet, and ours fit."""

COPY_PROBLEMS = "COPY problems (id, hash, kernel_id, shape, dtype, options) FROM STDIN"
PLAN = """
CREATE UNLOGGED TABLE scale_pool (place int PRIMARY KEY, configuration jsonb, hash text, time_ms float8,
    spread_ms float8, samples_ms float8[], compile_ms float8);
CREATE UNLOGGED TABLE scale_plan (study_id int PRIMARY KEY, problem_id int, device_model_id int, trials int, begin int,
    job_id uuid, ended_at timestamptz)
"""
PLANNED = """
INSERT INTO scale_plan
SELECT row_number() OVER (), problem_id, model_id, trials, (random() * (%(pool)s - 1))::int, NULL, NULL FROM (
    SELECT p.id AS problem_id, m.id AS model_id, %(hot_trials)s AS trials
    FROM problems p CROSS JOIN device_models m WHERE p.id <= %(hot)s
    UNION ALL
    SELECT p.id, 1 + floor(%(models)s * power(random(), 3))::int, %(cold_trials)s
    FROM problems p WHERE p.id > %(hot)s
) AS both_kinds ORDER BY random()
"""
DATED = """
UPDATE scale_plan SET ended_at = now() - age, job_id = uuidv7(-age)
FROM (SELECT study_id AS id, interval '365 days' * (1.001 - study_id::float8 / (SELECT count(*) FROM scale_plan)) AS age
      FROM scale_plan) AS aged WHERE aged.id = study_id
"""
ROWS = """
INSERT INTO studies (id, problem_id, device_model_id, environment_id, next_number, space_hash, space_size,
    space_by_source, created_at)
SELECT study_id, problem_id, device_model_id, %(environment)s, trials, 'synthetic', 1000, %(space_by_source)s, ended_at
FROM scale_plan WHERE study_id > %(after)s AND study_id <= %(to)s;
INSERT INTO tuning_jobs (id, problem_id, device_model_id, study_id, queue, budget_trials, state, phase, trials_done,
    elapsed_s, epoch, revision, state_revision, worker, coalesce_hash, result, created_at, started_at, finished_at)
SELECT job_id, problem_id, device_model_id, study_id, 'synthetic', trials, 'done', 'finished', trials, trials, 1,
    trials + 4, trials + 4, 'no-host:1:cuda:0', md5(study_id::text), jsonb_build_object('stopped_by', 'trials', 'best',
    jsonb_build_object('configuration', c.configuration, 'time_ms', c.time_ms), 'finalists', jsonb_build_array(
    jsonb_build_object('configuration', c.configuration, 'time_ms', c.time_ms, 'ties', false)), 'published', true),
    ended_at, ended_at, ended_at
FROM scale_plan JOIN scale_pool c ON c.place = begin WHERE study_id > %(after)s AND study_id <= %(to)s;
WITH added AS (INSERT INTO trials (study_id, number, job_id, epoch, job_revision, device_id, kernel_variant_id,
    configuration, configuration_hash, outcome, time_ms, ranking_l2, warm_ms, warm_spread_ms, warm_samples_ms,
    gflops, gb_per_s,
    registers, shared_bytes, spill_bytes, occupancy, bound_ratio, compile_ms, clock_mhz, temperature_c, started_s,
    wall_s, created_at)
SELECT study_id, number, job_id, 1, number + 3, device_model_id, %(variant)s, c.configuration, c.hash, 'measured',
    c.time_ms, 'warm', c.time_ms, c.spread_ms, c.samples_ms, 17.2 / c.time_ms, 50 / c.time_ms, 128, 33280, 0, 0.25, 0.1,
    c.compile_ms, 1980, 45, number, 1, ended_at
FROM scale_plan CROSS JOIN generate_series(0, trials - 1) AS number
JOIN scale_pool c ON c.place = (begin + number) %% %(pool)s WHERE study_id > %(after)s AND study_id <= %(to)s
RETURNING id, study_id, time_ms, gflops, gb_per_s)
INSERT INTO best_configurations (problem_id, device_model_id, environment_id, trial_id, job_id, time_ms, ci_low_ms,
    ci_high_ms, l2, gflops, gb_per_s, roof_ratio, default_ms, slowest_ms, library_name, library_ms, library_faster,
    bound_ratio, verified_at)
SELECT DISTINCT ON (p.study_id) p.problem_id, p.device_model_id, %(environment)s, t.id, p.job_id, t.time_ms,
    t.time_ms * 0.99, t.time_ms * 1.01, 'warm', t.gflops, t.gb_per_s, 0.6, t.time_ms * 2.1, t.time_ms * 17,
    'none (synthetic)', t.time_ms * 1.05, false, 0.1, p.ended_at
FROM added t JOIN scale_plan p USING (study_id) ORDER BY p.study_id, t.time_ms
"""


INDEXES = """
SELECT c.conname, pg_get_constraintdef(c.oid), i.relname, pg_get_indexdef(x.indexrelid)
FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid LEFT JOIN pg_constraint c ON c.conindid = i.oid
WHERE x.indrelid = 'trials'::regclass AND NOT x.indisprimary
"""


@dataclass(frozen=True)
class Sizes:
    """How much there is."""

    trials: int
    problems: int
    models: int
    hot: int  # problems that are tuned on every model

    @property
    def cold_trials(self) -> int:
        """Trials of a cold study: half of all trials are of cold ones."""
        return max(1, self.trials // 2 // (self.problems - self.hot))

    @property
    def hot_trials(self) -> int:
        """Trials of a hot study."""
        cold = self.cold_trials * (self.problems - self.hot)
        return max(1, (self.trials - cold) // (self.hot * self.models))


def slug(number: int) -> str:
    """Of a device model, from 1 on."""
    return f"synthetic-{number:04d}"


def device_model(number: int) -> DeviceModel:
    """A GPU that nobody makes."""
    limits = replace(LIMITS, multiprocessors=60 + number % 120)
    return DeviceModel(slug(number), f"Synthetic GPU {number}", "cuda", limits, 50 * 2**20, {"float32": 6.69e4}, 4800.0)


def recorded() -> list[tuple[Configuration, Entry]]:
    """Configurations of `gemm` that all PROBES admit, as they were measured on an H200."""
    kernel = catalogue().get("gemm")
    asked = [BestQuery(kernel, kernel.problem(shape), "", LIMITS) for shape in PROBES]
    entries = read_recording(RECORDING).entries.items()
    ours = ((Configuration(VARIANT, configuration.items), entry) for configuration, entry in entries)
    fitting = ((one, entry) for one, entry in ours if all(query.is_member(one) for query in asked))
    return [pair for pair, _ in zip(fitting, range(POOL), strict=False)]


def shapes(sizes: Sizes, seed: int = 1) -> Iterator[dict[str, int]]:
    """Distinct ones, the hot ones first."""
    chance, seen = random.Random(seed), set[tuple[int, int, int]]()
    while len(seen) < sizes.problems:
        step, most = (256, 32) if len(seen) < sizes.hot else (16, 512)
        size = (chance.randint(16, 8192), step * chance.randint(1, most), step * chance.randint(1, most))
        if size not in seen:
            seen.add(size)
            yield dict(zip("mnk", size, strict=True))


def fill(url: str, sizes: Sizes) -> None:
    """Everything; says on stderr how far it is."""
    kernel, pool = catalogue().get("gemm"), recorded()
    facts = _registered(sizes) | {"pool": len(pool)}
    with psycopg.connect(url) as connection:
        connection.execute(SETTLED)
        connection.execute(PLAN)
        _copy_pool(connection, kernel, pool)
        _copy_problems(connection, kernel, shapes(sizes))
        counts = {"hot": sizes.hot, "models": sizes.models}
        trials = {"hot_trials": sizes.hot_trials, "cold_trials": sizes.cold_trials}
        connection.execute(PLANNED, {**facts, **counts, **trials})
        connection.execute(DATED)
        (studies,) = connection.execute("SELECT count(*) FROM scale_plan").fetchone() or (0,)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ANALYZE scale_plan, scale_pool")
        again = _dropped(connection)
        _fill_studies(connection, facts, studies)
        for statement in again:
            say(statement)
            connection.execute(statement)
        for table in ("problems", "studies"):
            connection.execute(f"SELECT setval('{table}_id_seq', (SELECT max(id) FROM {table}))")  # noqa: S608 - both names are above
        connection.execute("DROP TABLE scale_plan, scale_pool")


def _fill_studies(connection: Any, facts: Mapping[str, Any], studies: int) -> None:
    began = time.monotonic()
    for after in range(0, studies, CHUNK):
        with connection.transaction():
            connection.execute(SETTLED)
            connection.execute("SET LOCAL work_mem = '128MB'")
            for statement in ROWS.split(";\n"):
                connection.execute(statement, {**facts, "after": after, "to": after + CHUNK})
        say(f"filled {min(after + CHUNK, studies)} of {studies} studies: {time.monotonic() - began:.0f} s")


def _dropped(connection: Any) -> list[str]:
    """Drops what is quicker built at the end than kept up with every row; the statements that build it again."""
    again = []
    for constraint, definition, index, made in connection.execute(INDEXES).fetchall():
        if constraint is None:
            connection.execute(f"DROP INDEX {index}")
            again.append(made)
        else:
            connection.execute(f"ALTER TABLE trials DROP CONSTRAINT {constraint}")
            again.append(f"ALTER TABLE trials ADD CONSTRAINT {constraint} {definition}")
    return again


def say(words: str) -> None:
    """On stderr."""
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {words}\n")


def _registered(sizes: Sizes) -> dict[str, Any]:
    """Kernels, device models, and the device of each; the ids that the rows name."""
    kernel = catalogue().get("gemm")
    with store_session.session_scope() as session:
        registry.register_kernels(session, registry.catalogue())
        for number in range(1, sizes.models + 1):
            registry.register_device(session, device_model(number), f"GPU-{slug(number)}", "no-host", 0, ENVIRONMENT)
        return {
            "environment": registry.environment_row(session, ENVIRONMENT).id,
            "variant": registry.kernel_variant_ids(session, kernel)[VARIANT],
            "space_by_source": Jsonb(space_by_source(kernel)),
        }


def space_by_source(kernel: Kernel) -> Mapping[str, int]:
    """As a job would store it for a space of 1000 configurations of one variant."""
    return {key: 1000 if variant == VARIANT else 0 for variant, key in source_keys(kernel).items()}


def _copy_pool(connection: Any, kernel: Kernel, pool: Sequence[tuple[Configuration, Entry]]) -> None:
    with connection.cursor() as cursor, cursor.copy("COPY scale_pool FROM STDIN") as copy:
        for place, (configuration, entry) in enumerate(pool):
            samples = list(entry.samples_ms["warm"])
            digest = configuration_hash(kernel, configuration)
            time_ms = sorted(samples)[len(samples) // 2]
            row = (Jsonb(configuration.as_json()), digest, time_ms, spread(samples), samples, entry.compile_ms)
            copy.write_row((place, *row))


def _copy_problems(connection: Any, kernel: Kernel, every: Iterator[dict[str, int]]) -> None:
    (kernel_id,) = connection.execute("SELECT id FROM kernels WHERE name = %s", (kernel.name,)).fetchone()
    like = kernel.problem(dict.fromkeys("mnk", 1))
    rest = {"dtype": like.dtype, "kernel": kernel.name, "options": dict(like.options)}
    before = json.dumps(rest, sort_keys=True, separators=(",", ":"))[:-1] + ',"shape":'
    options = json.dumps(rest["options"])
    with connection.cursor() as cursor, cursor.copy(COPY_PROBLEMS) as copy:
        for number, shape in enumerate(every, 1):
            # As Problem.hash, which would take minutes for a million of them.
            sizes = f'{{"k":{shape["k"]},"m":{shape["m"]},"n":{shape["n"]}}}'
            digest = hashlib.sha256(f"{before}{sizes}}}".encode()).hexdigest()
            copy.write(f"{number}\t{digest}\t{kernel_id}\t{sizes}\t{like.dtype}\t{options}\n")
