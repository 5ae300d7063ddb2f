"""A pytest plugin that notes the seconds of each test in the file that MUTANTS_SECONDS names, inf if it failed.

Processes that tests start record their lines as the file that MUTANTS_CHILDREN names says.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses"):  # the process in which tests run
        os.environ["COVERAGE_PROCESS_START"] = os.environ["MUTANTS_CHILDREN"]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # the first process hears all of them
        return
    with Path(os.environ["MUTANTS_SECONDS"]).open("a", encoding="utf-8") as notes:
        notes.write(f"{math.inf if report.failed else report.duration:.3f} {report.nodeid}\n")
