"""Answers of the service on disk, so that it is asked once a day and not in every process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.compile.cache import default_folder, write_whole
from tilewright.tuner.runtime.choice import Choice, TargetDevice, is_admitted

log = logging.getLogger(__name__)

FORMAT = "tilewright-answer/1"
FRESH_S = 86_400.0
"""A day: studies are repeated by schedules that fire nightly at most."""

_KEPT = ("variant", "configuration", "match", "time_ms", "library", "source_hash")


class AnswerCache:
    """Answers, a small file for each problem and device model, whole or absent; any processes may share a folder."""

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder or default_folder().parent / "answers"
        self._clock = clock

    def get(self, kernel: Kernel, problem: Problem, place: TargetDevice, *, even_old: bool = False) -> Choice | None:
        """The service's answer within a day (`even_old`: ever), where this version can still use it.

        A measurement of a faulty source, since corrected, counts as a prediction.
        """
        path = self._path(problem, place)
        try:
            stored = json.loads(path.read_bytes())
            age_s = self._clock() - float(stored["answered_at"])
            is_ours = stored["format"] == FORMAT and stored["problem"] == problem.canonical
            choice = Choice.from_facts(stored["answer"], "cache")
            source_hash = stored["answer"]["source_hash"]
        except OSError:
            return None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # another version's, or damaged
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        if not is_ours or not (even_old or 0 <= age_s < FRESH_S):
            return None
        if not is_admitted(kernel, problem, place, choice.configuration):
            return None
        if kernel.was_corrected(choice.configuration.variant, str(source_hash)):
            return replace(choice, match="predicted")
        return choice if kernel.has_source(choice.configuration.variant, str(source_hash)) else None

    def put(self, problem: Problem, place: TargetDevice, answer: Mapping[str, Any]) -> None:
        """Stores an answer; a disk that cannot be written is logged and otherwise ignored."""
        stored = {
            "format": FORMAT,
            "problem": problem.canonical,
            "device_model": place.slug,
            "answered_at": self._clock(),
            "answer": {name: answer.get(name) for name in _KEPT},
        }
        path = self._path(problem, place)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(stored).encode())
        except OSError as error:
            log.warning("an answer could not be kept in %s: %s", self.folder, error)

    def _path(self, problem: Problem, place: TargetDevice) -> Path:
        key = hashlib.sha256(f"{place.slug} {problem.canonical}".encode()).hexdigest()
        return self.folder / key[:2] / f"{key[2:]}.json"
