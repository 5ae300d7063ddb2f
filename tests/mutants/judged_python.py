"""What the tests of a module say of it with one change, in a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from mutants.python_changes import Change, drawn
from mutants.table import Row

ROOT = Path(__file__).parents[2]
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
LEFT_OUT = ("tuner/pytorch/", "service/worker/digits/", "service/operations/digits/", "service/worker/compiling/")
"""Modules whose tests need a GPU, or PyTorch."""

LONGEST_S, LONGEST_TEST_S = 300.0, 60
"""Of a run, which then counts as missed, and of a test, which fails."""

MOST_NAMING, MOST_USERS, MOST_TESTS = 12, 4, 8
"""Files of tests that name the module; modules that import it; files of the room that name neither."""

OF_TOPS = {
    "service/": "tests/test_generated_references.py",
    "kernels/": "tests/kernels/test_spaces_stay.py",
}
"""What holds for all of a package: its generated pages, and the record of its spaces."""

SLOW_TESTS = ("tests/gpu/", "tests/browser/", "tests/faults/", "tests/chaos/", "tests/mutants/")


@cache
def modules() -> dict[str, str]:
    """The text of every module of the product, by its path."""
    paths = [path for top in ("kernels", "tuner", "service") for path in sorted((ROOT / top).rglob("*.py"))]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    return {path: text for path, text in texts.items() if not path.startswith(LEFT_OUT) and "cuda" not in path}


def judging_tests(module: str) -> list[str]:
    """The tests that name the module, those of its room first; then tests that name who imports it, and of its room.

    A room is two levels deep. What holds for all of a package comes last.
    """
    rooms = [room for room in Path("tests", module).parents if (ROOT / room).is_dir()]
    in_room = _tests_in(rooms[0])
    own = module.rpartition("/")[2].removesuffix(".py")
    named = sorted(_naming(_dotted(module)), key=lambda path: (path not in in_room, own not in Path(path).name))
    nearest = [path for path in named if path in in_room] or in_room[:MOST_TESTS]
    users = [path for path, text in modules().items() if re.search(rf"\b{re.escape(_dotted(module))}\b", text)]
    beside = [path for user in users[:MOST_USERS] for path in _naming(_dotted(user))[:2]]
    last = [test for top, test in OF_TOPS.items() if module.startswith(top)]
    return list(dict.fromkeys([*nearest[:MOST_NAMING], *named[:MOST_NAMING], *beside, *in_room[:MOST_TESTS], *last]))


@cache
def _naming(dotted: str) -> list[str]:
    """The files of tests that name the module, but for those of a GPU, of browsers and of faults."""
    name = re.compile(rf"\b{re.escape(dotted)}\b")
    paths = [path for path in _tests_in(Path("tests")) if not path.startswith(SLOW_TESTS)]
    return [path for path in paths if name.search((ROOT / path).read_text(encoding="utf-8"))]


def _dotted(module: str) -> str:
    return "tilewright." + module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _tests_in(room: Path) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / room).rglob("test_*.py"))]


def judged(folder: Path, count: int, seed: int, only: str = "", workers: int = 1) -> Iterator[Row]:
    """A row for each of `count` changes, `folder` being an empty one for copies; `only`: how paths begin."""
    texts = {path: text for path, text in modules().items() if path.startswith(only)}
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(workers):
        copies.put(_copied(folder / str(number)))
    broken: set[str] = set()

    def row(drawn_change: tuple[str, Change]) -> Row:
        path, change = drawn_change
        copy = copies.get()
        try:
            caught = _catching(copy, path, change, broken)
        finally:
            copies.put(copy)
        return Row("/".join(path.split("/")[:2]), f"{path}:{change.line}", _words(change), caught)

    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(row, drawn(texts, count, seed))


def _copied(folder: Path) -> Path:
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    return folder


def _catching(copy: Path, path: str, change: Change, broken: set[str]) -> str:
    """The test that fails with the change and passes without; empty where none does."""
    before = (copy / path).read_text(encoding="utf-8")
    while True:
        (copy / path).write_text(change.applied(before), encoding="utf-8")
        try:
            caught = failing_test(copy, judging_tests(path), broken)
        finally:
            (copy / path).write_text(before, encoding="utf-8")
        if not caught or not failing_test(copy, [caught], broken):
            return caught
        broken.add(caught)


def failing_test(folder: Path, tests: Sequence[str], broken: Collection[str]) -> str:
    """The first of these tests in the copy that fails, but for broken ones; empty where all pass."""
    environment = dict(os.environ) | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
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
