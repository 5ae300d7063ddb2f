"""Rows from measurements that were really made: exported H200 results, and recorded trials of this or other tuners."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.kernels.problem import Limits
from tilewright.service.operations import registry
from tilewright.service.store import models
from tilewright.tuner.device import DeviceModel, Environment
from tilewright.tuner.recordings import Recording

ROOT = Path(__file__).parents[2]
MAIN_JOB = ROOT / "benchmarks" / "results" / "h200" / "main_job.json"
CPU_GEMM = ROOT / "tests" / "data" / "gemm_cpu.json.gz"


def device_model(described: dict) -> DeviceModel:
    """A device model from its JSON."""
    details = described["details"]
    limits = {k: tuple(v) if isinstance(v, list) else v for k, v in details["limits"].items() if k != "features"}
    known = {name: details[name] for name in DeviceModel.__dataclass_fields__ if name in details}
    return DeviceModel(**known | {"limits": Limits(**limits, features=frozenset(details["limits"]["features"]))})


def variant_id(session: Session, kernel: str, variant: str, source: str = "// not kept") -> int:
    """The variant's newest row, made where the kernel has none of that name."""
    table = models.KernelVariant
    kernel_id = session.scalars(select(models.Kernel.id).where(models.Kernel.name == kernel)).one()
    query = select(table.id).where(table.kernel_id == kernel_id, table.name == variant).order_by(table.id.desc())
    found = session.scalars(query.limit(1)).one_or_none()
    if found is not None:
        return found
    row = table(
        kernel_id=kernel_id, name=variant, source=source, source_hash=hashlib.sha256(source.encode()).hexdigest()
    )
    session.add(row)
    session.flush()
    return row.id


class Filler:
    """Adds studies with their trials, in one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        registry.register_kernels(session, registry.catalogue())

    def device(self, model: DeviceModel, environment: Environment, host: str) -> models.Device:
        return registry.register_device(self.session, model, f"GPU-{model.slug}", host, 0, environment)

    def study(self, problem: models.Problem, device: models.Device, environment_id: int, size: int):
        """A study and a job that made it."""
        study = models.Study(
            problem_id=problem.id,
            device_model_id=device.model_id,
            environment_id=environment_id,
            space_hash="recorded",
            space_size=size,
        )
        self.session.add(study)
        self.session.flush()
        job = models.TuningJob(
            problem_id=problem.id,
            device_model_id=device.model_id,
            study_id=study.id,
            queue="model:recorded",
            budget_trials=size,
            state=models.JobState.DONE,
            phase="finished",
        )
        self.session.add(job)
        self.session.flush()
        return study, job

    def trial(self, study, job, kernel: str, number: int, configuration: dict, *, outcome="measured", **of):
        """One trial; `of` holds its other columns."""
        job.revision += 1
        text = json.dumps(configuration, sort_keys=True)
        row = models.Trial(
            study_id=study.id,
            number=number,
            job_id=job.id,
            job_revision=job.revision,
            epoch=0,
            kernel_variant_id=variant_id(self.session, kernel, configuration["variant"]),
            configuration=configuration,
            configuration_hash=hashlib.sha256(text.encode()).hexdigest(),
            outcome=outcome,
            ranking_l2="warm",
            **of,
        )
        self.session.add(row)
        return row

    def main_job(self, path: Path = MAIN_JOB) -> None:
        """The exported H200 results: finalists as trials, the winner as the best configuration."""
        document = json.loads(path.read_text(encoding="utf-8"))
        model = device_model(document["device_model"])
        for row in document["rows"]:
            environment = {k: v for k, v in row["best"]["environment"].items() if k != "origin"}
            if row["compiler"] != environment["compiler"]:
                continue
            device = self.device(model, Environment(**environment), "gpu-host")
            declared = registry.catalogue().get(row["kernel"])
            problem = registry.problem_row(self.session, declared.problem(row["shape"], row["dtype"], None))
            study, job = self.study(problem, device, device.environment_id, row["trials"])
            finalists = {json.dumps(f["configuration"], sort_keys=True): f for f in row["result"]["finalists"]}
            for number, finalist in enumerate(finalists.values()):
                time_ms = finalist["time_ms"]
                trial = self.trial(
                    study, job, row["kernel"], number, finalist["configuration"], time_ms=time_ms, warm_ms=time_ms
                )
                if finalist["configuration"] == row["result"]["best"]["configuration"]:
                    winner = trial
            self.session.flush()
            job.result, job.trials_done, job.elapsed_s = row["result"], row["trials"], row["search_s"]
            self._best(row, study, job, winner)

    def _best(self, row, study, job, winner) -> None:
        result, best = row["result"], row["best"]
        library = result["library"]
        self.session.add(
            models.BestConfiguration(
                problem_id=study.problem_id,
                device_model_id=study.device_model_id,
                environment_id=study.environment_id,
                trial_id=winner.id,
                job_id=job.id,
                time_ms=result["best"]["time_ms"],
                ci_low_ms=result["best"]["ci_ms"][0],
                ci_high_ms=result["best"]["ci_ms"][1],
                l2=best["l2"],
                gflops=best["gflops"],
                gb_per_s=best["gb_per_s"],
                roof_ratio=best["roof_ratio"],
                default_ms=result["default_ms"],
                slowest_ms=result["slowest_ms"],
                library_name=library["name"],
                library_ms=library["time_ms"],
                library_faster=library["faster"],
                ties=result["ties"],
                bound_ratio=best["bound_ratio"],
                verified_at=best["verified_at"],
            )
        )
        self.session.flush()

    def recording(
        self, read: Recording, model: DeviceModel, environment: Environment, *, origin: str | None = None
    ) -> int:
        """The study of a recording, in the order in which it was recorded; a foreign kernel is declared as it is."""
        device = self.device(model, environment, "recorded")
        environment_id = device.environment_id
        if origin is not None:
            self.session.get_one(models.Environment, environment_id).origin = origin
        problem = self._problem(read)
        study, job = self.study(problem, device, environment_id, len(read.entries))
        for number, (configuration, entry) in enumerate(read.entries.items()):
            samples = next(iter(entry.samples_ms.values()), ())
            time_ms = sorted(samples)[len(samples) // 2] if samples else None
            compile_s = (entry.compile_ms or 0.0) / 1e3
            self.trial(
                study,
                job,
                read.kernel,
                number,
                configuration.as_json(),
                outcome=entry.outcome,
                time_ms=time_ms,
                warm_ms=time_ms,
                wall_s=compile_s + sum(samples) / 1e3,
                log=entry.log,
                compile_ms=entry.compile_ms,
            )
        job.trials_done = len(read.entries)
        self.session.flush()
        return study.id

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
