"""Every operation of the OpenAPI document, alone and in sequences, at a real server on a real PostgreSQL.

`make fuzz-api EXAMPLES=100` runs the long form. schemathesis makes the requests and judges the answers: all its checks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from factories import Rows
from fleet import Fleet, free_port
from sqlalchemy import select
from waiting import PATIENCE_S

from tilewright.service.client import Client
from tilewright.service.operations.jobs import jobs
from tilewright.service.store import models
from tilewright.service.store.models import JobState

CONFIG = Path(__file__).parent / "schemathesis.toml"
EXAMPLES = os.environ.get("EXAMPLES", "50")
SEED = os.environ.get("SEED", "1")


@contextmanager
def ending_jobs(fleet: Fleet) -> Iterator[None]:
    """Ends every job soon, as somebody does who cancels them: event streams of jobs end with their jobs."""
    over = threading.Event()

    def end() -> None:
        while not over.wait(0.3):
            with fleet.session() as session:
                for job_id in session.scalars(
                    select(models.TuningJob.id).where(models.TuningJob.state == JobState.QUEUED)
                ).all():
                    jobs.cancel_job(session, job_id)

    thread = threading.Thread(target=end)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def served(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server whose database holds a result, a job, a study, a device."""
    with fleet.session() as session:
        Rows(session).best()
    port = free_port()
    process = fleet.start_api(port)
    url = f"http://127.0.0.1:{port}"
    with Client(url) as client:
        fleet.until(client.is_ready)
    exported(fleet.folder / "export.json", url)
    monkeypatch.setenv("TILEWRIGHT_TEST_EXPORT", str(fleet.folder / "export.json"))
    with ending_jobs(fleet):
        yield url
    tracebacks = (fleet.folder / "api.log").read_text().split("Traceback (most recent call last)")[1:]
    print(*[trace[-3000:] for trace in tracebacks[:3]], sep="\n---\n")  # noqa: T201 - beside what schemathesis says
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


def exported(path: Path, url: str) -> None:
    """Writes what the server exports, for the hooks to import."""
    path.write_text(httpx.get(f"{url}/v1/export").raise_for_status().text, encoding="utf-8")


def fuzz(url: str, *arguments: str) -> str:
    """What schemathesis says; fails with it where it found something."""
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run", f"{url}/openapi.json"]
    options = ["--checks=all", f"--seed={SEED}", "--request-timeout=20", "--warnings=off", "--no-color"]
    ended = subprocess.run([*command, *options, *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-5000:]
    return ended.stdout


@pytest.mark.exhaustive
def test_sequences_of_requests_meet_no_failure(served):
    fuzz(served, "--phases=stateful", "--max-examples=3")


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("phase", ["examples", "coverage", "fuzzing", "stateful"])
def test_every_phase_meets_no_failure(served, phase):
    print(fuzz(served, f"--phases={phase}", f"--max-examples={EXAMPLES}", "--continue-on-failure"))  # noqa: T201
