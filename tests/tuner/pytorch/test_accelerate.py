"""Accelerating a model on the CPU: what wins stays, what fails leaves the model as it was, and a lock does the same."""

import copy
import json
import re
import warnings

import pytest

torch = pytest.importorskip("torch")

from faulty_kernels import faulty, planted  # noqa: E402
from slowness import slow_down  # noqa: E402
from small_network import QUICK, Net, X, unchanged, winning  # noqa: E402

import tilewright.torch as tw  # noqa: E402
from tilewright.kernels.catalogue import catalogue  # noqa: E402
from tilewright.kernels.space import Configuration  # noqa: E402
from tilewright.tuner.pytorch.acceleration.installation import installed  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.call import entries, entry  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.calls import FUNCTIONS  # noqa: E402
from tilewright.tuner.runtime import Runtime, WrongResultWarning  # noqa: E402
from tilewright.tuner.runtime.known.answers import AnswerCache  # noqa: E402
from tilewright.tuner.runtime.launches.host import host_place  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_gradients")

nn, F = torch.nn, torch.nn.functional


def test_what_wins_in_the_whole_model_is_replaced_and_computes_the_same(slow_linear, net):
    expected = net.eval()(X)
    net.train()
    result = winning(net)
    assert [type(one) for one in (net.one, net.two, net.norm)] == [installed.AcceleratedLinear] * 2 + [nn.LayerNorm]
    assert all(module.training for module in net.modules())
    assert [(one.site.call.operator.name, list(one.site.modules)) for one in result.replaced] == [
        ("linear", ["one", "two"])
    ]
    torch.testing.assert_close(net.eval()(X), expected)
    assert {one.operator for one in tw.status() if one.is_ours} >= {"linear"}


def test_the_table_and_the_document_say_what_was_measured(slow_linear, net):
    result = winning(net)
    text, document = str(result), result.as_json()
    rows = {line.split()[0]: line for line in text.splitlines()}
    assert rows["linear"].endswith("replaced in eager")
    assert "PyTorch's own takes" in rows["layer_norm"]
    assert {"eager", "ours"} <= rows.keys()
    assert re.search(r"compared with itself in float64, is off by .* PyTorch's own by .* and .* is allowed", text)
    assert 0 < document["error"] <= document["allowed_error"]
    assert 0 < document["eager_error"] <= document["eager_row_error"] < 1e-6
    assert document["times_ms"]["ours"] < document["times_ms"]["eager"]
    ratio, low, high = document["speedup"]
    assert 1 < low <= ratio <= high
    assert [one["replaced"] for one in document["sites"]] == [True, False, False, False]
    json.dumps(document)


def test_another_input_and_recorded_gradients_are_pytorchs(slow_linear, net, monkeypatch):
    winning(net)
    net.eval()
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: F.linear(x, self.weight, self.bias) + 1)
    plain = copy.deepcopy(net)
    installed.uninstall(plain)
    assert type(plain.one) is nn.Linear
    torch.testing.assert_close(net(X[:3]), plain(X[:3]))
    with torch.enable_grad():
        torch.testing.assert_close(net(X), plain(X))
    assert not torch.allclose(net(X)["y"], plain(X)["y"])


class Own(torch.Tensor):
    """A class of tensors that somebody else keeps."""


def test_vmap_and_tensors_of_other_classes_are_pytorchs(net):
    layer, batch = net.one, torch.randn(3, 6, 8)
    stand = installed.Replacement(entry(X), ("one",))
    installed.install(net, [stand], with_gradients=False)
    expected = F.linear(batch, layer.weight, layer.bias)
    torch.testing.assert_close(torch.vmap(layer)(batch), expected)
    torch.testing.assert_close(layer(batch[0].as_subclass(Own)).as_subclass(torch.Tensor), expected[0])
    assert not tw.status()
    torch.testing.assert_close(layer(batch[0]), expected[0])
    assert [one.is_ours for one in tw.status()] == [True]


class ModelRMSNorm(nn.Module):
    """As libraries of models write it; `shift` is what some add to the weight."""

    def __init__(self, shift=0.0):
        super().__init__()
        self.weight, self.variance_epsilon, self.shift = nn.Parameter(torch.rand(8)), 1e-6, shift

    def forward(self, x):
        for _ in range(300):  # a pause would not be compiled
            x = x + 0
        return (self.weight + self.shift) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


@pytest.mark.in_turn(2)
def test_a_norm_of_another_library_is_replaced_where_it_computes_what_its_name_says():
    other = tw.accelerate(nn.Sequential(ModelRMSNorm(shift=1.0)), X, **QUICK)
    assert "its result is off" in other.candidates[0].reason
    model = nn.Sequential(ModelRMSNorm(), nn.ReLU(), ModelRMSNorm())
    expected = model(X)
    result = winning(model)
    assert [list(one.site.modules) for one in result.replaced] == [["0", "2"]]
    torch.testing.assert_close(model(X), expected)
    torch.testing.assert_close(copy.deepcopy(model)(X), expected)
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(X), expected)
    result.undo()
    assert "forward" not in vars(model[0])


def test_an_accelerated_model_is_copied_and_stored_like_any_other(net, tmp_path):
    installed.install(net, [installed.Replacement(entry(X), ("one",))], with_gradients=False)
    torch.save(net, tmp_path / "model")
    for copied in (copy.deepcopy(net), torch.load(tmp_path / "model", weights_only=False)):
        assert type(copied.one) is installed.AcceleratedLinear
        torch.testing.assert_close(copied.eval()(X), net.eval()(X))
        assert copied.state_dict().keys() == Net().state_dict().keys()


def test_a_model_that_is_judged_with_gradients_has_them(slow_linear, net):
    with torch.enable_grad():
        winning(net)
        net.eval()
        found = torch.autograd.grad(net(X)["y"].sum(), net.one.weight)
        installed.uninstall(net)
        torch.testing.assert_close(found, torch.autograd.grad(net(X)["y"].sum(), net.one.weight))


def test_undo_makes_the_model_what_it_was(slow_linear, net):
    result = winning(net)
    result.undo()
    assert type(net.one) is nn.Linear
    assert "_tilewright" not in vars(net.one)
    assert not result.is_applied
    with pytest.raises(Exception, match="nothing to save: it was undone"):
        result.save("nowhere")


class Product(nn.Module):
    """No module of PyTorch's."""

    def forward(self, a, b):
        return a @ b


def test_a_function_is_replaced_for_the_arguments_that_were_accepted():
    model, plain = Product(), torch.matmul
    a, b = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 4, 5)
    stand = installed.Replacement(entries(FUNCTIONS[torch.Tensor.matmul](a, b)), function="matmul")
    installed.install(model, [stand], with_gradients=False)
    torch.testing.assert_close(model(a, b), plain(a, b))
    torch.testing.assert_close(model(a[:1], b[:1]), plain(a[:1], b[:1]))
    assert [(one.operator, one.call[:9]) for one in tw.status()] == [("gemm", "(6, 5, 4)")]
    installed.uninstall(model)
    assert "forward" not in vars(model)


def test_nothing_is_replaced_where_pytorch_is_faster(net):
    with warnings.catch_warnings(action="error"):
        result = tw.accelerate(net, X, **QUICK)
    assert not result.is_applied
    assert result.reason == "no replacement makes the model faster"
    assert type(net.one) is nn.Linear


def test_compiled_models_are_timed_and_judged_by_themselves(slow_linear, net):
    result = winning(net, compiles=lambda model: torch.compile(model, backend="eager"))
    assert result.times_ms.keys() == {"eager", "ours", "torch.compile", "ours in torch.compile"}
    assert all(one.compiled for one in result.stands)
    compiled = torch.compile(net.eval(), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), net(X))


def test_a_compiler_that_fails_leaves_eager(slow_linear, net):
    def fails(model):
        raise RuntimeError("no compiler\nmore")

    result = winning(net, compiles=fails)
    assert result.remarks == ["torch.compile does not work here: no compiler"]
    assert not result.stands[0].compiled


def test_a_compiled_model_that_computes_something_else_is_left_to_pytorch(slow_linear, net):
    result = winning(net, compiles=lambda model: lambda x: {name: one * 2 for name, one in model(x).items()})
    assert result.remarks == ["Under torch.compile nothing is replaced: the model computes something else there."]
    assert result.compiled_verdict.error.whole == pytest.approx(1.0)
    assert not result.stands[0].compiled


def test_problems_that_nobody_tuned_are_named_with_the_command(untuned, net):
    result = unchanged(net, r"none of its 4 problems has an answer: no result for linear .*tilewright tune linear", X)
    assert len(result.candidates) == 4


def test_a_service_that_is_away_is_the_reason(tmp_path, net):
    tw.use(Runtime(only_tuned=True, url="http://127.0.0.1:9", answers=AnswerCache(tmp_path)))
    unchanged(net, "http://127.0.0.1:9 was not of help", X)


def test_a_service_that_is_away_is_told_where_the_disk_has_some_of_the_answers(tmp_path, net):
    place, kernel = host_place(), catalogue().get("softmax")
    values = {"BLOCK": 32, "UNROLL": 1, "VECTOR_WIDTH": 1}
    facts = {"variant": "online", "configuration": values, "source_hash": kernel.source_hash("online")}
    answers = AnswerCache(tmp_path)
    answers.put(kernel.problem({"m": 6, "n": 6}), place, facts | {"match": "exact", "time_ms": 1.0})
    tw.use(Runtime(only_tuned=True, url="http://127.0.0.1:9", answers=answers))
    with pytest.warns(tw.AccelerationWarning, match="may have no answer: http://127.0.0.1:9 was not of help") as told:
        result = tw.accelerate(net, X, **QUICK)
    assert len(told) == 1
    assert [one.choice is not None for one in result.candidates].count(True) == 1
    assert "http://127.0.0.1:9 was not of help" in str(result)


class Random(Net):
    def forward(self, x):
        return super().forward(x)["y"] + torch.rand(1)


class Broken(Net):
    def forward(self, x):
        raise KeyError("its own trouble")


def test_a_model_that_cannot_be_judged_is_left_alone(net):
    unchanged(Random(), "differs from call to call", X)
    unchanged(Broken(), "KeyError: 'its own trouble'", X)
    unchanged(net, "sample: give a tensor")
    unchanged(net.to("meta"), "not on meta", X.to("meta"))


def test_a_model_without_products_is_left_alone():
    with pytest.warns(tw.AccelerationWarning, match="calls nothing that a kernel of ours computes"):
        assert not tw.accelerate(nn.ReLU(), X).is_applied


def test_an_answer_that_the_library_beats_is_not_tried(tmp_path, net):
    place, kernel = host_place(), catalogue().get("linear")
    answer = {"variant": "tiled", "configuration": {"TILE_WIDTH": 8}, "match": "exact", "time_ms": 2.0}
    facts = answer | {"library": {"time_ms": 1.0}, "source_hash": kernel.source_hash("tiled")}
    answers = AnswerCache(tmp_path)
    answers.put(kernel.problem({"m": 6, "n": 8, "k": 8}), place, facts)
    tw.use(Runtime(only_tuned=True, answers=answers))
    result = tw.accelerate(net, X, **QUICK)
    assert result.candidates[0].reason == "the library was faster (1 ms; ours 2 ms)"
    assert result.candidates[0].ours_ms is None


def test_a_result_that_is_off_by_more_than_was_allowed_is_not_taken(slow_linear, net):
    result = tw.accelerate(net, X, tolerance=0.0, **QUICK)
    off = [one.reason for one in result.candidates if one.verdict and one.verdict.error.whole]
    assert off
    assert all(reason.endswith("and 0 is allowed") for reason in off)


@pytest.mark.in_turn(2)
def test_tuning_is_done_here_where_that_is_asked_for(untuned, monkeypatch):
    slow_down(monkeypatch, nn.LayerNorm)
    model = nn.Sequential(nn.LayerNorm(8))
    result = tw.accelerate(model, X, tune="now", tune_seconds=0.2, **QUICK)
    assert result.is_applied, str(result)
    assert result.replaced[0].choice.origin == "cache"


def test_what_was_wrong_at_its_first_use_is_said(slow_linear, net, tmp_path):
    right = "for (unsigned p0 = 0; p0 < K; p0 += TILE_WIDTH)"
    kernels = faulty(tmp_path, "linear", "tiled.cu", right, right.replace("p0 < K", "p0 + TILE_WIDTH < K"))
    linear = kernels.get("linear")
    problem = linear.problem({"m": len(X), "n": 8, "k": 8})
    answers = planted(
        tmp_path / "answers", kernels, problem, host_place(), Configuration.of("tiled", {"TILE_WIDTH": 8})
    )
    tw.use(Runtime(only_tuned=True, answers=answers, kernels=kernels, shipped_records=False))
    expected = net.eval()(X)
    with pytest.warns(WrongResultWarning, match="linear m=.*was wrong at its first use"):
        result = tw.accelerate(net, X, **QUICK)
    assert "was wrong at its first use" in str(result)
    torch.testing.assert_close(net.eval()(X), expected)
