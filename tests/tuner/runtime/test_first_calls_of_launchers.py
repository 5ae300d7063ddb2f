"""A launcher whose configuration nobody has measured here takes turns with the library's call of the arrays' owner."""

import pytest
from timed_calls import time_calls
from waiting import until

torch = pytest.importorskip("torch")

from tilewright.kernels.catalogue import catalogue  # noqa: E402
from tilewright.kernels.family import Family  # noqa: E402
from tilewright.kernels.space import Configuration  # noqa: E402
from tilewright.tuner.runtime import Runtime  # noqa: E402
from tilewright.tuner.runtime.any_size.ranges import Ranges, SizeRange, SizeTime  # noqa: E402
from tilewright.tuner.runtime.choice import Choice  # noqa: E402
from tilewright.tuner.runtime.first_use import first_calls  # noqa: E402
from tilewright.tuner.runtime.known.answers import AnswerCache  # noqa: E402
from tilewright.tuner.runtime.known.service import Service  # noqa: E402
from tilewright.tuner.runtime.launches.host import HostLaunches, host_place  # noqa: E402
from tilewright.tuner.turns import turns  # noqa: E402
from tilewright.tuner.turns.contest import MOST_CALLS  # noqa: E402

GEMM = catalogue().get("gemm")
NAIVE = Configuration.of("naive", {"BLOCK_X": 32, "BLOCK_Y": 8})
SHAPE = {"m": 6, "n": 8, "k": 5}
SLOW_MS = 3.0

pytestmark = pytest.mark.usefixtures("cache", "timed")


@pytest.fixture
def timed(monkeypatch):
    """The clock of calls."""
    return time_calls(monkeypatch, torch)


def facts(configuration=NAIVE, match="predicted", ours_ms=1.0, library_ms=2.0):
    """A service's answer."""
    return {
        "variant": configuration.variant,
        "configuration": dict(configuration.values),
        "match": match,
        "time_ms": ours_ms,
        "library": {"faster": ours_ms > library_ms, "time_ms": library_ms},
        "source_hash": GEMM.source_hash(configuration.variant),
    }


@pytest.fixture
def answered(tmp_path):
    """A runtime that has such an answer for a problem of gemm."""

    def made(problem=None, *, runtime=None, **named):
        answers = AnswerCache(tmp_path / "answers")
        answers.put(problem or GEMM.problem(SHAPE), host_place(), facts(**named))
        return Runtime(answers=answers, check_first_use=None, **(runtime or {}))

    return made


def operands(m=6):
    return torch.randn(m, 5), torch.randn(5, 8), torch.empty(m, 8)


@pytest.fixture
def slowed(monkeypatch, timed):
    """Makes PyTorch's call, or ours, slow; returns who was called."""
    return lambda slow="": _slowed(monkeypatch, timed, slow)


def _slowed(monkeypatch, clock, slow):
    called, matmul, launch = [], torch.matmul, HostLaunches.launch

    def library(*given, **named):
        called.append("PyTorch")
        clock.spend(SLOW_MS if slow == "PyTorch" else 0)
        return matmul(*given, **named)

    def ours(self, *given):
        called.append("ours")
        clock.spend(SLOW_MS if slow == "ours" else 0)
        launch(self, *given)

    monkeypatch.setattr(torch, "matmul", library)
    monkeypatch.setattr(HostLaunches, "launch", ours)
    return called


def called_often(launch, calls=2 * MOST_CALLS):
    """Each result is compared."""
    for _ in range(calls):
        a, b, c = operands()
        assert launch(a, b, c) is c
        torch.testing.assert_close(c, a @ b)


@pytest.mark.parametrize("slow", ["PyTorch", "ours"])
@pytest.mark.parametrize("library_ms", [0.5, 2.0])
def test_the_clock_decides_whatever_was_predicted(answered, slowed, monkeypatch, slow, library_ms):
    launch = answered(library_ms=library_ms).best("gemm", **SHAPE)
    called = slowed(slow)
    until(lambda: called_often(launch, 1) or "ours" in called)  # a thread loads it
    called.clear()
    called_often(launch)
    faster = "ours" if slow == "PyTorch" else "PyTorch"
    assert set(called[:4]) == {"ours", "PyTorch"}
    assert set(called[-MOST_CALLS:]) == {faster}
    assert called.count(slow) <= MOST_CALLS // 2


@pytest.mark.parametrize("match", ["exact", "range"])
def test_what_was_measured_here_takes_no_turns(answered, slowed, monkeypatch, match):
    called = slowed()
    called_often(answered(match=match).best("gemm", **SHAPE))
    assert set(called) == {"ours"}


def test_what_the_application_has_pinned_takes_no_turns(answered, slowed, monkeypatch):
    runtime = answered()
    runtime.pin({GEMM.problem(SHAPE): NAIVE}, {GEMM.problem(SHAPE): "predicted"})
    called = slowed()
    called_often(runtime.best("gemm", **SHAPE))
    assert set(called) == {"ours"}


def test_the_setting_of_the_first_use_turns_it_off(answered, slowed, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_FIRST_USE", "false")
    called = slowed()
    called_often(answered().best("gemm", **SHAPE))
    assert set(called) == {"ours"}


@pytest.mark.parametrize("library_ms", [0.5, 2.0])
@pytest.mark.parametrize("why", ["deterministic", "ranks", "capture"])
def test_the_records_say_who_runs_where_nothing_may_take_turns(answered, slowed, monkeypatch, why, library_ms):
    launch = answered(library_ms=library_ms).best("gemm", **SHAPE)
    called = slowed()
    if why == "deterministic":
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    elif why == "ranks":
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    else:
        monkeypatch.setattr(first_calls, "capture_id", lambda _stream: 7)
    called_often(launch)
    assert set(called) == {"ours" if library_ms > 1 else "PyTorch"}


def test_what_the_library_does_not_compute_as_asked_stays_ours(answered, slowed, monkeypatch):
    launch = answered().best("gemm", **SHAPE)
    called = slowed()
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        called_often(launch)  # the problem asks for all bits
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    a, b, c = operands()
    with torch.enable_grad():
        launch(a.requires_grad_(), b, c)  # a forward that is recorded
    launch(*operands(), stream=0)  # on a stream of the caller's
    with turns.held(ours=True):  # an operator, which has decided
        launch(*operands())
    with torch.no_grad():
        a, b, c = (one.numpy() for one in operands())
        launch(a, b, c)
    assert set(called) == {"ours"}


def test_other_factors_are_the_librarys_too(answered, slowed, monkeypatch):
    launch = answered(GEMM.problem(SHAPE, options={"beta_zero": False})).best("gemm", **SHAPE, beta_zero=False)
    for _ in range(MOST_CALLS):
        a, b, c = operands()
        expected = 2.0 * (a @ b) + 0.5 * c.fill_(3)
        torch.testing.assert_close(launch(a, b, c, alpha=2.0, beta=0.5), expected)


@pytest.mark.parametrize(("kernel", "shape", "options"), [
    ("linear", {"m": 6, "n": 8, "k": 5}, {"activation": "gelu"}),
    ("linear", {"m": 6, "n": 8, "k": 5}, {"activation": "relu"}),
    ("gemm", {"m": 6, "n": 8, "k": 5}, {"trans_a": True, "trans_b": True}),
    ("gemm", {"m": 6, "n": 8, "k": 5, "batch": 3}, {}),
    ("gemv", {"m": 6, "n": 8}, {"trans_a": True}),
    ("softmax", {"m": 6, "n": 8}, {}),
])  # fmt: skip
def test_the_librarys_call_computes_what_ours_does(kernel, shape, options):
    declared = catalogue().get(kernel)
    problem = declared.problem(shape, options=options)
    arrays = [torch.randn(one.layout(problem).shape) for one in declared.tensors]
    launch = Runtime(check_first_use=False).best(kernel, **shape, **options)
    with pytest.warns():  # nothing is tuned
        ours = launch(*arrays).clone()
    found = first_calls.opponent(launch.problem, {one.name: one.default for one in declared.options}, arrays)
    arrays[-1].fill_(float("nan"))
    found.call(arrays, launch.scalars())
    torch.testing.assert_close(arrays[-1], ours)


@pytest.mark.parametrize("options", [{"accuracy": "fp32-fma"}, {"packed_b": True}])
def test_what_no_library_call_is_known_for_takes_no_turns(options):
    problem = GEMM.problem(SHAPE, options=options)
    assert first_calls.opponent(problem, {one.name: one.default for one in GEMM.options}, operands()) is None


def test_a_service_is_told_of_the_times_once_a_range(answered, slowed, monkeypatch):
    told = []
    monkeypatch.setattr(Service, "claim", lambda _self, *claimed, times: told.append((*claimed, times)))
    launch = answered(runtime={"url": "http://127.0.0.1:9"}).best("gemm", **SHAPE)
    slowed("ours")
    called_often(launch)
    [(kernel, problem, place, driver, configuration, seen, times)] = told
    assert (kernel.name, problem, place, driver) == ("gemm", GEMM.problem(SHAPE), host_place(), "")
    assert configuration == NAIVE
    assert times.ours_ms > SLOW_MS > times.library_ms > 0
    assert f"{times.calls} of each" in seen


def ranges_of(family, matches, origin="shipped"):
    """Ranges that end at these sizes, and match so."""
    times = [SizeTime(size, size / 10, size / 5) for size in (1, 64)]
    found = [SizeRange(high, Choice(NAIVE, origin, match)) for high, match in matches.items()]
    return Ranges(found, joins=False, times=times)


@pytest.fixture
def of_any_size():
    """A launcher of up to 64 rows, with such ranges."""

    def made(matches, **named):
        runtime, family = Runtime(), Family.of(GEMM, {"m": "1..64", "n": 8, "k": 5})
        if named:
            family = Family.of(GEMM, {"m": "1..64", "n": 8, "k": 5}, options=named)
        runtime.families.pin({family: ranges_of(family, matches)}, host_place().slug)
        return runtime.best("gemm", m="1..64", n=8, k=5, **named)

    return made


@pytest.fixture
def rows_called(monkeypatch, timed):
    """By whom each size was computed, PyTorch's being slow."""
    return lambda launch, sizes: _rows_called(launch, monkeypatch, timed, sizes)


def _rows_called(launch, monkeypatch, clock, sizes):
    called, matmul = [], torch.matmul

    def library(*given, **named):
        called[-1] = "PyTorch"
        clock.spend(SLOW_MS)
        return matmul(*given, **named)

    monkeypatch.setattr(torch, "matmul", library)
    for m in sizes:
        called.append("ours")
        a, b, c = operands(m)
        torch.testing.assert_close(launch(a, b, c), torch.mm(a, b))
    return called


def test_sizes_of_a_range_decide_together_and_a_measured_range_takes_no_turns(of_any_size, rows_called):
    launch = of_any_size({31: "predicted", 64: "range"})
    called = rows_called(launch, range(1, 32))
    assert called.count("PyTorch") <= MOST_CALLS // 2
    assert set(called[-8:]) == {"ours"}  # sizes that came for the first time
    assert set(rows_called(launch, range(32, 64))) == {"ours"}


def test_each_range_decides_for_itself(of_any_size, rows_called):
    launch = of_any_size({15: "predicted", 64: "predicted"})
    assert "PyTorch" in rows_called(launch, [3] * 12)
    assert "PyTorch" in rows_called(launch, [33] * 12)


def test_rows_that_must_not_depend_on_their_number_take_no_turns(of_any_size, rows_called):
    launch = of_any_size({64: "predicted"}, batch_invariant=True)
    assert set(rows_called(launch, range(1, 32))) == {"ours"}


def test_a_size_between_two_measured_ones_has_a_time_between_theirs():
    found = ranges_of(None, {64: "range"})
    assert found.choice(1).time_ms == pytest.approx(0.1)
    assert found.choice(8).time_ms == pytest.approx(0.8)
    assert found.choice(128).time_ms == pytest.approx(12.8)
    assert found.choice(8).library_ms == pytest.approx(1.6)
    assert not found.choice(8).is_behind
    slower = Ranges(found.ranges, times=[SizeTime(1, 0.1, 0.2), SizeTime(64, 6.4, 3.2)])
    assert [slower.choice(size).is_behind for size in (1, 64)] == [False, True]
    assert Ranges(found.ranges).choice(8) == Choice(NAIVE, "shipped", "range")
