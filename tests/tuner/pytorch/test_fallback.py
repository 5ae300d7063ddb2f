"""Where no tuned kernel is known, or has no room, PyTorch's own operator runs, with one warning that says why."""

import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from faulty_kernels import faulty, planted  # noqa: E402

import tilewright.torch as tw  # noqa: E402
from tilewright.kernels.catalogue import catalogue  # noqa: E402
from tilewright.kernels.space import Configuration  # noqa: E402
from tilewright.tuner.pytorch import plans  # noqa: E402
from tilewright.tuner.pytorch.plans import FallbackWarning  # noqa: E402
from tilewright.tuner.runtime import Runtime, ServiceWarning, WrongResultWarning  # noqa: E402
from tilewright.tuner.runtime.known.answers import AnswerCache  # noqa: E402
from tilewright.tuner.runtime.launches.host import HostLaunches, host_place  # noqa: E402
from tilewright.tuner.runtime.memory.room import HOST, ROOM, SETTING  # noqa: E402
from tilewright.tuner.runtime.runtime import default_runtime  # noqa: E402


def same(call, expected, match):
    """One warning for both calls, and PyTorch's result."""
    with pytest.warns(tw.FallbackWarning, match=match) as told:
        results = call(), call()
    torch.testing.assert_close(results, (expected, expected))
    assert len(told) == 1
    assert told[0].filename == __file__


def test_an_untuned_problem_is_pytorchs_and_the_warning_says_how_to_tune_it(untuned):
    a, b = torch.randn(7, 6), torch.randn(6, 5)
    same(
        lambda: tw.gemm(a, b), a @ b, r"no result for gemm m=7,n=5,k=6 float32 .*Tune it: tilewright tune gemm --shape"
    )
    with warnings.catch_warnings(action="error"):
        tw.gemm(b.mT, a.mT)  # another one of the same kind
    assert [(one.is_ours, one.reason[:9]) for one in tw.status()] == [(False, "no result")] * 2


@pytest.mark.parametrize(
    ("call", "reference", "reason"),
    [
        (lambda a: tw.gemm(a, a), lambda a: a @ a, "dtype"),
        (lambda a: tw.softmax(a.float(), 0), lambda a: a.float().softmax(0), "last dimension"),
    ],
)
def test_what_no_kernel_computes_is_pytorchs(call, reference, reason):
    a = torch.randint(0, 9, (4, 4))
    same(lambda: call(a), reference(a), reason)


RIGHT = "for (unsigned p0 = 0; p0 < K; p0 += TILE_WIDTH)"
WRONG = "for (unsigned p0 = 0; p0 + (TILE_WIDTH == 8 ? 8 : 1) <= K; p0 += TILE_WIDTH)"
"""Tiles of 8 leave out the last terms where 8 does not divide K; other tiles are right."""


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    """A runtime in use whose prediction for one product is wrong; and that product's factors."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    kernels = faulty(tmp_path, "gemm", "tiled.cu", RIGHT, WRONG)
    runtime = predicting(tmp_path, kernels)
    return runtime, torch.randn(7, 12), torch.randn(12, 5)


def predicting(tmp_path, kernels, width=8, match="predicted"):
    """Uses a runtime that has heard of a configuration for one product."""
    problem = kernels.get("gemm").problem({"m": 7, "n": 5, "k": 12})
    tiled = Configuration.of("tiled", {"TILE_WIDTH": width})
    answers = planted(tmp_path / "answers", kernels, problem, host_place(), tiled, match)
    runtime = Runtime(only_tuned=True, answers=answers, kernels=kernels, shipped_records=False)
    plans.use(runtime)
    return runtime


def test_a_configuration_that_is_wrong_at_its_first_use_makes_later_calls_pytorchs(wrong):
    runtime, a, b = wrong
    with pytest.warns(WrongResultWarning, match="gemm m=7,n=5,k=12 float32 .*tiled TILE_WIDTH=8"):
        assert not torch.allclose(tw.gemm(a, b), a @ b)
    same(lambda: tw.gemm(a, b), a @ b, "no result for gemm m=7,n=5,k=12")
    (one,) = tw.status()
    assert not one.is_ours
    assert one.check.startswith("withdrawn: tiled TILE_WIDTH=8 (predicted, from cache): ")
    assert "components of the rows that were checked are out of bounds, first at (0, 0): got " in one.check
    choose, asked = runtime.choose, []
    runtime.choose = lambda *problem: asked.append(problem) or choose(*problem)
    for _ in range(3):
        torch.testing.assert_close(tw.gemm(a, b), a @ b)
    assert not asked


def test_the_next_answer_serves_a_problem_whose_first_was_wrong(wrong, tmp_path):
    runtime, a, b = wrong
    with pytest.warns(WrongResultWarning):
        tw.gemm(a, b)
    problem = runtime.kernels.get("gemm").problem({"m": 7, "n": 5, "k": 12})
    other = Configuration.of("tiled", {"TILE_WIDTH": 16})
    planted(tmp_path / "answers", runtime.kernels, problem, host_place(), other, "nearest")
    with warnings.catch_warnings(action="error"):
        torch.testing.assert_close(tw.gemm(a, b), a @ b)
    (one,) = tw.status()
    assert one.is_ours
    assert [words.split(":")[0] for words in one.check.split("; ")] == ["withdrawn", "checked"]


def test_prepare_withdraws_what_is_wrong_and_calls_again(wrong, monkeypatch):
    _, a, b = wrong
    monkeypatch.setattr(HostLaunches, "launch", lambda self, *given: self._function.launch(*given))  # as in a capture
    results = []
    with pytest.warns(tw.FallbackWarning), pytest.warns(WrongResultWarning):
        status = tw.prepare(lambda: results.append(tw.gemm(a, b)))
    assert len(results) == 2
    torch.testing.assert_close(results[-1], a @ b)
    assert [(one.is_ours, one.check.partition(":")[0]) for one in status] == [(False, "withdrawn")]


def test_prepare_checks_what_calls_could_not(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    predicting(tmp_path, catalogue())
    monkeypatch.setattr(HostLaunches, "launch", lambda self, *given: self._function.launch(*given))  # as in a capture
    tw.gemm(torch.randn(7, 12), torch.randn(12, 5))
    waiting = "waiting: tiled TILE_WIDTH=8 (predicted, from cache): no call that could be checked yet"
    assert [one.check for one in tw.status()] == [waiting]
    assert [one.check.partition(":")[0] for one in tw.prepare()] == ["checked"]


def test_an_address_that_is_not_aligned_is_pytorchs_for_this_call():
    wide = torch.randn(8 * 8 + 1)
    a, b = wide[1:].view(8, 8), torch.randn(8, 8)
    same(lambda: tw.gemm(a, b), a @ b, "past a multiple of 16")
    torch.testing.assert_close(tw.gemm(wide[:-1].view(8, 8), b), wide[:-1].view(8, 8) @ b)
    assert tw.status()[-1].is_ours is False


def test_an_output_without_elements_is_pytorchs_without_a_warning():
    with warnings.catch_warnings(action="error"):
        assert tw.gemm(torch.ones(0, 6), torch.ones(6, 5)).shape == (0, 5)
        assert tw.gemm(torch.ones(3, 0), torch.ones(0, 5)).eq(0).all()


def test_a_service_that_is_away_costs_one_warning(tmp_path):
    tw.use(Runtime(only_tuned=True, url="http://127.0.0.1:9", answers=AnswerCache(tmp_path)))
    a = torch.randn(4, 4)
    with pytest.warns() as told:
        tw.linear(tw.gemm(a, a), a)
    assert [one.category for one in told] == [ServiceWarning, tw.FallbackWarning, tw.FallbackWarning]


def test_what_the_library_does_faster_is_left_to_it(tmp_path):
    place, kernel = host_place(), catalogue().get("gemm")
    answers, problem = AnswerCache(tmp_path), kernel.problem({"m": 4, "n": 4, "k": 4})
    answer = SimpleNamespace(variant="tiled", configuration={"TILE_WIDTH": 8}, match="exact", time_ms=1.0)
    facts = vars(answer) | {"library": {"faster": True}, "source_hash": kernel.source_hash("tiled")}
    answers.put(problem, place, facts)
    tw.use(Runtime(only_tuned=True, answers=answers))
    a = torch.randn(4, 4)
    with warnings.catch_warnings(action="error"):
        torch.testing.assert_close(tw.gemm(a, a), a @ a)
    assert tw.status()[0].reason == "the library was faster than tiled TILE_WIDTH=8 (exact, from cache)"


@pytest.mark.parametrize(
    ("match", "words"),
    [("exact", "the library was faster"), ("predicted", "the library is expected to be faster")],
)
def test_no_sentence_says_was_of_what_was_not_timed(tmp_path, match, words):
    """Whether or not the configuration is checked at its first use."""
    place, kernel = host_place(), catalogue().get("gemm")
    facts = {"variant": "tiled", "configuration": {"TILE_WIDTH": 8}, "match": match, "time_ms": 1.0}
    facts |= {"library": {"faster": True, "time_ms": 0.5}, "source_hash": kernel.source_hash("tiled")}
    for is_checked in (True, False):
        answers = AnswerCache(tmp_path / str(is_checked))
        answers.put(kernel.problem({"m": 4, "n": 4, "k": 4}), place, facts)
        tw.use(Runtime(only_tuned=True, answers=answers, check_first_use=is_checked))
        a = torch.randn(4, 4)
        torch.testing.assert_close(tw.gemm(a, a), a @ a)
        (decision,) = tw.status()
        assert decision.reason.startswith(words)
        assert (decision.fallback, decision.ours_ms, decision.pytorch_ms) == ("library_faster", 1.0, 0.5)


def test_a_wrong_setting_of_the_environment_is_said_and_the_program_runs(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_URL", "nowhere")
    default_runtime.cache_clear()
    tw.use(None)
    a = torch.randn(4, 4)
    same(lambda: tw.gemm(a, a), a @ a, "TILEWRIGHT_URL: 'nowhere' is not an HTTP address")
    default_runtime.cache_clear()


@pytest.mark.in_turn(2)
def test_importing_the_operators_does_not_load_the_launcher():
    program = "import sys, torch, tilewright.torch; print('tilewright.tuner.runtime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


GEMV = catalogue().get("gemv")


@pytest.fixture
def split(tmp_path):
    """Operators with a configuration of gemv that needs scratch memory."""
    problem, limits = GEMV.problem({"m": 8, "n": 8192}), host_place().limits
    feasible = GEMV.space(problem, limits, ["split"]).feasible
    configuration = next(c for c in feasible if GEMV.variant("split").workspace_bytes(c.values, problem))
    tw.release()
    tw.use(Runtime(answers=AnswerCache(tmp_path / "answers"), only_tuned=True, pinned={problem: configuration}))
    yield
    tw.use(None)


def test_a_call_without_room_is_pytorchs_until_there_is_some(split, monkeypatch):
    a, x = torch.randn(8, 8192), torch.randn(8192)
    others = ROOM.taken_bytes(HOST)  # of launches in other tests, which somebody still holds
    torch.testing.assert_close(tw.gemv(a, x), a @ x, atol=1e-3, rtol=1e-4)
    assert ROOM.taken_bytes(HOST) > others
    assert tw.release() > 0
    monkeypatch.setenv(SETTING, "0")
    with pytest.warns(FallbackWarning, match=f"{SETTING}=0 are in use"):
        torch.testing.assert_close(tw.gemv(a, x), a @ x)
    (decision,) = tw.status()
    assert not decision.is_ours
    assert ROOM.taken_bytes(HOST) == others
    monkeypatch.delenv(SETTING)
    tw.gemv(a, x)
    assert ROOM.taken_bytes(HOST) > others
