"""What `accelerate` decides and installs, piece by piece: errors, the way that is taken, joined parameters."""

import math
import subprocess
import sys
import threading
from itertools import pairwise
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402
from tilewright.kernels.catalogue import catalogue  # noqa: E402
from tilewright.kernels.space import Configuration  # noqa: E402
from tilewright.tuner.devices.isolated.device import IsolatedDevice  # noqa: E402
from tilewright.tuner.devices.known_models import known_model  # noqa: E402
from tilewright.tuner.predict.shipped import shipped_models  # noqa: E402
from tilewright.tuner.pytorch.acceleration import tuning  # noqa: E402
from tilewright.tuner.pytorch.acceleration.installation import installed  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement import candidates, outputs  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement.candidates import Candidate  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement.judge import MOST_ALONE, Judge, best_way  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement.pace import Pace  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement.sample import Sample  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement.settling import _as_loaded, _fit  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement.standard import Error, Verdict  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement.timing import play  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.call import entry  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.sites import observe  # noqa: E402
from tilewright.tuner.pytorch.acceleration.tuning import starts  # noqa: E402
from tilewright.tuner.runtime.choice import (  # noqa: E402
    Choice,
    TargetDevice,
)
from tilewright.tuner.runtime.known import prediction_process  # noqa: E402
from tilewright.tuner.runtime.known.answers import AnswerCache  # noqa: E402
from tilewright.tuner.runtime.runtime import Runtime  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_gradients")

nn = torch.nn


def test_the_error_of_an_output_is_that_of_its_worst_tensor():
    exact = {"a": torch.ones(4), "b": [torch.full((4,), 2.0), torch.tensor([1, 2])]}
    off = {"a": torch.ones(4), "b": [torch.full((4,), 2.2), torch.tensor([1, 2])]}
    assert outputs.difference(off, exact) == pytest.approx(0.1)
    assert outputs.difference({"a": torch.full((4,), float("nan")), "b": exact["b"]}, exact) == float("inf")
    assert outputs.difference({"a": torch.ones(4)}, exact) == float("inf")


def test_the_way_that_is_taken_is_the_last_that_beats_all_before_it_beyond_the_noise():
    def times(**ms):
        return {
            way.replace("_", " "): [one * (1 + 0.01 * (place % 3)) for place in range(9)] for way, one in ms.items()
        }

    assert best_way(times(eager=4.0, ours=4.0, ours_as_a_graph=1.0, graph=1.5)) == "ours as a graph"
    assert best_way(times(eager=4.0, ours=5.0, ours_as_a_graph=1.5, graph=1.5)) == "graph"
    assert best_way(times(eager=4.0, ours=2.0, ours_as_a_graph=2.0, graph=4.0)) == "ours"
    assert best_way(times(eager=4.0, graph=4.0)) == "eager"
    noisy = times(eager=4.0) | {"ours": [3.0, 5.0, 3.0, 5.0, 3.0, 5.0, 3.0, 3.0, 3.0]}
    assert best_way(noisy) == "eager"


def test_what_was_just_installed_is_called_before_it_is_timed():
    model, x, seen = nn.Linear(4, 3), torch.ones(2, 4), []

    class Seen(Sample):
        def __call__(self, call):
            seen.append(type(model).__name__)
            return super().__call__(call)

    judge = Judge(model, Seen(x), None, torch.device("cpu"), 5, Pace(1.0), with_gradients=False)
    stand = installed.Replacement(entry(x), ("",))
    replaced = Candidate(SimpleNamespace(calls=1, stand=lambda **_: stand))
    play({"ours": judge._eager([replaced])}, torch.device("cpu"), 1, 1.0)
    assert len(seen) > 3
    assert seen[0] == "AcceleratedLinear"
    times = play({"ours": judge._eager([replaced]), "eager": judge._eager([])}, torch.device("cpu"), 2, 1.0)
    assert [len(one) for one in times.values()] == [2, 2]
    assert set(seen) == {"AcceleratedLinear", "Linear"}
    assert all(seen[at + 1] == seen[at] for at in range(len(seen) - 1) if at == 0 or seen[at] != seen[at - 1])


def disputed(calls, library_ms=0.02):
    """A candidate that is faster than the library by its answer, and slower than it alone in a graph."""
    choice = Choice(Configuration.of("any", {}), "cache", match="exact", time_ms=0.01, library_ms=library_ms)
    site = SimpleNamespace(calls=calls, fusion="", stand=lambda **_: None)
    return Candidate(site, choice=choice, pytorch_ms=0.009, ours_ms=0.012)


def test_what_is_slower_alone_and_not_by_its_answer_is_left_to_the_model(monkeypatch):
    helps, harms, plain = disputed(4), disputed(8), Candidate(SimpleNamespace(calls=1), pytorch_ms=2.0, ours_ms=1.0)
    assert [one.is_disputed for one in (helps, harms, plain, disputed(4, library_ms=None))] == [
        True,
        True,
        False,
        False,
    ]
    costs = {helps: 0.9, harms: 1.02, plain: 0.8}
    judge = Judge(None, None, None, torch.device("cpu"), 15, Pace(1.0), with_gradients=False)
    monkeypatch.setattr(Judge, "_timed", lambda _, chosen: math.prod(costs[one] for one in chosen))
    monkeypatch.setattr(
        "tilewright.tuner.pytorch.acceleration.judgement.judge.play",
        lambda given, *_: {name: [one] * 15 for name, one in given.items()},
    )
    assert judge.choose([plain, helps, harms]) == [plain, helps]
    assert harms.reason == "PyTorch's own takes 0.009 ms here, ours 0.012 ms"
    many = [disputed(1) for _ in range(MOST_ALONE + 1)]
    costs |= dict.fromkeys(many, 0.9)
    assert len(judge.choose(many)) == MOST_ALONE  # nobody judged the last


def test_joined_parameters_stay_where_they_are_until_the_model_is_what_it_was():
    layers = [nn.Linear(8, 4), nn.Linear(8, 4)]
    model = nn.Sequential(*layers)
    before = [one.clone() for one in model.parameters()]
    stand = installed.Replacement(entry(torch.randn(6, 8)), ("0+1",), fusion=installed.SHARED)
    installed.install(model, [stand], with_gradients=False)
    places = [one.data_ptr() for one in model.parameters()]
    installed.install(model, [], with_gradients=False)
    installed.install(model, [stand], with_gradients=False)
    assert [one.data_ptr() for one in model.parameters()] == places
    installed.uninstall(model)
    assert len({one.untyped_storage().data_ptr() for one in model.parameters()}) == 4
    torch.testing.assert_close([*model.parameters()], before)


def test_a_search_begins_with_the_likest_problems_of_its_kernel_and_dtype():
    linear = catalogue().get("linear")

    def problem(m, dtype="float32", **options):
        return linear.problem({"m": m, "n": 768, "k": 768}, dtype, options)

    names = {
        problem(64): "far",
        problem(4096): "same",
        problem(4096, activation="relu"): "alike",
        problem(4096, dtype="float64"): "another type",
    }
    known = {one: Configuration.of(name, {}) for one, name in names.items()}
    begin_with = [one.variant for one in starts(problem(4096, activation="gelu"), known)]
    assert set(begin_with[:2]) == {"same", "alike"}
    assert begin_with[2:] == ["far"]


class Bench:
    """Compiles one of what it was told whenever somebody waits, and tells `events`."""

    compiles_ahead = True

    def __init__(self, events):
        self.events = events

    def compile_ahead(self, configurations):
        self.events.append(f"told of {len(configurations)}")

    def ready(self, configurations, *, wait):
        self.events.append("waited")
        return configurations[:1]

    def close(self):
        self.events.append("closed")


class Gpu(IsolatedDevice):
    """One behind whose pool nothing is compiled."""

    model = known_model("NVIDIA H200")

    def __init__(self, events):
        self.events, self.pool = (
            events,
            SimpleNamespace(submit=lambda work: events.append(dict(work.definitions)["SHAPE_M"])),
        )

    def bench(self, *_):
        return Bench(self.events)

    def close(self): ...


def test_a_search_begins_when_its_starts_are_compiled_and_the_next_ones_are_meanwhile(monkeypatch, untuned):
    events, softmax = [], catalogue().get("softmax")
    problems = [softmax.problem({"m": m, "n": 2048}) for m in (8, 16)]
    space = softmax.space(problems[0], Gpu.model.limits)

    def tune(*_, knowledge, **__):
        events.append(knowledge.starts)
        return SimpleNamespace(best=SimpleNamespace(configuration=space.feasible[5], time_ms=1.0), library=None)

    monkeypatch.setattr("tilewright.tuner.devices.local.open_device", lambda _: Gpu(events))
    monkeypatch.setattr("tilewright.tuner.loop.tune.tune", tune)
    monkeypatch.setattr(tuning, "place_of", lambda _: TargetDevice("nvidia-h200", Gpu.model.limits))
    assert tuning.tune_now(untuned, problems, "cuda:0", 1.0, {}) == {}
    variants = len(space.defaults())
    first, second = (one for one in events if isinstance(one, list))
    assert first[0] == softmax.default_configuration(space)
    assert set(first) == set(space.defaults())
    assert space.feasible[5] in second[:2]
    ahead = ["8"] * variants + ["16"] * variants
    searched = [f"told of {variants}", *["waited"] * variants, first, "closed"]
    assert events[: len(ahead) + len(searched)] == ahead + searched


WITHOUT_OPTUNA = """
import sys, warnings

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "optuna":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
warnings.simplefilter("ignore")
import torch, tilewright.torch as tw
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
with torch.no_grad():
    print(tw.accelerate(model, torch.randn(8, 64), tune="now", tune_seconds=1))
"""


@pytest.mark.in_turn(3)
def test_a_light_installation_says_what_tuning_needs():
    ended = subprocess.run([sys.executable, "-c", WITHOUT_OPTUNA], capture_output=True, text=True, check=True)
    assert "tuning needs optuna: pip install 'tilewright[service]'" in ended.stdout


def test_what_adds_most_to_the_error_for_its_gain_is_left_out_where_the_model_is_off():
    def candidate(error, saved_ms):
        verdict = Verdict(Error(error, error), Error(1e-7, 1e-7), Error(4e-7, 4e-7))
        site = SimpleNamespace(calls=1, fusion="")
        return Candidate(site, verdict=verdict, pytorch_ms=1.0, ours_ms=1.0 - saved_ms)

    def verdict_with(those):
        whole = math.sqrt(sum(one.verdict.error.whole**2 for one in those))
        return Verdict(Error(whole, whole), Error(2e-7, 2e-7), Error(3e-7, 3e-7))

    worth, poor, exact = candidate(2e-7, 0.9), candidate(2e-7, 0.1), candidate(1e-7, 0.1)
    judge, result = SimpleNamespace(verdict_with=verdict_with, model=nn.Identity(), pace=Pace(1.0)), SimpleNamespace()
    assert set(_fit([worth, poor, exact], None, judge, result)) == {worth, exact}
    assert poor.reason.startswith("with it the model's output is off by 3e-07")
    assert result.verdict.is_right
    alone = candidate(4e-7, 0.9)
    assert _fit([alone], None, judge, result) == []
    assert alone.reason


def test_what_is_compiled_first_is_compared_first_in_graphs_and_what_is_late_comes_last():
    compiled = [threading.Event() for _ in range(2)]
    slow, ready, never = (Candidate(SimpleNamespace()) for _ in range(3))
    for one, event in zip((slow, never), compiled, strict=True):
        one.loading = threading.Thread(target=event.wait, daemon=True)
        one.loading.start()
    order = []
    try:
        for one in _as_loaded([never, slow, ready], SimpleNamespace(pool=object(), pace=Pace(60.0)), 0.5):
            order.append(one)
            compiled[0].set()
            if one is ready:
                slow.wait(60)
        assert order == [ready, slow, never]
        assert never.is_loading
    finally:
        for event in compiled:
            event.set()


@pytest.fixture
def on_h200(tmp_path, monkeypatch):
    """A runtime that knows nothing, on a machine of seven cores, and a GPU in place of the CPU."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(7))
    place = TargetDevice("nvidia-h200", shipped_models()["nvidia-h200"][1])
    monkeypatch.setattr(candidates, "place_of", lambda _device: place)
    runtime = Runtime(answers=AnswerCache(tmp_path / "answers"))
    tw.use(runtime)
    yield runtime, place
    tw.use(None)
    prediction_process.close()


@pytest.mark.in_turn(2)
def test_several_unknown_problems_are_predicted_before_they_are_looked_up(on_h200):
    runtime, place = on_h200
    widths = (64, 96, 128, 192, 256)
    layers = torch.nn.Sequential(*(torch.nn.Linear(k, n) for k, n in pairwise(widths)))
    with torch.no_grad():
        found = [candidates.pose(site) for site in observe(layers, lambda: layers(torch.randn(48, widths[0])))]
    problems = [one.problem for one in found if one.problem and one.problem.kernel == "linear"]
    assert len(problems) == 4
    assert max(found, key=candidates.cost).problem.shape == {"m": 48, "n": 256, "k": 192}
    linear = runtime.kernels.get("linear")
    assert not any(runtime.is_known(linear, one, place) for one in problems)
    candidates.predict_ahead(found)
    assert all(runtime.is_known(linear, one, place) for one in problems)
