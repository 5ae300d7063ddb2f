"""Operators and replaced layers of any number of rows: a range of the table decides once, a measured one not at all."""

import pytest
from timed_calls import time_calls

torch = pytest.importorskip("torch")

from slowness import slow_down  # noqa: E402

import tilewright.torch as tw  # noqa: E402
from tilewright.kernels.catalogue import catalogue  # noqa: E402
from tilewright.kernels.family import Family  # noqa: E402
from tilewright.kernels.space import Configuration  # noqa: E402
from tilewright.tuner.pytorch import operator_plans, plans  # noqa: E402
from tilewright.tuner.pytorch.asked import Asked  # noqa: E402
from tilewright.tuner.pytorch.operators.products import LINEAR  # noqa: E402
from tilewright.tuner.pytorch.precision import ALLOWED  # noqa: E402
from tilewright.tuner.runtime.any_size.ranges import Ranges, SizeRange, SizeTime  # noqa: E402
from tilewright.tuner.runtime.choice import Choice  # noqa: E402
from tilewright.tuner.runtime.known.answers import AnswerCache  # noqa: E402
from tilewright.tuner.runtime.launches.host import host_place  # noqa: E402
from tilewright.tuner.runtime.runtime import Runtime  # noqa: E402
from tilewright.tuner.turns.contest import MOST_CALLS  # noqa: E402

nn, F = torch.nn, torch.nn.functional
KERNEL = catalogue().get("linear")
CONFIGURATION, OTHER = (Configuration.of("tiled", {"TILE_WIDTH": width}) for width in (8, 16))
SLOW_MS = 3.0

pytestmark = pytest.mark.filterwarnings("ignore::tilewright.tuner.pytorch.plans.FallbackWarning")


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """That of calls, without gradients."""
    clock = time_calls(monkeypatch, torch)
    with torch.no_grad():
        yield clock
    tw.use(None)


@pytest.fixture
def ranges(tmp_path):
    """A runtime whose linear layers of 8 to 24 columns have such ranges, by their ends."""

    def made(matches, origin="shipped", library=2.0):
        runtime = Runtime(only_tuned=True, answers=AnswerCache(tmp_path / "answers"), any_size_operators=True)
        times = [SizeTime(size, size / 10, library * size / 10) for size in (1, 8192)]
        choices = [Choice(one, origin, match) for one, match in zip((CONFIGURATION, OTHER), matches.values())]  # noqa: B905 - one or two
        found = [SizeRange(high, choice) for high, choice in zip(matches, choices, strict=True)]
        of_24 = Family.of(KERNEL, {"m": "1..8192", "n": 24, "k": 8})
        of_8 = Family.of(KERNEL, {"m": "1..8192", "n": 8, "k": 8})
        pinned = dict.fromkeys((of_24, of_8), Ranges(found, joins=False, times=times))
        runtime.families.pin(pinned, host_place().slug)
        tw.use(runtime)
        return runtime

    return made


@pytest.fixture
def layer(monkeypatch, clock):
    """Calls `tw.linear` with these numbers of rows; returns who computed each."""
    w, b, linear = torch.randn(24, 8), torch.randn(24), F.linear

    def called(sizes, slow="PyTorch"):
        by = []
        for m in sizes:
            by.append("ours")

            def library(*given, **named):
                by[-1] = "PyTorch"
                clock.spend(SLOW_MS if slow == "PyTorch" else 0)
                return linear(*given, **named)

            monkeypatch.setattr(F, "linear", library)
            x = torch.randn(m, 8)
            found = tw.linear(x, w, b)
            torch.testing.assert_close(found, linear(x, w, b), rtol=1e-4, atol=1e-4)
        return by

    return called


def test_sizes_of_a_range_decide_together_and_a_measured_range_takes_no_turns(ranges, layer):
    ranges({31: "predicted", 8192: "range"})
    called = layer(range(1, 32))
    assert 2 <= called.count("PyTorch") <= MOST_CALLS
    assert set(called[-4:]) == {"ours"}  # sizes that came for the first time
    assert set(layer(range(32, 48))) == {"ours"}
    decided = [one for one in tw.status() if "calls each" in one.reason]
    assert decided
    assert all(one.is_ours and one.pytorch_ms > one.ours_ms for one in decided)


def test_a_range_that_was_measured_to_be_slower_is_pytorchs(ranges, layer):
    ranges({8192: "range"}, library=0.5)
    assert set(layer(range(1, 16))) == {"PyTorch"}


@pytest.mark.parametrize("origin", ["pinned", "bundle"])
def test_a_table_that_somebody_has_named_takes_no_turns(ranges, layer, origin):
    ranges({8192: "predicted"}, origin=origin)
    assert set(layer(range(1, 16))) == {"ours"}


def test_no_turns_are_taken_where_calls_must_not_differ(ranges, layer, monkeypatch):
    ranges({8192: "predicted"}, library=0.5)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
        assert set(layer(range(1, 16))) == {"PyTorch"}  # as the records say
    with torch.enable_grad():
        w = torch.randn(24, 8, requires_grad=True)
        for _ in range(4):
            tw.linear(torch.randn(6, 8), w).sum().backward()
    assert not any("calls each" in one.reason for one in tw.status())


def test_the_setting_turns_them_off(ranges, layer, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_FIRST_USE", "false")
    ranges({8192: "predicted"})
    assert set(layer(range(1, 16))) == {"ours"}


@pytest.fixture
def model(monkeypatch):
    """A replaced layer, PyTorch's own module being slow."""

    def made(**named):
        slow_down(monkeypatch, nn.Linear)
        model = nn.Sequential(nn.Linear(8, 24), nn.Softplus()).eval()
        result = tw.accelerate(model, torch.randn(6, 8), rounds=7, compiles=None, limit_s=300, **named)
        assert result.is_applied, str(result)
        assert result.stands[0].any_rows
        return model

    return made


@pytest.fixture
def rows_of(monkeypatch, clock):
    """Who computes the layer with these numbers of rows."""
    return lambda model, sizes, slow="PyTorch": _rows_of(model, sizes, monkeypatch, clock, slow)


def _rows_of(model, sizes, monkeypatch, clock, slow):
    by, linear = [], F.linear
    weight, bias = model[0].weight, model[0].bias

    def library(*given, **named):
        by[-1] = "PyTorch"
        clock.spend(SLOW_MS if slow == "PyTorch" else 0)
        return linear(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(F, "linear", library)
        for m in sizes:
            by.append("ours")
            x = torch.randn(m, 8)
            torch.testing.assert_close(model(x), F.softplus(torch.addmm(bias, x, weight.T)), rtol=1e-4, atol=1e-4)
    return by


@pytest.mark.parametrize("start", ["decided", "kept"])
def test_a_replaced_layer_takes_turns_in_ranges_that_accelerate_did_not_measure(ranges, model, rows_of, start):
    ranges({31: "predicted", 8192: "predicted"})
    torch.manual_seed(3)
    replaced = model(keep=True)
    if start == "kept":
        ranges({31: "predicted", 8192: "predicted"})
        torch.manual_seed(3)
        replaced = model(keep=True)
    assert set(rows_of(replaced, range(1, 32))) == {"ours"}  # with the sample's six rows
    called = rows_of(replaced, range(32, 80))
    assert 2 <= called.count("PyTorch") <= MOST_CALLS
    assert set(called[-16:]) == {"ours"}


def test_rows_for_which_pytorch_is_the_faster_one_are_pytorchs_without_a_decision_for_each(
    ranges, model, rows_of, clock, monkeypatch
):
    ranges({31: "predicted", 8192: "predicted"})
    replaced = model()
    launch = operator_plans.TunedCall.__call__

    def slow(self, arguments):
        clock.spend(SLOW_MS)
        return launch(self, arguments)

    with monkeypatch.context() as patched:
        patched.setattr(operator_plans.TunedCall, "__call__", slow)
        called = rows_of(replaced, [40] * (MOST_CALLS + 2), slow="")
    assert called[-1] == "PyTorch"
    rows_of(replaced, [6])  # the short way learns
    with monkeypatch.context() as patched:
        patched.setattr(operator_plans.Plans, "run", lambda *_: pytest.fail("it was decided anew"))
        assert set(rows_of(replaced, range(33, 60))) == {"PyTorch"}
        assert set(rows_of(replaced, range(1, 31))) == {"ours"}


def test_what_a_lock_names_takes_no_turns_at_other_lengths(ranges, rows_of, monkeypatch, tmp_path):
    ranges({31: "predicted", 8192: "predicted"})
    replaced = nn.Sequential(nn.Linear(8, 24), nn.Softplus()).eval()
    slow_down(monkeypatch, nn.Linear)
    result = tw.accelerate(replaced, torch.randn(6, 8), rounds=7, compiles=None, limit_s=300)
    path = result.save(tmp_path / "tilewright.lock")
    ranges({31: "predicted", 8192: "predicted"})
    assert tw.accelerate(replaced, lock=path).is_applied
    assert set(rows_of(replaced, [*range(1, 20), *range(40, 60)])) == {"ours"}


@pytest.mark.parametrize(("match", "in_tf32", "accuracy", "takes_turns"), [
    ("exact", False, "fp32", False),
    ("exact", True, "fp32", True),  # the records' library had all bits, PyTorch's call has not
    ("exact", True, "tf32", False),
    ("predicted", True, "fp32", True),
    ("predicted", False, "fp32", True),
])  # fmt: skip
def test_records_beside_another_accuracy_than_pytorchs_do_not_decide(tmp_path, match, in_tf32, accuracy, takes_turns):
    answers = AnswerCache(tmp_path / "answers")
    problem = KERNEL.problem({"m": 6, "n": 24, "k": 8}, options={"accuracy": accuracy})
    facts = {
        "variant": CONFIGURATION.variant,
        "configuration": dict(CONFIGURATION.values),
        "match": match,
        "time_ms": 1.0,
        "library": {"faster": False, "time_ms": 2.0},
        "source_hash": KERNEL.source_hash(CONFIGURATION.variant),
    }
    answers.put(problem, host_place(), facts)
    launcher = Runtime(answers=answers).launcher("linear", {"m": 6, "n": 24, "k": 8, "accuracy": accuracy})
    asked = Asked("linear", launcher, problem, "cpu", in_tf32)
    assert asked.takes_turns is takes_turns
    assert asked.prefers_ours is (not in_tf32 or accuracy == "tf32")


def test_who_asks_for_all_bits_has_ours_where_pytorchs_call_has_not(ranges, monkeypatch):
    """Whatever the times are: PyTorch's call would not compute what is asked for."""
    ranges({8192: "range"}, library=0.5)
    monkeypatch.setattr(operator_plans, "may_be_tf32", lambda _tensor: True)
    monkeypatch.setattr(LINEAR.plans, "in_tf32", lambda: True)
    x, w = torch.randn(6, 8), torch.randn(24, 8)
    tw.linear(x, w, accuracy="fp32")
    assert [one.is_ours for one in tw.status()] == [True]
    assert plans.PROCESS.decisions
    assert ALLOWED not in str(tw.status())
