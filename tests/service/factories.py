"""Rows as workers make them, with times that the test chooses; results of every kind; shapes to predict from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from sqlalchemy.orm import Session

from tilewright.kernels.family import Family
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.service.operations import registry
from tilewright.service.operations.best.tables import publish_job_table
from tilewright.service.operations.exchange.rows import device_model_id
from tilewright.service.operations.jobs.record_trial import configuration_hash
from tilewright.service.store import models
from tilewright.service.store.session import session_scope
from tilewright.tuner.devices.device import DeviceModel, Environment
from tilewright.tuner.families.cover import Span
from tilewright.tuner.families.table import Table
from tilewright.tuner.outcome import Outcome

LIMITS = Limits(compute_capability=(9, 0), multiprocessors=132, memory_bytes=141 * 10**9, max_shared_bytes=232_448)
H200 = DeviceModel("nvidia-h200", "NVIDIA H200", "cuda", LIMITS, 50 * 2**20, {"float32": 66_900.0}, 4_800.0)
H100 = replace(H200, slug="nvidia-h100", name="NVIDIA H100", limits=replace(LIMITS, multiprocessors=114))
T4 = replace(
    H200, slug="nvidia-t4", name="Tesla T4", limits=replace(LIMITS, compute_capability=(7, 5), multiprocessors=40)
)
CPU = replace(
    H200,
    slug="cpu:test",
    name="a CPU",
    kind="cpu",
    limits=Limits((0, 0), 1, 16 * 2**30, features=frozenset()),
)
OLD = Environment("570.10", "12.8", "nvrtc", "12.8", "PyCUDA 2026.1", "default")
NEW = Environment("580.159", "13.0", "nvrtc", "13.0", "PyCUDA 2026.1", "default")
SHAPE = {"m": 256, "n": 100, "k": 784}

PROCESSOR = DeviceModel(
    "cpu:test-processor",
    "Test processor",
    "cpu",
    Limits((0, 0), multiprocessors=2, memory_bytes=1 << 30, features=frozenset()),
    1 << 20,
    {},
    None,
)


def register_processor(session: Session) -> None:
    """Its device is CPU-1, whose worker spoke just now; the kernels are registered too."""
    environment = Environment("", "", "g++", "12.2.0", "shim 1", "default")
    registry.register_kernels(session, registry.catalogue())
    registry.register_device(session, PROCESSOR, "CPU-1", "elsewhere", 0, environment)


@dataclass
class Rows:
    """Makes rows in one session; everything it makes is flushed."""

    session: Session
    _numbers: dict[int, int] = field(default_factory=dict)
    _has_kernels: bool = False
    _devices: dict[str, tuple[DeviceModel, Environment, models.Device]] = field(default_factory=dict)

    def device(self, model=H200, environment=NEW, uuid=None) -> models.Device:
        if not self._has_kernels:  # takes longer than all else
            registry.register_kernels(self.session, registry.catalogue())
            self._has_kernels = True
        uuid = uuid or f"GPU-{model.slug}"
        if self._devices.get(uuid, ())[:2] != (model, environment):  # else it is what was registered last
            row = registry.register_device(self.session, model, uuid, "host", 0, environment)
            self._devices[uuid] = model, environment, row
        return self._devices[uuid][2]

    def model_alone(self, model) -> None:
        """The model as an import brings it: without a device."""
        device_model_id(self.session, model.slug, model)

    def study(self, shape=SHAPE, *, model=H200, environment=NEW, kernel="gemm", dtype="float32", options=None):
        device = self.device(model, environment)
        declared = registry.catalogue().get(kernel)
        problem = registry.problem_row(self.session, declared.problem(shape, dtype, options))
        study = models.Study(
            problem_id=problem.id,
            device_model_id=device.model_id,
            environment_id=device.environment_id,
            space_hash="of the test",
            space_size=100,
        )
        return self._add(study), problem, device

    def job(self, problem, device, study=None, state=models.JobState.DONE, trials_done=1) -> models.TuningJob:
        return self._add(
            models.TuningJob(
                problem_id=problem.id,
                device_model_id=device.model_id,
                study_id=study.id if study else None,
                queue="model:test",
                budget_trials=10,
                state=state,
                phase="finished" if state == models.JobState.DONE else "searching",
                trials_done=trials_done,
            )
        )

    def trial(self, study, job, configuration: Configuration, time_ms=None, *, outcome=Outcome.MEASURED, source=None):
        kernel = registry.catalogue().get("gemm")
        variant_id = registry.kernel_variant_ids(self.session, kernel)[configuration.variant]
        if source is not None:
            old = models.KernelVariant(
                kernel_id=self.session.get_one(models.KernelVariant, variant_id).kernel_id,
                name=configuration.variant,
                source_hash="0" * 64,
                source=source,
            )
            variant_id = self._add(old).id
        number = self._numbers.get(study.id, 0)
        self._numbers[study.id] = number + 1
        job.revision += 1
        return self._add(
            models.Trial(
                study_id=study.id,
                number=number,
                job_id=job.id,
                job_revision=job.revision,
                epoch=0,
                kernel_variant_id=variant_id,
                configuration=configuration.as_json(),
                configuration_hash=configuration_hash(kernel, configuration) + json.dumps(source)[:8],
                outcome=outcome,
                time_ms=time_ms,
                ranking_l2="warm",
                warm_ms=time_ms,
                gflops=None if time_ms is None else 100 / time_ms,
                gb_per_s=None if time_ms is None else 10 / time_ms,
            )
        )

    def best(
        self, shape=SHAPE, time_ms=1.0, *, configuration=None, library_ms=None, source=None, **of
    ) -> models.BestConfiguration:
        """The best of a study of its own; `of` goes to `study`."""
        study, problem, device = self.study(shape, **of)
        job = self.job(problem, device, study)
        trial = self.trial(study, job, configuration or TILED_16, time_ms, source=source)
        return self._add(
            models.BestConfiguration(
                problem_id=problem.id,
                device_model_id=study.device_model_id,
                environment_id=study.environment_id,
                trial_id=trial.id,
                job_id=job.id,
                time_ms=time_ms,
                ci_low_ms=time_ms * 0.99,
                ci_high_ms=time_ms * 1.01,
                l2="warm",
                gflops=100 / time_ms,
                gb_per_s=10 / time_ms,
                default_ms=time_ms * 2,
                slowest_ms=time_ms * 5,
                library_name="cuBLAS 13.0" if library_ms else None,
                library_ms=library_ms,
                library_faster=library_ms < time_ms if library_ms else None,
            )
        )

    def table(self, shape, spans, times, *, model=H200, environment=NEW, library_ms=None, options=None, **more) -> int:
        """The id of gemm's table: `spans` as (low, high, configuration), `times` in ms by configuration and size."""
        device, declared = self.device(model, environment), registry.catalogue().get("gemm")
        family = Family.of(declared, shape, options=options)
        made = Table(
            family,
            model.slug,
            environment,
            tuple(Span(*span) for span in spans),
            times,
            library_ms or {},
            "cuBLAS 13.0" if library_ms else None,
            {number: [low, high] for number, (low, high, *_) in enumerate(spans)},
            trials=len(times),
            compilations=len(times),
            seconds=1.0,
            **more,
        )
        job = self.job(registry.problem_row(self.session, family), device)
        document = json.loads(json.dumps(made.as_json(declared)))
        return publish_job_table(self.session, job, device.environment_id, document)

    def trial_of(self, best) -> models.Trial:
        return self.session.get_one(models.Trial, best.trial_id)

    def _add(self, row):
        self.session.add(row)
        self.session.flush()
        return row


TILED_16 = Configuration.of("tiled", {"TILE_WIDTH": 16})
TILED_32 = Configuration.of("tiled", {"TILE_WIDTH": 32})
NAIVE = Configuration.of("naive", {"BLOCK_X": 32, "BLOCK_Y": 8})


WIDE = {"TILE_M": 64, "TILE_N": 64, "TILE_K": 16, "WPT_M": 4, "WPT_N": 4, "VECTOR_WIDTH": 4, "MIN_BLOCKS": 1}


def commit_every_best():
    """Writes them."""
    with session_scope() as session:
        rows = Rows(session)
        rows.trial_of(rows.best(library_ms=3.0)).pack_ms = 0.012
        rows.best(SHAPE | {"m": 512}, environment=OLD, time_ms=1 / 3)
        rows.best(SHAPE | {"m": 512}, environment=NEW, time_ms=0.7)
        rows.best(SHAPE | {"m": 300}, source="an older source")
        rows.best({"m": 1024, "n": 1024, "k": 1024}, configuration=Configuration.of("wpt", WIDE))
        rows.best({"m": 2048, "n": 2048, "k": 2048}, configuration=TILED_32)
        rows.best(options={"accuracy": "fp32-fma", "trans_b": True})
        rows.best(SHAPE | {"n": 7}, dtype="float64")
        rows.best(SHAPE, model=H100, time_ms=1e-7)
        rows.best(SHAPE | {"m": 9}, model=CPU)


def tune_four(rows):
    """Enough tuned shapes to predict from; the bests, whose configuration is the fastest of each."""
    tried = [Configuration.of("naive", {"BLOCK_X": x, "BLOCK_Y": y}) for x in (16, 32, 64) for y in (2, 4, 8)]
    bests = [rows.best(SHAPE | {"m": m}, time_ms=m / 100) for m in (256, 512, 1024, 2048)]
    for best in bests:
        trial = rows.trial_of(best)
        study = rows.session.get_one(models.Study, trial.study_id)
        job = rows.session.get_one(models.TuningJob, trial.job_id)
        for place, configuration in enumerate(tried):
            rows.trial(study, job, configuration, 2 * best.time_ms + place / 50)
    return bests
