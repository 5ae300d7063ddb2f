"""Arguments and outputs that are trees of tensors with objects among them: copied, put back, compared, and frozen."""

from __future__ import annotations

import threading
import warnings
from collections import namedtuple
from dataclasses import dataclass, field

import pytest

torch = pytest.importorskip("torch")

from model_caches import Decoder, Fixed, Growing, Kind, Named, kept  # noqa: E402
from slowness import slow_down  # noqa: E402

import tilewright.torch as tw  # noqa: E402
from tilewright.tuner.pytorch.acceleration.graphs.graph import FrozenCall  # noqa: E402
from tilewright.tuner.pytorch.acceleration.graphs.graph_capture import program_line  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement import outputs  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement.sample import Sample  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement.standard import Standard  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement.trees import Parts, UnknownPartError, apart, called, rebuilt  # noqa: E402

nn = torch.nn


@pytest.fixture(autouse=True, params=[torch.no_grad, torch.inference_mode])
def without_gradients(request):
    with request.param():
        yield


Pair = namedtuple("Pair", "left right")  # noqa: PYI024 - as programs have them


@dataclass
class Output:
    scores: torch.Tensor
    rest: list = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Slotted:
    scores: torch.Tensor
    number: int = 3


def again(value):
    parts = Parts()
    return rebuilt(apart(value, parts), [one.clone() for one in parts.tensors])


def test_a_tree_is_built_again_with_all_that_it_has():
    x, cache = torch.randn(2, 3), Growing()
    cache.update(torch.randn(2, 4, 8))
    value = {
        "pair": Pair(x, [1, None, x]),
        "output": Output(x * 2, [cache]),
        "slotted": Slotted(x * 3),
        "named": Named(a=x, cache=cache),
        "plain": (True, 2.5, "word", torch.float32, x.shape, Kind.ONE, len),
    }
    found = again(value)
    torch.testing.assert_close(found["pair"].left, x)
    assert found["pair"].left is found["pair"].right[2] is found["named"].a is found["named"]["a"]
    assert found["pair"].left is not x
    assert type(found["named"]) is Named
    assert found["output"].rest[0] is found["named"].cache is not cache
    torch.testing.assert_close(found["slotted"].scores, x * 3)
    assert type(found["slotted"]) is Slotted
    assert found["plain"] == value["plain"]
    layer = found["named"].cache.layers[0]
    assert (layer.length, layer.kind) == (4, Kind.ONE)
    torch.testing.assert_close(found["named"].cache.update(torch.ones(2, 1, 8)).shape, torch.Size([2, 5, 8]))
    assert cache.layers[0].length == 4


def test_trees_that_are_alike_have_one_form_and_others_have_another():
    def form(*value):
        return apart(value, Parts())

    x, y = torch.randn(2, 3), torch.randn(2, 3)
    assert form(x, Output(y, [1])) == form(y, Output(x, [1]))
    assert hash(form(Growing(), x)) == hash(form(Growing(), y))
    grown = Growing()
    grown.update(torch.randn(2, 4, 8))
    others = [form(x, Output(x, [1])), form(x, Output(y, [2])), form(x, Output(y, [True])), form(x, grown), form(x.mT)]
    assert len({form(x, Output(y, [1])), *others}) == 6


def test_what_cannot_be_copied_is_named_with_its_place():
    value = Growing()
    value.layers[0].lock = threading.Lock()
    with pytest.raises(UnknownPartError, match=r"^\[1\]\['cache'\]\.layers\[0\]\.lock is a _thread\.lock"):
        apart((1, {"cache": value}), Parts())
    assert outputs.leaves([object(), torch.ones(1), {1, 2}])[0].shape == (1,)


def test_a_sample_with_a_cache_is_the_same_in_every_call_and_its_owner_keeps_it():
    model, x = Decoder().eval(), torch.randn(2, 3, 8)
    for cache in (Growing(), Fixed(9)):
        model(torch.randn(2, 4, 8), cache)
        before = again(cache)
        expected = model(x, again(cache)).scores
        sample = Sample((x, cache))
        first, _ = sample.learn(model)
        assert sample.has_state
        for _ in range(3):
            result, given = sample(model)
            torch.testing.assert_close(result.scores, expected, rtol=0, atol=0)
            assert given[0][1] is result.cache
            assert int(given[0][1].layers[0].length) == 7
        torch.testing.assert_close(first.scores, expected, rtol=0, atol=0)
        torch.testing.assert_close(vars(cache.layers[0])["keys"], before.layers[0].keys, rtol=0, atol=0)
        assert int(cache.layers[0].length) == 4


def test_a_sample_without_state_is_the_callers_tensors_themselves():
    x, seen = torch.randn(2, 3, 8), []
    sample = Sample({"x": x})
    sample.learn(Decoder())
    sample(lambda **named: seen.append(named))
    assert seen[0]["x"] is x
    assert not sample.has_state


def test_buffers_and_tensors_that_calls_change_are_put_back():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return x.mul_(2) + self.calls

    model, x = Counts(), torch.ones(3)
    expected = torch.full((3,), 3.0)
    sample = Sample(x)
    torch.testing.assert_close(sample.learn(model)[0], expected)
    torch.testing.assert_close(sample(model)[0], expected)
    torch.testing.assert_close(sample(model)[0], expected)
    sample.put_back()
    assert (float(model.calls), float(x.sum())) == (0.0, 3.0)


def test_state_is_judged_in_float64_as_the_output_is():
    model, x = Decoder().eval(), torch.randn(2, 3, 8)
    for cache in (Growing(), Fixed(9)):
        model(torch.randn(2, 4, 8), cache)
        sample = Sample((x, cache))
        sample.learn(model)
        standard = Standard.of(sample, model)
        assert standard.measure == "itself in float64"
        assert all(one.whole < 1e-6 for one in standard.eager)
        assert standard.verdict(sample(model)).is_right
        result, given = sample(model)
        given[0][1].layers[0].keys[0, -3] += 1e-4  # the state alone
        assert not standard.verdict((result, given)).is_right


def test_a_call_with_other_tensors_leaves_its_marks_on_the_callers_objects():
    model, x, cache = Decoder().double(), torch.randn(2, 3, 8), Growing()
    result = called(model, (x, cache), {}, lambda one: one.double())
    assert result.cache is cache
    assert cache.layers[0].keys.dtype == torch.float64
    assert cache.layers[0].length == 3
    y = torch.ones(3)
    called(lambda x: x.mul_(2), (y,), {}, lambda one: one.double())
    torch.testing.assert_close(y, torch.full((3,), 2.0))


@pytest.mark.parametrize("made", [Growing, lambda: Fixed(12), lambda: None])
def test_a_frozen_call_follows_its_arguments_and_changes_them_as_the_code_does(made):
    model, caches = Decoder().eval(), [made(), made()]
    for cache in filter(None, caches):
        model(torch.randn(2, 4, 8), cache)
    call = FrozenCall((torch.randn(2, 1, 8),), {"cache": again(caches[0])})
    versions = call.versions()
    result = call.run(model)
    call.finish(result, versions)
    assert call.changes_shape is (type(caches[0]) is Growing)

    def replay():  # the same work into the same tensors, as a graph does it
        given = rebuilt(call.key, call.inputs)
        own = Parts()
        apart(given, own)
        after = Parts(own)
        apart((model(*given[0], **given[1]), given), after)
        for held, new in zip(call._made, after.tensors[len(call.inputs) :], strict=True):
            held.copy_(new)

    for cache in caches:
        x, expected_cache = torch.randn(2, 1, 8), again(cache)
        expected = model(x, expected_cache)
        parts = Parts()
        assert apart(((x,), {"cache": cache}), parts) == call.key
        found = call.replayed(parts, replay)
        torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=0)
        assert cache is None or found.cache is cache
        torch.testing.assert_close(kept(found.cache), kept(expected.cache), rtol=0, atol=0)
        first = found.scores.clone()
        call.replayed(parts, replay)
        torch.testing.assert_close(found.scores, first, rtol=0, atol=0)


def test_a_model_with_a_cache_is_accelerated_and_the_cache_stays_its_owners(monkeypatch):
    slow_down(monkeypatch, nn.Linear)
    model, x, cache = Decoder().eval(), torch.randn(2, 3, 8), Fixed(9)
    model(torch.randn(2, 4, 8), cache)
    before, expected = again(cache), model(x, again(cache))
    with warnings.catch_warnings(action="ignore"):  # that nothing can be fused
        result = tw.accelerate(model, (x, cache), rounds=7, compiles=None, limit_s=300)
    assert result.is_applied, str(result)
    torch.testing.assert_close(kept(cache), kept(before), rtol=0, atol=0)
    found = model(x, cache)
    torch.testing.assert_close(found.scores, expected.scores)
    torch.testing.assert_close(kept(cache), kept(expected.cache))


def test_the_programs_own_line_is_named():
    def reads(x):
        return x.item()

    try:
        reads(torch.ones(2))
    except RuntimeError as error:
        frames, at = [], error.__traceback__
        while at is not None:
            frames.append((at.tb_frame, at.tb_lineno))
            at = at.tb_next
    assert program_line(frames).startswith("test_trees.py:")
    assert program_line(frames).endswith("(return x.item())")
