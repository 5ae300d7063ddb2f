"""A decision is kept for the next start, and comes within its limit, with a line that says how far it is."""

import io
import json
import math
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")


from slowness import Clock, slow_down  # noqa: E402

import tilewright.torch as tw  # noqa: E402
from tilewright.tuner.pytorch.acceleration import deciding  # noqa: E402
from tilewright.tuner.pytorch.acceleration.installation import installed  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement import judge, settling, timing  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement.pace import Pace, can_stop, within  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_gradients")

nn = torch.nn


@pytest.fixture
def slow_linear(monkeypatch):
    """PyTorch's linear layers take milliseconds of the clock that decides: ours win on every machine."""
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    slow_down(monkeypatch, nn.Linear, sleep=clock.sleep)


def model():
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8)).eval()


X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
QUICK = {"rounds": 7, "compiles": None, "limit_s": 300}  # cold and under load: kernels are compiled first


def decided_anew(monkeypatch):
    """Whether anything is compared, by a list that grows then."""
    seen, plain = [], settling.weigh
    monkeypatch.setattr(settling, "weigh", lambda one, *rest: seen.append(one) or plain(one, *rest))
    return seen


def test_the_next_start_has_the_same_replacements_without_any_measurement(slow_linear, monkeypatch, kept_folder):
    first = tw.accelerate(model(), X, **QUICK)
    assert first.is_applied, str(first)
    [path] = kept_folder.iterdir()
    seen, other = decided_anew(monkeypatch), model()
    expected = other(X)
    again = tw.accelerate(other, X, **QUICK)
    assert not seen
    assert type(other[0]) is installed.AcceleratedLinear
    torch.testing.assert_close(other(X), expected)
    assert (again.way, again.stands, again.speedup()) == (first.way, first.stands, first.speedup())
    assert again.as_json()["sites"] == json.loads(json.dumps(first.as_json()["sites"]))
    assert "As was decided at" in str(again)
    again.undo()
    assert type(other[0]) is nn.Linear
    tw.accelerate(other, X, keep=False, **QUICK)
    assert seen
    assert [*kept_folder.iterdir()] == [path]


class Anew(BaseException):
    """Something is compared: that is all these tests need to know."""


@pytest.fixture
def decided(slow_linear, monkeypatch):
    """The model is decided; who compares from now on is stopped."""

    def weigh(*_):
        raise Anew

    tw.accelerate(model(), X, **QUICK)
    monkeypatch.setattr(settling, "weigh", weigh)


def test_anything_that_decides_makes_it_another_decision(decided):
    tw.accelerate(model(), X, **QUICK)
    for other, sample, named in (
        (model(), X[:5], {}),
        (model().double(), X.double(), {}),
        (model().append(nn.Tanh()), X, {}),
        (model(), X, {"tolerance": 1e-3}),
        (model(), {"input": X}, {}),
    ):
        with pytest.raises(Anew):
            tw.accelerate(other, sample, **(QUICK | named))


def test_what_was_decided_under_another_precision_is_decided_anew(decided, kept_folder):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(Anew):
            tw.accelerate(model(), X, **QUICK)
    finally:
        torch.set_float32_matmul_precision(before)


def test_what_does_not_hold_any_more_is_decided_anew(decided, monkeypatch, kept_folder):
    [path] = kept_folder.iterdir()
    text = path.read_text()
    path.write_text(text.replace('"applied": true', '"applied": false'))
    with pytest.raises(Anew):
        tw.accelerate(model(), X, **QUICK)
    path.write_text(text)
    plain = installed.AcceleratedModule.forward
    monkeypatch.setattr(installed.AcceleratedModule, "forward", lambda self, x: plain(self, x) * 1.01)
    with pytest.raises(Anew):  # what was kept computes something else
        tw.accelerate(model(), X, **QUICK)


def test_that_nothing_is_faster_is_kept_too(monkeypatch):
    first = tw.accelerate(model(), X, **QUICK)
    assert not first.is_applied
    seen = decided_anew(monkeypatch)
    again = tw.accelerate(model(), X, **QUICK)
    assert (seen, again.reason) == ([], "no replacement makes the model faster")


PROGRAM = """
import pytest, torch, tilewright.torch as tw
from tests.tuner.pytorch.test_kept_results import QUICK, X, decided_anew, model
seen = decided_anew(pytest.MonkeyPatch())
with torch.no_grad():
    other = model()
    result = tw.accelerate(other, X, **QUICK)
print(len(seen), type(other[0]).__name__, result.way)
"""


@pytest.mark.in_turn(3)
def test_another_process_of_the_same_program_measures_nothing(slow_linear, tmp_path):
    first = tw.accelerate(model(), X, **QUICK)
    environment = {"TILEWRIGHT_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False
    )
    assert ended.stdout.split() == ["0", "AcceleratedLinear", first.way], ended.stderr


def test_torch_compiles_ways_are_the_first_to_be_left_out(slow_linear, monkeypatch):
    monkeypatch.setattr(judge, "LEAST_COMPILING_S", 300.0)  # there is less once operators have been compared
    called = []
    result = tw.accelerate(model(), X, rounds=5, limit_s=300.0, compiles=called.append)
    assert result.is_applied, str(result)
    assert not called
    assert "torch.compile's ways are left out: " in str(result)
    assert "of limit_s=300 were left for it. Give more." in str(result)


def test_a_compiler_that_takes_too_long_is_stopped(slow_linear, monkeypatch):
    allowed_s = []

    def sooner(limit_s):
        allowed_s.append(limit_s)
        return within(0.05)

    def compiles(_):
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(judge, "within", sooner)
    result = tw.accelerate(model(), X, rounds=5, limit_s=300.0, compiles=compiles)
    assert "torch.compile's ways are left out: it took more than 0.05 s" in str(result)
    assert [0 < one < 0.7 * 300 for one in allowed_s] == [True]
    assert can_stop()


def test_operators_that_there_is_no_time_for_are_left_as_they_are(monkeypatch):
    words = "limit_s=1e-09 was over before it was {}; others take longer"
    with pytest.warns(tw.AccelerationWarning, match=words.format("looked up")):
        assert not tw.accelerate(model(), X, **(QUICK | {"limit_s": 1e-9})).is_applied
    monkeypatch.setattr(deciding, "LOOKING", math.inf)
    result = tw.accelerate(model(), X, **(QUICK | {"limit_s": 1e-9}))
    assert not result.is_applied
    assert words.format("compared") in {one.reason for one in result.candidates}
    assert "3 operators were not compared within limit_s=1e-09; a longer one decides anew." in result.remarks
    monkeypatch.setattr(deciding, "LOOKING", 0.0)  # what was decided in that time is kept
    assert not tw.accelerate(model(), X, **(QUICK | {"limit_s": 1e-9})).is_applied


def test_a_line_says_what_is_done_and_how_long_it_may_take(capsys):
    tw.accelerate(model(), X, keep=False, progress=True, **QUICK)
    said = capsys.readouterr().err
    assert "operators compared; " in said
    assert " s more" in said
    assert said.rpartition("\r")[2] == ""
    assert not said.split("\r")[-2].strip()
    tw.accelerate(model(), X, keep=False, **QUICK)
    assert capsys.readouterr().err == ""


def test_a_pace_has_a_limit_from_which_something_may_be_left_out():
    now = [0.0]
    pace = Pace(20.0, io.StringIO(), lambda: now[0])
    now[0] = 7.0
    assert (pace.used_s, pace.left_s) == (7.0, 11.0)  # a tenth is kept for what follows the last rounds
    pace.exclude(5.0)
    assert (pace.used_s, pace.left_s) == (2.0, 16.0)
    pace.tell("3 of 4 done")
    assert pace._stream.getvalue() == "\raccelerate: 3 of 4 done; 2 s so far, at most 16 s more"
    now[0] = 99.0
    assert pace.left_s == 0.0


def test_a_block_ends_in_time():
    with pytest.raises(TimeoutError, match=r"more than 0\.05 s"), within(0.05):
        time.sleep(5)
