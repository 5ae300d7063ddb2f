"""Processes that start cold together make one search, and launch the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tilewright.tuner.autotune.one_search import found_once
from tilewright.tuner.runtime.errors import ServiceWarning
from tilewright.tuner.runtime.known.answers import FRESH_S

APP = Path(__file__).with_name("searching_app.py")
COMMAND = [sys.executable, "-W", "ignore", "-m", "tilewright.service.cli", "run", "--", sys.executable, str(APP)]


def started(arguments, cache, **more):
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "TILEWRIGHT_CACHE_DIR": str(cache),
        "TILEWRIGHT_DATA_DIR": str(cache),
        "TILEWRIGHT_URL": "",
    }
    return subprocess.Popen([*COMMAND, *arguments], env=environment | more, stdout=subprocess.PIPE, text=True)


def ended(process):
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(told)


def test_a_process_that_forks_while_it_imports_ahead_has_whole_modules_in_its_child():
    forks = """
import os
from tilewright.tuner.autotune import program
program._import_ahead()
child = os.fork()
if not child:
    from tilewright.tuner.autotune.known import KnownConfigs
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", forks], timeout=120, stdout=subprocess.PIPE, check=True)
    assert ran.stdout.strip() == b"0"


@pytest.mark.parametrize("interprets", ["1", pytest.param("0", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("are_ranks", [False, True])
def test_two_cold_processes_make_one_search_and_launch_the_same(tmp_path, are_ranks, interprets):
    """Ranks agree by their store: here they share no folder, as on two hosts. On GPUs each has one of its own."""
    pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    if interprets == "0" and torch.cuda.device_count() < 2:
        pytest.skip("it takes two GPUs")
    devices = [{"TRITON_INTERPRET": interprets, "CUDA_VISIBLE_DEVICES": "0,1" if are_ranks else rank} for rank in "01"]
    store = [[str(tmp_path / "ranks"), rank] if are_ranks else [] for rank in "01"]
    caches = [tmp_path / (f"cache{rank}" if are_ranks else "cache") for rank in "01"]
    each = zip(("32", "64"), store, caches, devices, strict=True)
    processes = [started([block, *more], cache, **device) for block, more, cache, device in each]
    one, other = map(ended, processes)
    assert one["timed"] + other["timed"] == 4  # two configurations of two problems
    assert one["chosen"] == other["chosen"]
    for launches in zip(one["launches"], other["launches"], strict=True):
        assert sorted(launches) == [3, 5]  # two launches of the search itself, and as many as the program says


DYING = """
import os
from tilewright.tuner.autotune.one_search import found_once

def search():
    print("begun", flush=True)
    os.read(0, 1)
    os._exit(9)

found_once("scale", ("a", "b"), search)
"""


def test_a_process_that_dies_in_its_search_leaves_it_to_the_next(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", DYING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as dying:
        assert dying.stdout.readline() == b"begun\n"
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(found_once, "scale", ("a", "b"), lambda: "b")
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
            dying.communicate(b"x")
            assert waiting.result(30) == "b"
    assert dying.returncode == 9


def test_an_answer_holds_for_a_day_for_the_programs_own_configurations(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    assert found_once("scale", ("a", "b"), lambda: "a") == "a"
    assert found_once("scale", ("a", "b"), lambda: "b") == "a"
    assert found_once("scale", ("b", "c"), lambda: "b") == "b"
    [path] = tmp_path.glob("answers/searched/*")
    os.utime(path, (0, time.time() - FRESH_S - 1))
    assert found_once("scale", ("b", "c"), lambda: "c") == "c"


def test_a_folder_that_cannot_be_written_costs_a_search(tmp_path, monkeypatch):
    (tmp_path / "answers").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    assert [found_once("scale", ("a", "b"), lambda block=block: block) for block in "ab"] == ["a", "b"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_rank_that_waits_in_vain_searches_and_the_first_answer_holds(tmp_path, monkeypatch, fails):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    begun, go_on = threading.Event(), threading.Event()

    def search() -> str:
        begun.set()
        go_on.wait(30)
        if fails:
            raise RuntimeError("out of memory")
        return "a"

    try:
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(found_once, "scale", ("a", "b"), search)
            begun.wait()
            with pytest.warns(ServiceWarning, match="has not ended in time"):
                assert found_once("scale", ("a", "b"), lambda: "b", patience_s=0.1) == "b"
            go_on.set()
            if fails:
                with pytest.raises(RuntimeError, match="out of memory"):
                    first.result()
            else:
                assert first.result() == "b"
    finally:
        torch.distributed.destroy_process_group()
