"""A job of a family: every size of an axis tuned as one, whose outcome is a table."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from sqlalchemy.orm import Session

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.tables import current_tables, publish_job_table, wrong_anywhere
from tilewright.service.operations.jobs import progress as job_progress
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.models import JobState
from tilewright.service.store.patience import patiently
from tilewright.service.worker.ending import Exit, Preparation, end
from tilewright.tuner.devices.device import Device
from tilewright.tuner.families.limits import FamilyBudget, FamilyHooks, FamilyStoppedError
from tilewright.tuner.families.proposals import shipped_records
from tilewright.tuner.families.tune import tune_family

logger = logging.getLogger(__name__)


class FamilyRun:
    """One epoch of such a job on one opened device. Its trials are counted, not kept: another epoch begins anew."""

    def __init__(
        self, job: models.TuningJob, kernel: Kernel, family: Family, epoch: int, device: Device, stop: threading.Event
    ) -> None:
        self.job, self.kernel, self.family, self.epoch, self.device = job, kernel, family, epoch, device
        self._stop, self._begun_s, self._is_cancelled = stop, time.monotonic(), False

    def settle(self, environment_id: int, preparation: Preparation, first: Sequence[Configuration]) -> Exit:
        """Tunes, stores the table and ends the job; the process's exit. `first`: predicted configurations."""
        starts, barred = patiently(self._known)
        preparation.is_over()
        seconds = self.job.budget_seconds or settings().max_seconds
        budget = FamilyBudget.of_all(self.family, self.job.budget_trials, seconds)
        hooks = FamilyHooks(logger.info, self._count, lambda: self._is_cancelled or self._stop.is_set())
        try:
            table = tune_family(
                self.device,
                self.kernel,
                self.family,
                budget,
                seed=self.job.seed,
                starts=[*starts, *first],
                records=shipped_records(self.kernel, self.family, self.device.model),
                barred=barred,
                hooks=hooks,
            )
        except FamilyStoppedError:
            return self._stopped()
        document = table.as_json(self.kernel)

        def write(session: Session) -> None:
            job = session.get_one(models.TuningJob, self.job.id)
            table_id = publish_job_table(session, job, environment_id, document)
            result = {"stopped_by": None, "table": table_id, "ranges": len(table.spans), "loss": document["loss"]}
            job_progress.end_job(session, job.id, self.epoch, JobState.DONE, result=result)

        end(self.job.id, self.epoch, write)
        return Exit.ENDED

    def _known(self, session: Session) -> tuple[list[Configuration], frozenset[Configuration]]:
        """Configurations to begin with, by the caller's wish and from standing tables; and those known to be wrong."""
        slug = self.device.model.slug
        asked = [Configuration.from_json(start) for start in self.job.starts or ()]
        tables = current_tables(session, [self.family.hash], slug)
        standing = [
            Configuration.of(one["variant"], one["configuration"]) for row in tables for one in row.document["ranges"]
        ]
        return [*asked, *dict.fromkeys(standing)], wrong_anywhere(session, self.kernel, slug)

    def _count(self, trials: int) -> None:
        elapsed_s = time.monotonic() - self._begun_s
        counted = patiently(
            lambda s: job_progress.count_trial(s, self.job.id, self.epoch, trials, elapsed_s, kept=False)
        )
        self._is_cancelled = self._is_cancelled or counted.cancel_requested

    def _stopped(self) -> Exit:
        if not self._is_cancelled:
            return Exit.STOPPED
        result = {"stopped_by": "cancelled"}
        end(
            self.job.id,
            self.epoch,
            lambda s: job_progress.end_job(s, self.job.id, self.epoch, JobState.CANCELLED, result=result),
        )
        return Exit.ENDED
