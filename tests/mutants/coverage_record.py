"""Which tests run a line of the product, and how long each takes: the whole suite once, under coverage."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coverage import CoverageData

ROOT = Path(__file__).parents[2]
SETTINGS = "[run]\nsource =\n  kernels\n  tuner\n  service\ncore = ctrace\n"
CHILDREN = "parallel = true\npatch = _exit\nsigterm = true\ncontext = ${PYTEST_CURRENT_TEST-}\n"
"""Of the processes that tests start: their lines are those of the test in which they were started."""

LONGEST_S = 7200.0


@dataclass(frozen=True)
class Recorded:
    """Tests by line of each module, and their seconds."""

    data: CoverageData
    seconds: dict[str, float]

    def running(self, module: str, first: int, last: int, room: str) -> list[str]:
        """The tests that run a line from `first` to `last`; where none does, all that run the module or are in `room`.

        That is so of constants and declarations: a module's own lines run once, while tests are collected.
        """
        path = os.path.realpath(ROOT / module)
        by_line = self.data.contexts_by_lineno(path)
        tests = {test for line in range(first, last + 1) for test in by_line.get(line, ())}
        named = self._tests(tests)
        if not named & self.seconds.keys():
            named = self._tests({test for tests in by_line.values() for test in tests})
            named |= {test for test in self.seconds if test.startswith(room)}
        return sorted(named & self.seconds.keys())  # tests that are gone have no seconds

    def _tests(self, contexts: set[str]) -> set[str]:
        named = {context.rpartition("|")[0] or context.rpartition(" (")[0] for context in contexts}
        # A process that a fixture started serves all tests of the file.
        files = {context.partition("::")[0] for context in contexts if context.endswith(" (setup)")}
        return named | {test for test in self.seconds if test.partition("::")[0] in files}


def recorded(folder: Path, workers: int, tests: Sequence[str] = ()) -> Recorded:
    """The record of a run of all tests, or of these; it is kept in `folder`, where files that are newer run again."""
    kept = folder / "coverage"
    if kept.exists():
        files = (file for file in (ROOT / "tests").rglob("test_*.py") if file.stat().st_mtime > kept.stat().st_mtime)
        tests = [str(file.relative_to(ROOT)) for file in files]
        if not tests:
            return _read(folder)
        known = (folder / "seconds.txt").read_text(encoding="utf-8").splitlines(keepends=True)
        others = [line for line in known if line.split(maxsplit=1)[1].partition("::")[0] not in tests]
        (folder / "seconds.txt").write_text("".join(others), encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    settings, children, seconds = folder / "coveragerc", folder / "coveragerc-children", folder / "seconds.txt"
    own = SETTINGS + f"data_file = {folder / 'coverage'}\n"
    settings.write_text(own, encoding="utf-8")
    children.write_text(own + CHILDREN, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "--dist", "worksteal", "--cov", "--cov-append"]
    command += ["--continue-on-collection-errors"]
    command += [
        f"--cov-config={settings}",
        "--cov-context=test",
        "--cov-report=",
        "-p",
        "mutants.seconds_plugin",
        *tests,
    ]
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = outer | {"MUTANTS_SECONDS": str(seconds), "MUTANTS_CHILDREN": str(children)}
    python_path = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, python_path))
    subprocess.run(command, cwd=ROOT, env=environment, timeout=LONGEST_S, check=False)
    return _read(folder)


def _read(folder: Path) -> Recorded:
    data = CoverageData(str(folder / "coverage"))
    data.read()
    return Recorded(data, _seconds(folder / "seconds.txt"))


def _seconds(path: Path) -> dict[str, float]:
    totals: dict[str, float] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        taken, _, test = line.partition(" ")
        totals[test] = totals.get(test, 0.0) + float(taken)
    return {test: taken for test, taken in totals.items() if math.isfinite(taken)}  # what fails here judges nothing
