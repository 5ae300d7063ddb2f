"""CPU time of tests by file, own and of the processes they started: `pytest -p cpu_time`, with any number of workers.

On a busy machine `--durations` shows who waited; this shows who worked.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator

import pytest

SHOWN = 40
PROPERTY = "cpu_s"


def spent_s() -> float:
    """Of this process and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_begun] = spent_s()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "teardown":
        item.user_properties.append((PROPERTY, spent_s() - item.stash[_begun]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    by_file: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                by_file[report.nodeid.partition("::")[0]] += dict(report.user_properties).get(PROPERTY, 0.0)
    terminalreporter.section(f"{by_file.total():.1f} s of CPU time; the {SHOWN} files with the most")
    for name, seconds in by_file.most_common(SHOWN):
        terminalreporter.write_line(f"{seconds:8.1f}  {name}")


_begun = pytest.StashKey[float]()
