"""Compile workers as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import select
from waiting import until

from tilewright.service.store import models
from tilewright.service.store.session import session_scope


@contextmanager
def compile_workers(
    url: str, key: Path, folder: Path, count: int, **environment: str
) -> Iterator[list[subprocess.Popen]]:
    """So many compile workers with one compiler each, once all have registered; killed at the end if they still run."""
    variables = os.environ | {
        "TILEWRIGHT_DATABASE_URL": url,
        "TILEWRIGHT_COMPILE_KEY": str(key),
        "TILEWRIGHT_CACHE_DIR": str(folder / "elsewhere"),
    }
    words = [sys.executable, "-m", "tilewright.service.cli", "compile-worker", "--processes", "1"]
    log = folder / "compile-workers.log"
    with log.open("ab") as said:
        started = [subprocess.Popen(words, env=variables | environment, stderr=said) for _ in range(count)]
    try:
        until(lambda: len(registered()) == count, log.read_text)
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def registered() -> list[str]:
    """The names of the compile workers that are there."""
    with session_scope() as session:
        worker = models.CompileWorker
        return list(session.scalars(select(worker.name).where(worker.heartbeat_at.is_not(None))))
