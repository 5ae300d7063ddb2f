"""What the tests that run a changed line say of the change, in a copy of the repository."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from mutants.coverage_record import ROOT, Recorded
from mutants.needing_gpu import needing_gpu
from mutants.python_changes import Change, drawn
from mutants.table import Row
from tilewright.service.store.embedded import EmbeddedPostgres

COPIED = (
    "kernels",
    "tuner",
    "service",
    "migrations",
    "tilewright",
    "tests",
    "benchmarks",
    "examples",
    "docs",
    "tools",
    "deploy",
)
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "docker-compose.yml", "LICENSE")
LONGEST_S, LONGEST_TEST_S = 400.0, 60
"""Of a run, which then counts as missed, and of a test, which fails."""

MOST_TESTS_S = 120.0
"""Of the tests that judge one change, by the seconds that they took under coverage."""

FIRST = "tests/service/operations/test_transactions_of_operations.py"
"""Makes the databases' template, which all later runs share, before anything is changed."""

ANSWERS = "tests/service/test_recorded_answers.py"
OF_TOPS = {
    "service/": "tests/test_generated_references.py",
    "service/operations/": ANSWERS,
    "service/api/": ANSWERS,
    "service/cli/": ANSWERS,
    "service/dashboard/": ANSWERS,
    "service/store/models/": "tests/service/store/test_schema.py::test_models_make_the_tables_of_the_revisions",
    "kernels/": "tests/kernels/test_space.py",
}
"""What holds for all of a package: its generated pages, its tables, and the records of its answers and spaces."""


@cache
def modules() -> dict[str, str]:
    """The text of every module of the product that runs without a GPU, by its path."""
    paths = [path for top in ("kernels", "tuner", "service", "tests") for path in sorted((ROOT / top).rglob("*.py"))]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    left_out = needing_gpu(texts)
    return {path: text for path, text in texts.items() if path not in left_out and not path.startswith("tests/")}


def judging_tests(record: Recorded, module: str, change: Change) -> list[str]:
    """The tests that run the changed lines, those of the module's own folder first, then the shortest.

    As many as take `MOST_TESTS_S`. What holds for all of a package comes last.
    """
    room = next(f"{folder}/" for folder in (Path("tests") / module).parents if (ROOT / folder).is_dir())
    own = module.rpartition("/")[2].removesuffix(".py")
    tests = record.running(module, change.line, change.line + change.old.count("\n"), room)

    def order(test: str) -> tuple[bool, bool, float]:
        return own not in test.partition("::")[0], not test.startswith(room), record.seconds[test]

    chosen, total_s = [], 0.0
    for test in sorted(tests, key=order):
        if total_s + record.seconds[test] <= MOST_TESTS_S:
            total_s += record.seconds[test]
            chosen.append(test)
    return chosen + [test for top, test in OF_TOPS.items() if module.startswith(top)]


@dataclass(frozen=True)
class Judging:
    """Which changes are judged, by how many at a time, and for how long new ones are begun."""

    count: int
    seed: int
    only: str = ""  # how paths begin
    workers: int = 1
    begun_within_s: float = math.inf


def judged(folder: Path, record: Recorded, judging: Judging) -> Iterator[Row]:
    """A row for each change, `folder` being an empty one for copies."""
    texts = {path: text for path, text in modules().items() if path.startswith(judging.only)}
    copies: SimpleQueue[Path] = SimpleQueue()
    broken: set[str] = set()
    begun_s = time.monotonic()

    def prepare(number: int) -> None:
        copy = _copied(folder / str(number))
        failing_test(copy, [FIRST], ())
        copies.put(copy)

    def row(path: str, change: Change) -> Row | None:
        if time.monotonic() - begun_s > judging.begun_within_s:
            return None
        copy, started_s = copies.get(), time.monotonic()
        tests = judging_tests(record, path, change)
        try:
            caught = _catching(copy, path, change, tests, broken)
        finally:
            copies.put(copy)
        place = "/".join(path.split("/")[:2]), f"{path}:{change.line}"
        return Row(*place, _words(change), caught, tuple(tests), time.monotonic() - started_s)

    try:
        with ThreadPoolExecutor(judging.workers) as pool:
            list(pool.map(prepare, range(judging.workers)))
            rows = [pool.submit(row, *change) for change in drawn(texts, judging.count, judging.seed)]
            yield from filter(None, (row.result() for row in as_completed(rows)))
    finally:
        for number in range(judging.workers):
            EmbeddedPostgres(_home(folder / str(number)) / "postgres").stop()


def _home(copy: Path) -> Path:
    """Where the tests of a copy have their server of databases and what the CPU device compiled."""
    return copy.with_name(f"{copy.name}-home")


def _copied(folder: Path) -> Path:
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    _home(folder).mkdir()
    compiled = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", *("kernels", "tuner", "service")]
    subprocess.run([sys.executable, *compiled], cwd=folder, check=True)  # runs then compile the changed module alone
    return folder


def _catching(copy: Path, path: str, change: Change, tests: list[str], broken: set[str]) -> str:
    """The test that fails with the change, passes without, and fails with it again; empty where none does."""
    before = (copy / path).read_text(encoding="utf-8")

    def failing(tests: Sequence[str]) -> str:
        (copy / path).write_text(change.applied(before), encoding="utf-8")
        try:
            return failing_test(copy, tests, broken)
        finally:
            (copy / path).write_text(before, encoding="utf-8")
            shutil.rmtree(_home(copy) / "cache", ignore_errors=True)  # what changed code compiled

    while (caught := failing(tests)) not in broken:
        if not caught or (not failing_test(copy, [caught], broken) and failing([caught])):
            return caught
        broken.add(caught)
    return ""  # pytest cannot leave out what it cannot collect


def failing_test(folder: Path, tests: Sequence[str], broken: Collection[str]) -> str:
    """The first of these tests in the copy that fails, but for broken ones; empty where all pass or there are none."""
    if not tests:
        return ""
    python_path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    environment = dict(os.environ) | {"PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["TILEWRIGHT_TEST_POSTGRES_HOME"] = str(_home(folder))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-p", "no:randomly"]
    # Cases that take turns follow the commit, and the copy has none: it runs every case that is named.
    command += ["-m", "not gpu and not faults and not browser and not fuzz"]
    command += ["--timeout", str(LONGEST_TEST_S), *tests, *(f"--deselect={one}" for one in broken)]
    try:
        ended = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if ended.returncode == 1 and failed:
        return failed[0].partition(" ")[2].split(" - ")[0]
    return "" if ended.returncode in {0, 5} else tests[0]


def _words(change: Change) -> str:
    return f"`{' '.join(change.old.split())[:90]}` becomes `{' '.join(change.new.split())[:90]}`"
