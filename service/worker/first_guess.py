"""The configuration that a job tries right after the default: the prediction for its problem."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.priors import guess
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.tuner.families.representative import spread
from tilewright.tuner.loop.ahead import SHARE_OF_BUDGET

logger = logging.getLogger(__name__)

GUESSED_SIZES = 3
"""Sizes of a family that are predicted: both ends and the middle."""

MOST_S = 4.0
"""Longest wait for the prediction, from its start; it takes up to two seconds, while the device is opened."""


class FirstGuess:
    """A prediction made in a thread while the device is opened; without it a job goes on all the same."""

    @classmethod
    def of(cls, job: models.TuningJob, kernel: Kernel, problem: Problem, device: str) -> FirstGuess | None:
        """The job's guess; None where it has begun already or has too few trials to spend one on a prediction."""
        has_room = job.budget_trials is None or job.budget_trials >= SHARE_OF_BUDGET
        wait_s = MOST_S if job.budget_seconds is None else min(MOST_S, job.budget_seconds / SHARE_OF_BUDGET)
        return cls(kernel, problem, device, job.variants, wait_s) if has_room and not job.trials_done else None

    def __init__(
        self, kernel: Kernel, problem: Problem, device: str, variants: Sequence[str] | None, wait_s: float = MOST_S
    ) -> None:
        self._wait_s = wait_s
        self._until = time.monotonic() + wait_s
        self._guess: Future[Configuration | None] = Future()

        def find() -> None:
            try:
                self._guess.set_result(guess(transaction, kernel, problem, device, variants))
            except Exception as error:  # noqa: BLE001 - whatever it is, the job has other starts
                self._guess.set_exception(error)

        threading.Thread(target=find, name="guess", daemon=True).start()

    def starts(self) -> list[Configuration]:
        """The predicted configuration; an empty list if nothing was predicted in time."""
        try:
            configuration = self._guess.result(max(0.0, self._until - time.monotonic()))
        except TimeoutError:
            logger.info("The prediction took longer than %g s; the search begins without it.", self._wait_s)
            return []
        except Exception as error:  # noqa: BLE001 - see above
            logger.warning("The prediction failed (%s); the search begins without it.", error)
            return []
        return [] if configuration is None else [configuration]


def first_guesses(job: models.TuningJob, kernel: Kernel, asked: Problem | Family, device: str) -> list[FirstGuess]:
    """First guesses for the job's problem, or some sizes of its family; none where memory does not suffice."""
    if isinstance(asked, Family):
        problems = [asked.exact(size) for size in spread(asked.low, asked.high, GUESSED_SIZES)]
    else:
        problems = [asked]
    made = (FirstGuess.of(job, kernel, problem, device) for problem in problems)
    return [guess for guess in made if guess is not None]
