"""How the command line reads shapes, options and devices, and its exit codes where something is missing."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.kernels.errors import UnknownNameError
from tilewright.service.api.problems import response_to
from tilewright.service.cli.explain import explain
from tilewright.service.cli.local.machine import chosen_devices
from tilewright.service.cli.output import data, fail, warn
from tilewright.service.cli.progress import follow
from tilewright.service.client import ApiProblemError
from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations.answers import JobAnswer, ProblemAnswer
from tilewright.service.operations.parse import format_options, format_shape, parse_options, parse_renames, parse_shape
from tilewright.tuner.devices import local
from tilewright.tuner.devices.local import DeviceEntry

AXES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)


def test_axes_keep_their_order_and_spaces_do_not_matter():
    assert list(parse_shape(" m = 256, n=100 ,k=784").items()) == [("m", 256), ("n", 100), ("k", 784)]


def test_repeated_arguments_are_one_shape():
    assert parse_shape(["m=1,n=2", "k=3"]) == {"m": 1, "n": 2, "k": 3}


def test_sizes_are_left_to_the_kernel_to_judge():
    assert parse_shape("m=0,n=-3") == {"m": 0, "n": -3}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "shape"),
        ("m", "shape"),
        ("m=1,,n=2", "shape"),
        ("=3", "shape"),
        ("m=1;n=2", "shape.m"),
        ("m=", "shape"),
        ("m=1e3", "shape.m"),
        ("m=1.5", "shape.m"),
        ("m=0x10", "shape.m"),
        ("m=٣", "shape.m"),
        ("m=" + "9" * 5000, "shape.m"),
        ("m=1,m=2", "shape.m"),
        ("9m=1", "shape"),
    ],
)
def test_refusal_names_the_field_and_shows_an_example(text, field):
    with pytest.raises(InvalidRequestError) as refused:
        parse_shape(text)
    assert refused.value.field == field
    assert parse_shape(refused.value.example)
    assert len(str(refused.value)) < 200


def test_flags_and_words():
    assert parse_options(["trans_b=true,trans_a=False", "activation=relu"]) == {
        "trans_b": True,
        "trans_a": False,
        "activation": "relu",
    }


@pytest.mark.parametrize("nothing", [None, "", [], [""]])
def test_no_options_are_an_empty_dictionary(nothing):
    assert parse_options(nothing) == {}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("trans_b", "options"),
        ("trans_b=a b", "options.trans_b"),
        ("a=true,a=true", "options.a"),
        ("a='x'", "options.a"),
    ],
)
def test_a_wrong_option_is_named(text, field):
    with pytest.raises(InvalidRequestError) as refused:
        parse_options(text)
    assert refused.value.field == field


def test_renames_are_names_on_both_sides():
    assert parse_renames(["BM=TILE_M,BN=TILE_N", "s=STAGES"]) == {"BM": "TILE_M", "BN": "TILE_N", "s": "STAGES"}
    for text, field in {"BM": "rename", "BM=true": "rename.BM", "BM=1": "rename.BM", "a=B,a=C": "rename.a"}.items():
        with pytest.raises(InvalidRequestError) as refused:
            parse_renames(text)
        assert refused.value.field == field


@given(st.dictionaries(AXES, st.integers(-(10**17), 10**17), min_size=1, max_size=6))
def test_a_written_shape_reads_back(shape):
    assert parse_shape(format_shape(shape)) == shape


@given(st.dictionaries(AXES, st.booleans() | st.sampled_from(["relu", "fast-2", "3xtf32"]), max_size=6))
def test_written_options_read_back(options):
    assert parse_options(format_options(options)) == options


CPU = DeviceEntry("cpu", "cpu", "CPU-1", "a CPU")
SLICES = [DeviceEntry(f"cuda:{n}", "cuda", f"MIG-{n}", "NVIDIA H200 MIG 1g.18gb", gpu_uuid="GPU-a") for n in (0, 1)]
WHOLE = [DeviceEntry(f"cuda:{n}", "cuda", f"GPU-{n}", "NVIDIA H200") for n in (2, 3)]


@pytest.fixture
def here(monkeypatch):
    """Says which devices this machine has."""

    def say(*entries: DeviceEntry) -> None:
        monkeypatch.setattr(local, "list_devices", lambda: list(entries))

    return say


def test_every_device_is_every_gpu_or_the_cpu_where_there_is_none(here):
    here(*WHOLE, CPU)
    assert chosen_devices(None, every=True) == WHOLE
    assert chosen_devices(None, every=False) == WHOLE[:1]
    here(CPU)
    assert chosen_devices(None, every=True) == [CPU]


def test_of_a_gpu_that_is_cut_up_every_device_is_the_first_slice(here):
    """Slices of one GPU share its clocks and its power: only one process measures there."""
    here(*SLICES, *WHOLE, CPU)
    assert chosen_devices(None, every=True) == [SLICES[0], *WHOLE]
    assert chosen_devices(["cuda:1"], every=False) == [SLICES[1]]


def over_http(error, **document):
    """The client's error after the API refused with `error`; members of the document can be put in or taken out."""
    answer = response_to(error, "query")
    sent = {**httpx.Response(404, content=answer.body).json(), **document}
    return ApiProblemError.of(httpx.Response(404, json={name: value for name, value in sent.items() if value}))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFoundError("kernel", "gem", ["gemm"]), 2),
        (UnknownNameError("variant", "fast", ["naive"]), 2),
        (NotFoundError("device model", "nvidia-h200"), 2),
        (NotFoundError("job", "7"), 3),
        (NotFoundError("key in force", "ci"), 3),
    ],
)
def test_what_is_missing_gives_the_same_exit_code_here_and_over_http(error, code):
    assert explain(error).code == code
    assert explain(over_http(error)).code == code
    assert explain(over_http(error, detail="In other words.")).code == code


@pytest.mark.parametrize("missing", [None, ["kernel"]])
def test_an_api_that_does_not_say_what_is_missing_means_nothing_found(missing):
    problem = over_http(NotFoundError("kernel", "gem"), missing=missing)
    assert problem.missing is None
    assert explain(problem).code == 3


def test_a_line_number_between_colons_is_no_emoji(capsys):
    warn("a.cu:100: error: missing")
    fail("a.cu:100: error: missing")
    data.print("a.cu:100: error: missing")
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("a.cu:100: error: missing") == 3


PROBLEM = ProblemAnswer(kernel="gemm", shape={"m": 2, "n": 3, "k": 4}, dtype="float32", options={})


def job(state, phase, trials_done=0, best_ms=None, **more):
    return JobAnswer(
        **more,
        id=UUID(int=7),
        state=state,
        phase=phase,
        problem=PROBLEM,
        device_model="cpu:x",
        device=None,
        compiler=None,
        sampler="tpe",
        variants=None,
        budget={"trials": 10, "seconds": None, "target_ms": None},
        priority=0,
        trials_done=trials_done,
        elapsed_s=0.0,
        best_ms=best_ms,
        study_id=None,
        worker=None,
        epoch=0,
        cancel_requested=False,
        error=None,
        result=None,
        created_at=datetime.now(UTC),
        started_at=None,
        finished_at=None,
    )


def seen(capsys, jobs, why_waiting=lambda _job: None):
    """The finished job and the lines on stderr; the clock goes on a second with every look at it."""
    seconds, answers = count(), iter(jobs)
    last = follow(lambda: next(answers), why_waiting, clock=lambda: float(next(seconds)), sleep=lambda _s: None)
    captured = capsys.readouterr()
    assert captured.out == ""
    return last, captured.err.splitlines()


def test_without_a_terminal_phases_and_the_best_so_far_are_lines(capsys):
    last, lines = seen(
        capsys,
        [job("queued", "queued"), job("running", "searching", 4, 1.5), job("done", "finished", 10, 1.25)],
    )
    assert last.trials_done == 10
    assert lines == [
        "gemm m=2,n=3,k=4 float32: queued: 0 of 10 trials, none measured yet",
        "gemm m=2,n=3,k=4 float32: searching: 4 of 10 trials, best 1.5 ms",
        "gemm m=2,n=3,k=4 float32: finished: 10 of 10 trials, best 1.25 ms",
    ]


def test_a_job_that_nobody_takes_up_is_explained_once_per_reason(capsys):
    reasons = iter(["no worker is running", "no worker is running", *["busy"] * 100])
    waiting = [job("queued", "queued")] * 30
    _, lines = seen(capsys, [*waiting, job("cancelled", "finished")], lambda _job: next(reasons))
    assert [line for line in lines if line.startswith("note")] == ["note no worker is running", "note busy"]


@pytest.mark.parametrize(
    ("stopped_by", "reason"),
    [
        ("exhausted", "every configuration has been tried"),
        ("seconds", "its time budget was used up"),
        ("target", "the target time was reached"),
        ("trials", None),
    ],
)
def test_why_there_are_no_more_trials_is_said(capsys, stopped_by, reason):
    _, lines = seen(capsys, [job("done", "finished", 4, 1.25, stopped_by=stopped_by)])
    assert lines[1:] == ([f"the search ended early: {reason}"] if reason else [])


SHOW = """
import sys
sys.path.insert(0, sys.argv[1])
from test_parse_text import job
from tilewright.service.cli.progress import follow
states = iter([job("queued", "queued"), *(job("running", "searching", n, 0.01234) for n in range(10))])
follow(lambda: next(states, job("done", "finished", 10, 0.0123)), sleep=lambda _s: None)
"""


@pytest.mark.in_turn(3)
def test_the_bar_is_one_line_on_a_terminal_of_80_columns():
    terminal, stderr = pty.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = [sys.executable, "-c", SHOW, str(Path(__file__).parent)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    with subprocess.Popen(words, stderr=stderr, env=environment) as shown:
        os.close(stderr)
        said = b""
        with suppress(OSError):  # how a terminal ends
            while part := os.read(terminal, 4096):
                said += part
    os.close(terminal)
    assert shown.returncode == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())
    lines = [line for line in re.split(r"[\r\n]+", plain) if line]
    assert max(map(len, lines)) <= 80
    assert any(re.fullmatch(r"[━╸╺]{20} finished: 10 of 10 trials, best 0.0123 ms 0:00:\d\d", line) for line in lines)


@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
def test_every_end_is_an_end(capsys, state):
    last, _ = seen(capsys, [job(state, "finished")])
    assert last.state == state


def test_a_best_from_before_the_job_began_is_not_shown_as_its_own(capsys):
    states = [job("running", "preparing", 0, 2.5), job("running", "searching", 1, 2.5), job("done", "finished", 2, 1.5)]
    follow(iter(states).__next__, sleep=lambda _seconds: None)
    lines = capsys.readouterr().err
    assert "preparing: 0 of 10 trials, none measured yet" in lines
    assert "best 1.5 ms" in lines
