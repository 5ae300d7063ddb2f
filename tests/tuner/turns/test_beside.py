"""Work beside the program's threads: begun at once, over in a forked child, and with short turns at the interpreter."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from waiting import until

from tilewright.tuner.turns.beside import SWITCH_S, Beside


@pytest.fixture
def usual_s():
    """Python's switch interval, which is as before afterwards."""
    before_s = sys.getswitchinterval()
    assert before_s > SWITCH_S
    yield before_s
    assert sys.getswitchinterval() == before_s


def test_threads_wait_for_the_interpreter_shortly_until_the_last_work_is_over(usual_s):
    releases = [threading.Event(), threading.Event()]
    works = [Beside(one.wait) for one in releases]
    for work, release in zip(works, releases, strict=True):
        assert work.is_running()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
        release.set()
        work.wait()
        assert not work.is_running()
    assert sys.getswitchinterval() == usual_s


def test_an_interval_that_the_program_has_made_shorter_stays(usual_s):
    sys.setswitchinterval(SWITCH_S / 2)
    shorter_s = sys.getswitchinterval()  # in whole microseconds
    try:
        release = threading.Event()
        work = Beside(release.wait)
        assert sys.getswitchinterval() == shorter_s
        release.set()
        work.wait()
        assert sys.getswitchinterval() == shorter_s
    finally:
        sys.setswitchinterval(usual_s)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a process with threads that forks
def test_work_is_over_in_a_forked_child(usual_s):
    release = threading.Event()
    work = Beside(release.wait)
    child = os.fork()
    if not child:
        work.wait()
        os._exit(work.is_running())
    assert os.waitpid(child, 0)[1] == 0
    assert work.is_running()
    release.set()
    work.wait()


def test_work_that_fails_is_over_and_is_reported(usual_s, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda said: reported.append(said.exc_type))
    work = Beside(lambda: 1 / 0)
    work.wait()
    assert not work.is_running()
    assert until(lambda: reported) == [ZeroDivisionError]
