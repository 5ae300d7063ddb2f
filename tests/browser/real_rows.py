"""Rows from measurements that were really made: exported H200 results, and recorded trials of this or other tuners."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from exported import EARLIER, KERNELS, MAIN_JOB, Settled, device_model, settled_by_kernels, settled_by_main_job
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from tilewright.kernels.problem import Limits
from tilewright.service.operations import registry
from tilewright.service.store import models
from tilewright.tuner import roofline
from tilewright.tuner.devices.device import DeviceModel, Environment
from tilewright.tuner.recorded.recordings import Recording, read_recording

ROOT = Path(__file__).parents[2]
NOT_KEPT = "// not kept"
NOT_KEPT_HASH = hashlib.sha256(NOT_KEPT.encode()).hexdigest()
CPU_GEMM = ROOT / "tests" / "data" / "gemm_cpu.json.gz"
CONVOLUTION = ROOT / "tests" / "data" / "convolution_a100.json.gz"
CPU = DeviceModel("cpu:recorded", "a CPU", "cpu", Limits((0, 0), 1, 16 * 2**30, features=frozenset()), 0, {}, None)
CPU_ENVIRONMENT = Environment("", "", "gcc", "12", "ctypes", "default")
# What every A100 has; the recording does not tell which one it was, so no peaks and no roofline.
A100 = DeviceModel(
    "nvidia-a100",
    "NVIDIA A100",
    "cuda",
    Limits((8, 0), 108, 40 * 2**30, max_shared_bytes=163 * 1024, shared_bytes_per_multiprocessor=164 * 1024),
    40 * 2**20,
    datasheet_gflops={},
    datasheet_gb_per_s=None,
)
RECORDED_IN = Environment("", "11", "nvcc", "11", "recorded", "default")
ORIGIN = "benchmark_hub 8eeb99e"
RECORDED_AT = datetime(2026, 11, 21, tzinfo=UTC)
"""Recordings do not say when; nobody is at work there now."""


def variant_id(session: Session, kernel: str, variant: str, source_hash: str | None = None) -> int:
    """The variant's row with that source, by default its newest; made where there is none: the text is not kept."""
    table = models.KernelVariant
    kernel_id = session.scalars(select(models.Kernel.id).where(models.Kernel.name == kernel)).one()
    query = select(table.id).where(table.kernel_id == kernel_id, table.name == variant).order_by(table.id.desc())
    if source_hash is not None:
        query = query.where(table.source_hash == source_hash)
    found = session.scalars(query.limit(1)).one_or_none()
    if found is not None:
        return found
    row = table(kernel_id=kernel_id, name=variant, source=NOT_KEPT, source_hash=source_hash or NOT_KEPT_HASH)
    session.add(row)
    session.flush()
    return row.id


def fill(session: Session, convolution: Path = CONVOLUTION, *, with_cpu: bool = True) -> tuple[int | None, int]:
    """All of it; the ids of the study on a CPU, and of the one that another tuner's recording brought in."""
    filler = Filler(session)
    filler.h200()
    recorded = replace(read_recording(convolution), kernel="convolution")
    imported = filler.recording(recorded, A100, RECORDED_IN, origin=ORIGIN)
    if not with_cpu:
        return None, imported
    on_cpu = read_recording(CPU_GEMM)
    return filler.recording(on_cpu, replace(CPU, name=on_cpu.device_name), CPU_ENVIRONMENT), imported


class Filler:
    """Adds studies with their trials, in one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._variants: dict[tuple[str, str, str | None], int] = {}
        self._trials: dict[tuple[int, str], models.Trial] = {}
        registry.register_kernels(session, registry.catalogue())

    def device(self, model: DeviceModel, environment: Environment, host: str) -> models.Device:
        return registry.register_device(self.session, model, f"GPU-{model.slug}", host, 0, environment)

    def study(self, problem: models.Problem, device: models.Device, environment_id: int, size: int, **of):
        """The study, made where there is none, and a job of its own; `of` holds other columns of the job."""
        key = {"problem_id": problem.id, "device_model_id": device.model_id, "environment_id": environment_id}
        study = self.session.scalars(select(models.Study).filter_by(**key)).one_or_none()
        if study is None:
            dated = {"created_at": of["created_at"]} if "created_at" in of else {}
            study = models.Study(**key, space_hash="recorded", space_size=size, next_number=0, **dated)
            self.session.add(study)
            self.session.flush()
        job = models.TuningJob(
            problem_id=problem.id,
            device_model_id=device.model_id,
            study_id=study.id,
            queue="model:recorded",
            state=models.JobState.DONE,
            phase="finished",
            **{"budget_trials": size, **of},
        )
        self.session.add(job)
        self.session.flush()
        return study, job

    def trial(self, study, job, kernel: str, configuration: dict, *, outcome="measured", source_hash=None, **of):
        """One trial, that of before where another job has had it; `of` holds its other columns."""
        job.revision += 1
        source = (kernel, configuration["variant"], source_hash)
        if source not in self._variants:
            self._variants[source] = variant_id(self.session, *source)
        said = json.dumps([configuration, source_hash], sort_keys=True)
        configuration_hash = hashlib.sha256(said.encode()).hexdigest()
        if (study.id, configuration_hash) in self._trials:
            return self._trials[study.id, configuration_hash]
        row = models.Trial(
            study_id=study.id,
            number=study.next_number,
            job_id=job.id,
            job_revision=job.revision,
            epoch=0,
            kernel_variant_id=self._variants[source],
            configuration=configuration,
            configuration_hash=configuration_hash,
            outcome=outcome,
            ranking_l2="warm",
            **of,
        )
        study.next_number += 1
        self.session.add(row)
        self._trials[study.id, configuration_hash] = row
        return row

    def main_job(self, path: Path = MAIN_JOB) -> None:
        """The exported H200 results of the main job."""
        document = json.loads(path.read_text(encoding="utf-8"))
        self.settled(device_model(document["device_model"]), settled_by_main_job(path))

    def h200(self) -> None:
        """All exported H200 results; of one problem the later supersede the earlier."""
        model = device_model(json.loads(KERNELS.read_text(encoding="utf-8"))["device_model"])
        self.settled(model, [*settled_by_main_job(EARLIER), *settled_by_main_job(), *settled_by_kernels()])

    def settled(self, model: DeviceModel, winners: Iterable[Settled]) -> None:
        """Studies with the trials that were kept, and the winners as the best configurations."""
        for won in sorted(winners, key=lambda won: won.verified_at):
            device = self.device(model, won.environment, "gpu-host")
            device.heartbeat_at = device.worker_started_at = won.verified_at  # nobody is at work there now
            declared = registry.catalogue().get(won.kernel)
            problem = registry.problem_row(self.session, declared.problem(won.shape, won.dtype, won.options))
            when = {"created_at": won.verified_at, "finished_at": won.verified_at}
            study, job = self.study(
                problem, device, device.environment_id, won.space_size, budget_trials=won.tried, **when
            )
            for kept in won.trials:
                columns = {name: value for name, value in kept.items() if name != "configuration"}
                trial = self.trial(
                    *(study, job, won.kernel, kept["configuration"]),
                    source_hash=won.source_hash,
                    **{"warm_ms": kept["time_ms"], "created_at": won.verified_at, **columns},
                )
                if kept["configuration"] == won.configuration:
                    winner = trial
            self.session.flush()
            job.result, job.trials_done, job.elapsed_s = won.result, won.tried, won.search_s
            self._best(won, study, job, winner)

    def _best(self, won: Settled, study, job, winner) -> None:
        """The best configuration, in the place of the one before."""
        table = models.BestConfiguration
        key = {name: getattr(study, name) for name in ("problem_id", "device_model_id", "environment_id")}
        before = self.session.scalars(select(table).filter_by(**key, superseded_by_id=None)).one_or_none()
        next_id = self.session.scalar(text("SELECT nextval('best_configurations_id_seq')"))
        if before is not None:
            before.superseded_by_id = next_id
            self.session.flush()
        row = table(id=next_id, **key, trial_id=winner.id, job_id=job.id, verified_at=won.verified_at, **won.best)
        self.session.add(row)
        self.session.flush()

    def recording(
        self, read: Recording, model: DeviceModel, environment: Environment, *, origin: str | None = None
    ) -> int:
        """The study of a recording, in the order in which it was recorded; a foreign kernel is declared as it is."""
        known = select(models.Device).join(models.Device.model).where(models.DeviceModel.slug == model.slug)
        device = self.session.scalars(known.limit(1)).one_or_none() or self.device(model, environment, "recorded")
        device.heartbeat_at = device.worker_started_at = min(device.heartbeat_at, RECORDED_AT)
        environment_id = registry.environment_row(self.session, environment).id
        problem = self._problem(read)
        study, job = self.study(problem, device, environment_id, len(read.entries))
        if origin is not None:  # an import brings no device
            self.session.get_one(models.Environment, environment_id).origin = origin
            self.session.delete(device)
        for configuration, entry in read.entries.items():
            samples = next(iter(entry.samples_ms.values()), ())
            time_ms = sorted(samples)[len(samples) // 2] if samples else None
            compile_s = (entry.compile_ms or 0.0) / 1e3
            self.trial(
                study,
                job,
                read.kernel,
                configuration.as_json(),
                outcome=entry.outcome,
                time_ms=time_ms,
                warm_ms=time_ms,
                **self._rates(read, time_ms),
                wall_s=compile_s + sum(samples) / 1e3,
                log=entry.log,
                compile_ms=entry.compile_ms,
            )
        job.trials_done = len(read.entries)
        self.session.flush()
        return study.id

    @staticmethod
    def _rates(read: Recording, time_ms: float | None) -> dict[str, float]:
        """GFLOP/s and GB/s of a kernel that is ours; of others nobody knows the work."""
        declared = registry.catalogue().by_name.get(read.kernel)
        if declared is None or time_ms is None:
            return {}
        problem = declared.problem(read.shape, read.dtype, read.options)
        return {
            "gflops": roofline.gflops(declared.flops(problem), time_ms),
            "gb_per_s": roofline.gb_per_s(declared.bytes_moved(problem), time_ms),
        }

    def _problem(self, read: Recording) -> models.Problem:
        if read.kernel in registry.catalogue().by_name:
            declared = registry.catalogue().get(read.kernel)
            return registry.problem_row(self.session, declared.problem(read.shape, read.dtype, read.options))
        axes = list(read.shape)
        example = dict(read.shape)
        declaration = {
            "axes": axes,
            "doc": "Recorded elsewhere.",
            "example_shape": example,
            "options": [],
            "variants": [],
        }
        kernel = models.Kernel(
            name=read.kernel, declaration=declaration | {"dtypes": [read.dtype], "ranking_l2": "warm"}
        )
        self.session.add(kernel)
        self.session.flush()
        problem = models.Problem(
            hash=f"recorded {read.kernel} {example}", kernel_id=kernel.id, shape=example, dtype=read.dtype, options={}
        )
        self.session.add(problem)
        self.session.flush()
        variant_id(self.session, read.kernel, "recorded")
        return problem
