"""Results as a large installation has them: ten GPU models, two hundred shapes of gemm, trials enough to predict from.

What was measured is invented: times follow the sizes, the device model and each parameter of the configuration.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from factories import H100, H200, NEW, Rows
from sqlalchemy import insert
from three_models import A100, shapes

from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations import registry
from tilewright.service.operations.best.answer import BestQuery
from tilewright.service.operations.jobs.record_trial import configuration_hash
from tilewright.service.store import models
from tilewright.tuner.devices.device import DeviceModel
from tilewright.tuner.outcome import Outcome

KERNEL = "gemm"
VARIANTS = ("naive", "tiled", "wpt")
MANY_SIZES = {"m": 4096, "n": 4096, "k": 4096}
"""The problem from whose space the tried configurations are drawn, of variants that every GPU has."""


def _model(slug: str, capability: tuple[int, int], multiprocessors: int, shared_kib: int, gflops: float) -> DeviceModel:
    limits = replace(
        H200.limits,
        compute_capability=capability,
        multiprocessors=multiprocessors,
        max_shared_bytes=shared_kib * 1024,
        shared_bytes_per_multiprocessor=(shared_kib + 1) * 1024,
    )
    return replace(H200, slug=slug, name=slug, limits=limits, datasheet_gflops={"float32": gflops})


MODELS = (
    H200,
    H100,
    A100,
    _model("nvidia-a10", (8, 6), 72, 99, 31_200.0),
    _model("nvidia-a40", (8, 6), 84, 99, 37_400.0),
    _model("nvidia-l4", (8, 9), 58, 99, 30_300.0),
    _model("nvidia-l40s", (8, 9), 142, 99, 91_600.0),
    _model("nvidia-t4", (7, 5), 40, 64, 8_100.0),
    _model("nvidia-geforce-rtx-4090", (8, 9), 128, 99, 82_600.0),
    _model("nvidia-b200", (10, 0), 148, 227, 74_450.0),
)


@dataclass(frozen=True)
class Size:
    """How much is filled in: of each of these device models that share of the shapes, each with so many trials."""

    models: tuple[DeviceModel, ...] = MODELS
    shapes: int = 200
    trials: int = 40
    tuned: float = 0.7


def fill(rows: Rows, size: Size) -> int:
    """How many shapes of all device models were tuned."""
    chosen, count = random.Random(46), 0
    tried = {model.slug: drawn(model) for model in size.models}
    for place, shape in enumerate(shapes(size.shapes)):
        for model in size.models:
            if place < 4 or chosen.random() < size.tuned:
                tune(rows, shape, model, tried[model.slug], size.trials)
                count += 1
    return count


def tune(rows: Rows, shape: dict[str, int], model: DeviceModel, known: Sequence[Configuration], trials: int) -> None:
    """A study of that shape with its trials, the fastest of which is the best."""
    declared = registry.catalogue().get(KERNEL)
    problem = declared.problem(shape)
    tried = list(_admitted(problem, model.limits, known, trials))
    times = {configuration: time_ms(problem, model, configuration) for configuration in tried}
    winner = min(times, key=times.__getitem__)
    rates = {"library_ms": times[winner] * random.Random(winner.items.__repr__()).choice((0.8, 1.0, 1.3, 1.7))}
    best = rows.best(shape, times[winner], model=model, environment=NEW, configuration=winner, **rates)
    best.gflops = declared.flops(problem) / times[winner] / 1e6
    best.roof_ratio = min(best.gflops / model.datasheet_gflops["float32"], 1.0)
    first, variants = rows.trial_of(best), registry.kernel_variant_ids(rows.session, declared)
    job = rows.session.get_one(models.TuningJob, first.job_id)
    job.trials_done = len(tried)
    shared = {"study_id": first.study_id, "job_id": job.id, "epoch": 0, "outcome": Outcome.MEASURED}
    others = [configuration for configuration in tried if configuration != winner]
    rows.session.execute(
        insert(models.Trial),
        [
            {
                **shared,
                "number": number,
                "job_revision": number + 1,
                "kernel_variant_id": variants[configuration.variant],
                "configuration": configuration.as_json(),
                "configuration_hash": configuration_hash(declared, configuration),
                "time_ms": times[configuration],
                "warm_ms": times[configuration],
                "ranking_l2": "warm",
                "registers": 32 + zlib.crc32(repr(configuration.items).encode()) % 200,
            }
            for number, configuration in enumerate(others, 1)
        ],
    )
    study = rows.session.get_one(models.Study, first.study_id)
    study.next_number = len(tried)
    rows.session.flush()


def time_ms(problem: Problem, model: DeviceModel, configuration: Configuration) -> float:
    """The invented time: what the data sheet allows, and a loss by each parameter that grows to both sides."""
    sizes = dict(problem.sizes)
    floor_ms = 2 * math.prod(sizes.values()) / model.datasheet_gflops["float32"] / 1e6 / 0.8 + 0.003
    loss = 0.0
    for name, value in configuration.items:
        seed = zlib.crc32(f"{configuration.variant} {name} {model.slug}".encode())
        liked = 2 + seed % 5 + 0.15 * math.log2(sizes["m"] * sizes["n"] / sizes["k"])
        loss += 0.04 * abs(math.log2(value + 1) - liked)
    return floor_ms * math.exp(loss) * (1 + zlib.crc32(repr(configuration.items).encode()) % 100 / 4000)


def drawn(model: DeviceModel) -> list[Configuration]:
    """Configurations that this device model admits at the sizes of MANY_SIZES."""
    declared = registry.catalogue().get(KERNEL)
    space = declared.space(declared.problem(MANY_SIZES), model.limits, VARIANTS).feasible
    return [space[place] for place in random.Random(model.slug).sample(range(len(space)), min(600, len(space)))]


def _admitted(problem: Problem, limits: Limits, known: Sequence[Configuration], most: int) -> Iterator[Configuration]:
    """So many of them that this problem admits too."""
    asked = BestQuery(registry.catalogue().get(KERNEL), problem, "", limits)
    return islice(filter(asked.is_member, random.Random(problem.hash).sample(known, len(known))), most)
