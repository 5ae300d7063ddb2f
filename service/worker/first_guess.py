"""The configuration that a job tries first after the default: what would have been answered had nobody tuned."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.priors import guess
from tilewright.service.store import models
from tilewright.service.store.patience import patiently
from tilewright.tuner.ahead import SHARE_OF_BUDGET

logger = logging.getLogger(__name__)

MOST_S = 4.0
"""From the beginning on; then a job goes on without. It takes up to two seconds, in which the device is opened."""


class FirstGuess:
    """A prediction made in a thread of its own while the device is opened; a job never fails for want of it."""

    @classmethod
    def of(cls, job: models.TuningJob, kernel: Kernel, problem: Problem, device: str) -> FirstGuess | None:
        """None where the job has begun already, or has too few trials to spend one on what others found."""
        has_room = job.budget_trials is None or job.budget_trials >= SHARE_OF_BUDGET
        wait_s = MOST_S if job.budget_seconds is None else min(MOST_S, job.budget_seconds / SHARE_OF_BUDGET)
        return cls(kernel, problem, device, job.variants, wait_s) if has_room and not job.trials_done else None

    def __init__(
        self, kernel: Kernel, problem: Problem, device: str, variants: Sequence[str] | None, wait_s: float = MOST_S
    ) -> None:
        self._wait_s = wait_s
        self._until = time.monotonic() + wait_s
        self._found: Future[Configuration | None] = Future()

        def find() -> None:
            try:
                self._found.set_result(patiently(lambda session: guess(session, kernel, problem, device, variants)))
            except Exception as error:  # noqa: BLE001 - whatever it is, the job has other starts
                self._found.set_exception(error)

        threading.Thread(target=find, name="guess", daemon=True).start()

    def starts(self) -> list[Configuration]:
        """The configuration, none where there is none or it is late."""
        try:
            found = self._found.result(max(0.0, self._until - time.monotonic()))
        except TimeoutError:
            logger.info("A prediction took longer than %g s; the search begins without.", self._wait_s)
            return []
        except Exception as error:  # noqa: BLE001 - see above
            logger.warning("There is no prediction (%s); the search begins without.", error)
            return []
        return [] if found is None else [found]
