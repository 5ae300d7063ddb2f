"""Processes of the CPU device, and kernels that can tell verified launches from timed ones."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from contracts.cheats import CHEATS, EVERYWHERE, HONEST, ON_HOSTS, PROBLEM, configuration
from waiting import PATIENCE_S, is_running, until

from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.devices.cpu.process import CAPTURED_BYTES, Conversation, run_limited
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop.finals import finals
from tilewright.tuner.outcome import Outcome

ORPHAN = """
import os, sys
from tilewright.tuner.devices.cpu.process import run_limited
os.cpu_count = lambda: 0.05  # two seconds of CPU time, however long they take
run_limited(["sh", "-c", "sh -c 'echo $$ > $0; while :; do :; done' \\"$0\\"; true", sys.argv[1]], timeout_s=20)
"""


@pytest.fixture
def said(tmp_path):
    return tmp_path / "pid"


def test_what_runs_too_long_is_killed_with_all_that_it_started(said):
    script = "sh -c 'echo $$ > $0; exec sleep 600' \"$0\"; true"
    assert run_limited(["sh", "-c", script, str(said)], timeout_s=5.0).code is None  # to begin with, it is written
    until(lambda: not is_running(int(said.read_text())))


def test_an_endless_compiler_of_a_killed_tuner_ends_too(said):
    tuner = subprocess.Popen([sys.executable, "-c", ORPHAN, str(said)])
    until(lambda: said.exists() and said.read_text().endswith("\n"))
    tuner.kill()
    tuner.wait()
    pid = int(said.read_text())
    assert is_running(pid)
    until(lambda: not is_running(pid))  # two seconds of CPU time


DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
time.sleep(600)
"""


def test_a_daemon_that_keeps_the_pipe_open_is_not_waited_for_and_ended(said):
    began = time.monotonic()
    script = '"$1" -c "$2" "$0"; until [ -s "$0" ]; do sleep 0.01; done; echo compiled'
    ended = run_limited(["sh", "-c", script, str(said), sys.executable, DAEMON], timeout_s=PATIENCE_S)
    assert (ended.code, ended.output) == (0, "compiled\n")
    assert time.monotonic() - began < PATIENCE_S / 2
    until(lambda: not is_running(int(said.read_text())))


def test_a_daemon_that_keeps_the_pipe_open_does_not_outlive_the_deadline(said):
    script = '"$1" -c "$2" "$0"; sleep 600'
    ended = run_limited(["sh", "-c", script, str(said), sys.executable, DAEMON], timeout_s=5.0)
    assert ended.code is None
    until(lambda: not is_running(int(said.read_text())))


def test_what_is_printed_without_end_is_kept_to_a_limit():
    ended = run_limited(["sh", "-c", "yes 2>&1 & yes >&2"], timeout_s=1.0)
    assert ended.code is None
    assert (len(ended.output), len(ended.errors)) == (CAPTURED_BYTES, CAPTURED_BYTES)


def test_a_conversation_whose_process_shuts_its_output_and_goes_on_ends():
    conversation = Conversation(["sh", "-c", "exec >&-; sleep 600"])
    with pytest.raises(TrialFailure):
        conversation.ask("1", 1, PATIENCE_S)
    assert not conversation.is_alive


@pytest.fixture(scope="module")
def bench(shared_cache):
    device = CpuDevice(cache=shared_cache / "host", run_timeout_s=PATIENCE_S)
    bench = device.bench(CHEATS, PROBLEM, seed=7)
    yield bench
    bench.close()
    device.close()


def test_there_are_more_than_a_dozen():
    assert len({*EVERYWHERE, *ON_HOSTS}) >= 12


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("ranking_l2", ["warm", "cold"])
@pytest.mark.parametrize("variant", sorted([*EVERYWHERE, *ON_HOSTS]))
def test_a_cheat_is_refused_or_its_time_is_the_honest_one(bench, variant, ranking_l2):
    honest = bench.evaluate(configuration(HONEST), ranking_l2)
    assert honest.outcome is Outcome.MEASURED, honest.log
    found = bench.evaluate(configuration(variant), ranking_l2)
    has_no_effect = variant in {"own_clock", "only_poisoned"}
    if has_no_effect and found.outcome is Outcome.MEASURED:  # each of these launches found a poisoned output
        assert found.time_ms > 0.5 * honest.time_ms
    else:
        assert found.outcome in {Outcome.WRONG_RESULT, Outcome.LAUNCH_FAILED}, (found.time_ms, honest.time_ms)


def test_inputs_change_between_the_rounds_of_finals_and_every_contestant_is_right(bench):
    standing = finals(bench, [configuration(HONEST)], "warm")
    assert [finalist.configuration for finalist in standing.finalists] == [configuration(HONEST)]
    assert standing.dropped == ()


@pytest.mark.parametrize("variant", EVERYWHERE)
def test_a_cheat_that_had_a_trial_falls_in_the_finals(bench, variant):
    standing = finals(bench, [configuration(variant), configuration(HONEST)], "warm")
    assert [finalist.configuration for finalist in standing.finalists] == [configuration(HONEST)]
    assert [dropped.configuration for dropped in standing.dropped] == [configuration(variant)]
