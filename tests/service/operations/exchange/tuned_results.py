"""Studies as workers leave them, with times that the test chooses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from found import find_best
from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.service.operations import registry
from tilewright.service.operations.exchange.import_document import import_document
from tilewright.service.operations.exchange.incoming import ImportOptions
from tilewright.service.operations.exchange.report import ImportAnswer, Reason
from tilewright.service.operations.jobs.record_trial import configuration_hash
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.service.store.models import JobState
from tilewright.tuner.devices.device import DeviceModel, Environment
from tilewright.tuner.outcome import Outcome

LIMITS = Limits(compute_capability=(9, 0), multiprocessors=132, memory_bytes=1 << 30, max_shared_bytes=232_448)
MODEL = DeviceModel("test-gpu", "Test GPU", "cuda", LIMITS, 50 << 20, {"float32": 60_000.0}, 4000.0)
ENVIRONMENT = Environment("580.1", "13.0", "nvrtc", "13.0.88", "PyCUDA 2026.1", "default")
SHAPE = {"m": 64, "n": 48, "k": 80}
WIDTHS = (8, 16, 32)
VERIFIED = datetime(2026, 11, 20, 12, tzinfo=UTC)


@dataclass
class Results:
    """Writes rows in one session; everything is flushed."""

    session: Session

    def device(self) -> models.Device:
        registry.register_kernels(self.session, registry.catalogue())
        return registry.register_device(self.session, MODEL, "GPU-1", "host-a", 0, ENVIRONMENT)

    def tune(
        self,
        shape: dict[str, int] = SHAPE,
        best_ms: float = 0.5,
        bound_ratio: float | None = 0.25,
        best: Configuration | None = None,
        dtype: str = "float32",
    ):
        """A study with three measured trials, of `tiled` or the first of them `best`, two failed ones, and its best."""
        device = self.device()
        kernel = registry.catalogue().get("gemm")
        problem = registry.problem_row(self.session, kernel.problem(shape, dtype))
        study = models.Study(
            problem_id=problem.id,
            device_model_id=device.model_id,
            environment_id=device.environment_id,
            space_hash="s",
            space_size=1234,
            next_number=5,
        )
        self._add(study)
        job = models.TuningJob(
            problem_id=problem.id,
            device_model_id=device.model_id,
            study_id=study.id,
            queue="model:test",
            budget_trials=5,
            state=JobState.DONE,
            phase="finished",
            trials_done=5,
        )
        self._add(job)
        measured = [Configuration.of("tiled", {"TILE_WIDTH": width}) for width in WIDTHS]
        measured[0] = best or measured[0]
        trials = [self._trial(study, job, place, one, best_ms * (1 + place)) for place, one in enumerate(measured)]
        naive = [Configuration.of("naive", {"BLOCK_X": 32, "BLOCK_Y": y}) for y in (4, 8)]
        self._trial(study, job, 3, naive[0], None, Outcome.LAUNCH_FAILED)
        self._trial(study, job, 4, naive[1], None, Outcome.TIMED_OUT)
        row = models.BestConfiguration(
            problem_id=problem.id,
            device_model_id=device.model_id,
            environment_id=device.environment_id,
            trial_id=trials[0].id,
            job_id=job.id,
            time_ms=best_ms,
            ci_low_ms=best_ms * 0.99,
            ci_high_ms=best_ms * 1.01,
            l2="warm",
            gflops=1.0,
            gb_per_s=1.0,
            default_ms=2 * best_ms,
            slowest_ms=3 * best_ms,
            library_name="cuBLAS 13.0",
            library_ms=1.1 * best_ms,
            library_faster=False,
            library_bound_ratio=0.5,
            bound_ratio=bound_ratio,
            verified_at=VERIFIED,
        )
        return self._add(row)

    def _trial(self, study, job, number, configuration, time_ms, outcome=Outcome.MEASURED):
        kernel = registry.catalogue().get("gemm")
        samples = None if time_ms is None else [time_ms] * 3
        return self._add(
            models.Trial(
                study_id=study.id,
                number=number,
                job_id=job.id,
                job_revision=number + 1,
                epoch=0,
                kernel_variant_id=registry.kernel_variant_ids(self.session, kernel)[configuration.variant],
                configuration=configuration.as_json(),
                configuration_hash=configuration_hash(kernel, configuration),
                outcome=outcome,
                time_ms=time_ms,
                ranking_l2="warm",
                warm_ms=time_ms,
                warm_samples_ms=samples,
                bound_ratio=None if time_ms is None else 0.25,
                compile_ms=100.0,
                pack_ms=None if time_ms is None else 0.012,
                registers=32,
            )
        )

    def current(self) -> list[models.BestConfiguration]:
        table = models.BestConfiguration
        is_current = (table.superseded_by_id.is_(None), table.retracted_at.is_(None))
        return list(self.session.scalars(select(table).where(*is_current).order_by(table.id)))

    def _add(self, row):
        self.session.add(row)
        self.session.flush()
        return row


LAB = ImportOptions(origin="lab-7")


def take(document: Any, *, dry_run: bool = False, target: ImportOptions = LAB) -> ImportAnswer:
    return import_document(json.dumps(document).encode(), target, dry_run=dry_run)


def best(shape=SHAPE):
    with transaction() as session:
        return find_best(session, "gemm", MODEL.slug, shape)


def pointers(answer: ImportAnswer, reason: Reason) -> list[str]:
    return [row.pointer for row in answer.rows if row.reason is reason]
