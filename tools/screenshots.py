"""Writes docs/screenshots/*.png: the dashboard with real results, as the system's Chromium shows it.

A database of its own gets the H200 results of benchmarks/results, a public recording, and what a worker on this
machine's CPU really tunes; the pages are served by the real server. Takes less than a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import httpx
from playwright.sync_api import Browser, sync_playwright
from sqlalchemy import func, select

from tilewright.kernels.space import Configuration
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models, schema
from tilewright.service.store.embedded import EmbeddedPostgres
from tilewright.service.store.session import configure
from tilewright.tuner.recorded.recordings import read_recording

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("browser", "service", "service/api", "tuner")]
import exported  # noqa: E402 - the tests fill their database with the same
import real_rows  # noqa: E402

CONVOLUTION = "convolution_A100_T4.json.gz"
SEARCHED = ROOT / "benchmarks" / "recordings" / "gemm_register_16x4096x4096_nvidia-h200.json.gz"
"""Every trial of a search on the H200."""

WIDTH, HEIGHT = 1280, 900
TALLEST = 2400
"""A longer page is cut there: what follows are more rows of the same table."""

READY_WITHIN_S = 60.0
TUNED = ("gemm", "--shape", "m=256,n=100,k=784", "--device", "cpu", "--trials", "40", "--seconds", "12")
UNTUNED = ("m=3000,n=3000,k=3000", "m=777,n=4096,k=4096", "m=777,n=4096,k=4096")
SHAPE = "m%3D4096,n%3D4096,k%3D4096"


@dataclass(frozen=True)
class Shot:
    """A page and the file it goes to; of a longer page the upper `tallest` pixels."""

    name: str
    path: str
    tallest: int = TALLEST


@dataclass(frozen=True)
class Filled:
    """The contents of the pages: a study's id, and a time at which the superseded results were still current."""

    searched: int
    before: str


def shots(filled: Filled, tuned: int) -> list[Shot]:
    """The views that README and docs show. `tuned`: the study that was made here."""
    return [
        Shot("overview", "/?kernel=gemm", tallest=1400),
        Shot("attention", "/attention", tallest=1100),
        Shot("device-model", "/device-models/nvidia-h200", tallest=1400),
        Shot("study", f"/studies/{filled.searched}"),
        Shot("study-cpu", f"/studies/{tuned}", tallest=1300),
        Shot("trial", f"/studies/{tuned}/trials/0", tallest=1300),
        Shot("compare", f"/compare?kernel=gemm&a=nvidia-h200&a_at={filled.before}&b=nvidia-h200", tallest=1100),
        Shot("history", f"/kernels/gemm/problem?shape={SHAPE}"),
        Shot("jobs", "/jobs", tallest=1100),
        Shot("fleet", "/fleet", tallest=1100),
        Shot("demand", "/demand", tallest=1100),
        Shot("ask", f"/ask?kernel=gemm&device_model=nvidia-h200&shape={SHAPE}", tallest=1500),
    ]


def fill(recorded: Path) -> Filled:
    """The H200's results and one search of it, and the recording in that folder as an import of an A100."""
    convolution = recorded / CONVOLUTION
    if not convolution.exists():
        print(f"{convolution} does not exist: only a part of it is shown", file=sys.stderr)
        convolution = real_rows.CONVOLUTION
    read = read_recording(SEARCHED)
    entries = {Configuration.of("register", found.values): entry for found, entry in read.entries.items()}
    document = json.loads(exported.KERNELS.read_text(encoding="utf-8"))
    model = exported.device_model(document["device_model"])
    with transaction() as session:
        real_rows.fill(session, convolution, with_cpu=False)
        searched = real_rows.Filler(session).recording(
            replace(read, entries=entries), model, exported.environment(document["environment"])
        )
        best = models.BestConfiguration
        settled = session.scalar(select(func.max(best.verified_at)).where(best.superseded_by_id.is_not(None)))
    return Filled(searched, (settled + timedelta(minutes=1)).isoformat()[:16])


def newest_study() -> int:
    """The study that was begun last."""
    with transaction() as session:
        return session.scalars(select(func.max(models.Study.id))).one()


@contextmanager
def running(log: Path, *words: str) -> Iterator[None]:
    """A command of ours while the block runs; what it says goes to the log."""
    command = [sys.executable, "-m", "tilewright.service.cli", *words]
    with log.open("ab") as log_file, subprocess.Popen(command, stderr=log_file) as process:
        try:
            yield
        finally:
            process.terminate()


def wait_until_ready(address: str) -> None:
    """Returns when the server answers and the worker's device is known; raises SystemExit after READY_WITHIN_S."""
    until = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            if httpx.get(f"{address}/ready").is_success and httpx.get(f"{address}/v1/devices").json()["items"]:
                return
        except httpx.TransportError:
            pass
        if time.monotonic() > until:
            raise SystemExit(f"{address} was not ready within {READY_WITHIN_S:.0f} s")
        time.sleep(0.2)


def take(browser: Browser, address: str, shot: Shot, folder: Path) -> None:
    """The page as a file; raises SystemExit where it does not answer or complains."""
    context = browser.new_context(
        base_url=address,
        viewport={"width": WIDTH, "height": HEIGHT},
        reduced_motion="reduce",
    )
    tab = context.new_page()
    messages: list[str] = []
    tab.on("console", lambda message: messages.append(message.text) if message.type == "error" else None)
    answer = tab.goto(shot.path)
    until = time.monotonic() + READY_WITHIN_S
    while "being computed" in tab.content() and time.monotonic() < until:  # predictions, of some seconds after a start
        tab.wait_for_timeout(1000)
        answer = tab.goto(shot.path)
    if answer is None or answer.status != 200 or messages:
        raise SystemExit(f"{shot.path} answers {answer and answer.status} {messages}")
    for plot in tab.locator("[data-chart]").all():
        plot.locator("canvas").first.wait_for(timeout=60_000)  # those out of view are drawn last
    tab.wait_for_timeout(300)  # fonts and canvases are painted
    height = min(int(tab.evaluate("document.documentElement.scrollHeight")), shot.tallest)
    tab.screenshot(
        path=folder / f"{shot.name}.png",
        full_page=True,
        clip={"x": 0, "y": 0, "width": WIDTH, "height": height},
    )
    context.close()


def main() -> None:
    """Fills, tunes, serves, shoots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recorded", nargs="?", type=Path, default=ROOT.parent / "shared" / "data" / "recorded")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "screenshots")
    parser.add_argument("--only", nargs="*", help="names of pictures")
    arguments = parser.parse_args()
    executable = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        raise SystemExit("no Chromium: install it, or name it in CHROMIUM")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tw-shots-", ignore_cleanup_errors=True)))
        os.environ["TILEWRIGHT_DATA_DIR"] = str(data)
        server = EmbeddedPostgres(data / "postgres")
        url = server.ensure()
        stack.callback(server.stop)
        os.environ["TILEWRIGHT_DATABASE_URL"] = url
        configure(url)
        stack.callback(configure, None)
        schema.upgrade(url)
        filled = fill(arguments.recorded)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        address = f"http://127.0.0.1:{port}"
        stack.enter_context(running(data / "serve.log", "serve", "--port", str(port)))
        stack.enter_context(running(data / "worker.log", "worker", "--device", "cpu"))
        wait_until_ready(address)
        os.environ["TILEWRIGHT_URL"] = address
        subprocess.run([sys.executable, "-m", "tilewright.service.cli", "tune", *TUNED], check=True)
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=executable, args=["--disable-gpu", *(() if os.geteuid() else ("--no-sandbox",))]
        )
        for shape in UNTUNED:  # for the page of what is asked for; it is written down every two seconds
            query = {"device_model": "nvidia-h200", "shape": shape}
            httpx.get(f"{address}/v1/kernels/gemm/best", params=query, timeout=READY_WITHIN_S).raise_for_status()
        for shot in shots(filled, newest_study()):
            if not arguments.only or shot.name in arguments.only:
                take(browser, address, shot, arguments.out)
                print(arguments.out / f"{shot.name}.png")
        browser.close()


if __name__ == "__main__":
    main()
