"""Compilations in processes of a pool: shared, joined, stopped, and what becomes of lost workers."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest
from compilations import BROKEN, SOURCE, WORK, endless
from waiting import PATIENCE_S, is_running, until

from tilewright.tuner.child import Child
from tilewright.tuner.compile import pool as compile_pool
from tilewright.tuner.compile.cache import CubinCache
from tilewright.tuner.compile.compilation import Compiled
from tilewright.tuner.compile.compiler import compile_nvrtc
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.outcome import Outcome


@pytest.fixture(scope="module")
def pool():
    with CompilePool(2) as pool:
        yield pool


def test_a_wrong_source_fails_with_the_compilers_log(pool):
    with pytest.raises(TrialFailure, match='identifier "x" is undefined') as failure:
        pool.compile(BROKEN)
    assert failure.value.outcome is Outcome.COMPILE_FAILED
    assert not failure.value.sticky


def test_a_pool_gives_what_one_process_gives(pool):
    here = compile_nvrtc(SOURCE, dict(WORK.definitions), "sm_90", "scale")
    futures = [pool.submit(replace(WORK, definitions=(*WORK.definitions[:2], ("TILE", str(t))))) for t in (64, 256)]
    small, same = (future.result() for future in futures)
    assert same.cubin == here.cubin
    assert small.resources.shared_bytes == 256


def idle_pids(pool):
    return [child.pid for child in pool._idle.queue if child is not None]


def test_a_killed_worker_is_replaced(pool):
    pool.compile(WORK)
    pids = idle_pids(pool)
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert pool.compile(WORK).resources.shared_bytes == 1024
    assert set(idle_pids(pool)) - set(pids)


def test_where_no_process_can_be_started_at_first_the_compilation_tries_again(monkeypatch):
    refused = []

    def child(*arguments, **how):
        if len(refused) < 2:
            refused.append(BlockingIOError("no more processes"))
            raise refused[-1]
        return Child(*arguments, **how)

    monkeypatch.setattr(compile_pool, "Child", child)
    with CompilePool(2, timeout_s=PATIENCE_S) as pool:
        pool.start()
        until(lambda: len(refused) == 2)
        assert pool.compile(WORK).resources.shared_bytes == 1024


def test_a_compiler_that_hangs_does_not_outlive_the_process_that_would_stop_it():
    script = (
        "import sys, time; sys.path[:0] = sys.argv[1:]; from compilations import WORK, endless\n"
        "from tilewright.tuner.compile.pool import CompilePool\n"
        "pool = CompilePool(1); pool.compile(WORK); pid = pool._idle.queue[0].pid; pool.submit(endless())\n"
        "print(pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(Path(__file__).parents[2])],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        pid = int(process.stdout.readline())
        process.kill()
    until(lambda: not is_running(pid))


def test_a_compile_that_does_not_end_is_stopped_and_the_pool_goes_on():
    with CompilePool(1, timeout_s=PATIENCE_S) as pool:
        pool.compile(WORK)  # the worker is up
        pool.timeout_s = 0.3
        with pytest.raises(TrialFailure) as failure:
            pool.compile(endless())
        assert failure.value.outcome is Outcome.TIMED_OUT
        pool.timeout_s = PATIENCE_S
        assert pool.compile(WORK).resources.shared_bytes == 1024


FREES_AND_TAKES_AGAIN = """
import ctypes, resource, sys
from tilewright.tuner.compile.pool import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(100_000) for _ in range(200)]
    for block in blocks:
        ctypes.memset(block, 1, 100_000)
    for block in blocks:
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

kept = sys.argv[1] == "kept" and keep_freed_memory()
page_faults()
print(int(kept), page_faults())
"""


def test_a_worker_keeps_what_one_compilation_frees_for_the_next():
    def run(how):
        command = [sys.executable, "-c", FREES_AND_TAKES_AGAIN, how]
        return map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    is_kept, faults = run("kept")
    if not is_kept:
        pytest.skip("this C library has no mallopt")
    _, usual = run("given back")
    assert faults < usual / 10


def test_the_second_time_comes_from_the_cache(tmp_path):
    with CompilePool(1, CubinCache(tmp_path)) as pool:
        first, second = pool.compile(WORK), pool.compile(WORK)
    assert first.compile_ms > 0
    assert second == Compiled(first.cubin, first.resources, first.log, 0.0)
    with CompilePool(1, CubinCache(tmp_path)) as other:
        assert other.compile(WORK).compile_ms == 0
        assert idle_pids(other) == []


def test_a_compilation_under_way_is_joined_and_one_that_has_not_begun_can_be_cancelled(monkeypatch):
    with CompilePool(1) as pool:
        begun, hold = [], Event()
        monkeypatch.setattr(pool, "_compile", lambda work: begun.append(work.entry) or Compiled(work.entry.encode()))
        pool._threads.submit(hold.wait)  # the pool's one compiler is busy
        first, second = [pool.submit(replace(WORK, entry=entry)) for entry in ("a", "b")]
        assert pool.submit(replace(WORK, entry="b")) is second
        assert first.cancel()
        again = pool.submit(replace(WORK, entry="a"))
        hold.set()
        assert [future.result(PATIENCE_S).cubin for future in (second, again)] == [b"b", b"a"]
    assert begun == ["b", "a"]


def test_what_configurations_share_is_compiled_once_and_comes_with_each(monkeypatch):
    shared = replace(WORK, entry="shared")
    with CompilePool(1) as pool:
        begun, hold = [], Event()
        monkeypatch.setattr(pool, "_compile", lambda work: begun.append(work) or Compiled(work.entry.encode()))
        pool._threads.submit(hold.wait)
        works = [replace(WORK, entry=entry, shared=shared) for entry in ("a", "b", "c")]
        first, second, dropped = [pool.submit(work) for work in works]
        assert dropped.cancel()
        hold.set()
        found = [future.result(PATIENCE_S) for future in (first, second)]
        assert [(each.cubin, each.shared) for each in found] == [(b"a", b"shared"), (b"b", b"shared")]
    assert [work.entry for work in begun] == ["shared", "a", "b"]


def test_a_configuration_fails_with_what_it_shares():
    with CompilePool(1) as pool, pytest.raises(TrialFailure, match="identifier"):
        pool.compile(replace(WORK, shared=BROKEN))


def test_the_end_of_a_pool_cancels_what_has_not_begun():
    pool, hold = CompilePool(1), Event()
    pool._threads.submit(hold.wait)
    future = pool.submit(WORK)
    closing = Thread(target=pool.close)
    closing.start()
    until(future.cancelled)
    hold.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
