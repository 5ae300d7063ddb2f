"""CPU time of tests by file, own and of the processes they started: `pytest -p cpu_time`, with any number of workers.

On a busy machine `--durations` shows who waited; this shows who worked, a browser that is still open included, but for
daemons such as PostgreSQL. `cost_s` is what a single page costs, the part of PostgreSQL included.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from tilewright.service.store import session as store_session

SHOWN = 40
PROPERTY = "cpu_s"


def spent_s() -> float:
    """Of this process, its children and theirs; what has ended counts with the one that waited for it."""
    return sum(_times_s(pid, 4) for pid in _tree(os.getpid()))


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has just ended
            for child in children.read_text().split():
                yield from _tree(int(child))


def _times_s(pid: int, count: int) -> float:
    """Sum of the first of: its user and system time, and those of its children that have ended; to 0.01 s."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11 : 11 + count])) / os.sysconf("SC_CLK_TCK")
    return 0.0


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


BACKENDS = text("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")


def of_postgresql_s() -> float:
    """CPU time of the backends that serve this database; the system counts it in hundredths of a second."""
    with store_session.session_scope() as session:
        return sum(_times_s(pid, 2) for pid in session.scalars(BACKENDS))


def cost_s(show: Callable[[], object]) -> float:
    """Of one call of `show`."""
    before, began = of_postgresql_s(), time.process_time()
    show()
    own_s = time.process_time() - began
    return own_s + of_postgresql_s() - before
