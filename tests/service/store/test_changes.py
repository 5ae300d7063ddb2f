"""What the database tells, to a process that has many files open."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from waiting import PATIENCE_S

from tilewright.service.store.changes import CHANNEL, Changes
from tilewright.service.store.session import session_scope

MOST_OF_SELECT = 1024
"""FD_SETSIZE of Linux and macOS."""


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4 * MOST_OF_SELECT), hard), hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    while opened[-1] < MOST_OF_SELECT:
        opened.append(os.open(os.devnull, os.O_RDONLY))
    yield
    for file in opened:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("configured", "many_files")
def test_a_change_is_told_to_a_process_with_a_thousand_files_open():
    with Changes() as changes:
        assert changes.wait(0.0) == []
        with session_scope() as session:
            session.execute(text("SELECT pg_notify(:channel, 'best 1')"), {"channel": CHANNEL})
        assert changes.wait(PATIENCE_S) == ["best 1"]
