"""CPU time of tests by file, own and of the processes they started: `pytest -p cpu_time`, with any number of workers.

On a busy machine `--durations` shows who waited; this shows who worked. `cost_s` is what a single page costs, the part
of PostgreSQL included.
"""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from tilewright.service.store import session as store_session

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


BACKENDS = text("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")


def of_postgresql_s() -> float:
    """CPU time of the backends that serve this database; the system counts it in hundredths of a second."""
    with store_session.session_scope() as session:
        pids = session.scalars(BACKENDS).all()
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(of[11]) + int(of[12]) for of in fields) / os.sysconf("SC_CLK_TCK")


def cost_s(show: Callable[[], object]) -> float:
    """Of one call of `show`."""
    before, began = of_postgresql_s(), time.process_time()
    show()
    own_s = time.process_time() - began
    return own_s + of_postgresql_s() - before
