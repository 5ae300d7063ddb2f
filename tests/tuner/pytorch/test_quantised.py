"""Layers with weights of 8 bits: the operator, and a model in which its owner allows them."""

import copy

import pytest

torch = pytest.importorskip("torch")

from slowness import slow_down  # noqa: E402

import tilewright.torch as tw  # noqa: E402
from tilewright.tuner.pytorch.acceleration.installation import installed, quantised  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition import fusions, sites  # noqa: E402
from tilewright.tuner.pytorch.operators.quantised import dequantised, int8_of  # noqa: E402
from tilewright.tuner.runtime import quantise  # noqa: E402

nn, F = torch.nn, torch.nn.functional
X = torch.randn(1, 128, generator=torch.Generator().manual_seed(1)).bfloat16()


@pytest.fixture
def weight():
    return torch.randn(16, 256).bfloat16()


@pytest.mark.parametrize(("weights", "group"), [("int8", 128), ("int8", "row"), ("int4", 128), ("int4_zeros", "row")])
def test_a_quantised_layer_is_nearly_the_layer_and_has_the_gradient_of_its_input(weight, weights, group):
    q, x = quantise(weight, weights, group=group), torch.randn(3, 256).bfloat16().requires_grad_()
    y = tw.linear_quantized(x, q.W, q.S, weights=weights)
    exact = F.linear(x.double(), dequantised(q.W, q.S.double(), weights))
    torch.testing.assert_close(y.double(), exact, rtol=0.02, atol=0.2)
    off = (exact - F.linear(x.double(), weight.double())).norm() / exact.norm()
    assert 0.001 < off < (0.02 if weights == "int8" else 0.3)
    [gradient] = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(
        gradient.double(), dequantised(q.W, q.S, weights).double().sum(0).expand(3, -1), rtol=0.05, atol=0.5
    )
    assert [one.operator for one in tw.status() if one.is_ours] == ["linear_quantized"]


def test_weights_become_the_whole_numbers_of_the_launchers_quantise(weight):
    weight[0, :128] = 0
    q = quantise(weight)
    for found, expected in zip(int8_of(weight), (q.W, q.S), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


class Slow(nn.Sequential):
    """A model whose layers take milliseconds, so that a kernel on the CPU can win."""

    def __init__(self):
        wide = {"bias": False, "dtype": torch.bfloat16}
        super().__init__(
            nn.Linear(128, 128, **wide), nn.ReLU(), nn.Linear(128, 128, **wide), nn.Linear(128, 8).bfloat16()
        )


@pytest.fixture
def slow(monkeypatch):
    slow_down(monkeypatch, nn.Linear, slow_s=0.02)
    with torch.no_grad():
        yield Slow().eval()


@pytest.mark.in_turn(2)
def test_a_model_whose_owner_allows_it_has_weights_of_8_bits_and_is_what_it_was_when_that_is_undone(slow, tmp_path):
    expected, state = slow(X), copy.deepcopy(slow.state_dict())
    result = tw.accelerate(slow, X, weights="int8", rounds=7, compiles=None, limit_s=300)
    assert [type(one) for one in (slow[0], slow[2])] == [quantised.QuantisedLinear] * 2, str(result)
    assert 0 < result.verdict.error.whole <= result.verdict.allowed.whole == 0.05
    assert "int8 in 0 and 1 more" in str(result)
    assert slow.state_dict().keys() == state.keys()
    found = slow(X)
    assert 0.001 < (found - expected).norm() / expected.norm() < 0.05
    path = result.save(tmp_path / "tilewright.lock")
    result.undo()
    assert type(slow[0]) is nn.Linear
    assert not [*slow.buffers()]
    torch.testing.assert_close(slow(X), expected, rtol=0, atol=0)
    assert tw.accelerate(slow, lock=path).is_applied
    torch.testing.assert_close(slow(X), found, rtol=0, atol=0)


@pytest.fixture
def model():
    """A small one with its layers of 8 bits in place."""
    torch.manual_seed(0)
    with torch.no_grad():
        model = Slow().eval()
        stands = [one.stand(compiled=True) for one in sites.quantised_sites(sites.observe(model, lambda: model(X)))]
        installed.install(model, [one for one in stands if one.weights], with_gradients=False)
        yield model


def test_weights_that_are_changed_are_those_that_count(model):
    before = model(X)
    model[0].weight.mul_(2)
    plain = F.linear(F.relu(F.linear(X, model[0].weight)), dequantised(*int8_of(model[2].weight), "int8"))
    torch.testing.assert_close(model(X), model[3](plain), rtol=0.05, atol=0.05)
    assert not torch.allclose(model(X), before, rtol=0.1, atol=0.1)


@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler deprecates parts of PyTorch
def test_a_compiled_model_has_its_whole_numbers_in_one_graph(model):
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(X), model(X), rtol=0, atol=0)
    with torch.enable_grad():
        plain = copy.deepcopy(model)
        installed.uninstall(plain)
        torch.testing.assert_close(model(X), plain(X))


@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler deprecates parts of PyTorch
@pytest.mark.parametrize("assign", [False, True])
def test_compiled_code_has_the_weights_of_a_state_that_is_loaded(model, assign):
    compiled, places = torch.compile(model, fullgraph=True, backend="aot_eager"), [*model.buffers()]
    compiled(X)
    other = {name: one.flip(0) for name, one in model.state_dict().items()}
    model.load_state_dict(other, assign=assign)
    found = compiled(X)
    assert all(one is other for one, other in zip(model.buffers(), places, strict=True))
    torch.testing.assert_close(found, model(X), rtol=0, atol=0)
    installed.uninstall(model)
    torch.testing.assert_close(found, model(X), rtol=0.05, atol=0.05)


class Attends(nn.Module):
    """Three layers of one input."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(128, n, bias=False, dtype=torch.bfloat16) for n in (16, 8, 8))

    def forward(self, x):
        return torch.cat([self.q(x), self.k(x), self.v(x)], -1)


@pytest.fixture
def launches(monkeypatch):
    """The calls of the operator, by the rows of their weights."""
    seen, run = [], quantised.LINEAR_QUANTIZED.plans.run
    monkeypatch.setattr(quantised.LINEAR_QUANTIZED.plans, "run", lambda *a: seen.append(len(a[1])) or run(*a))
    return seen


@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler deprecates parts of PyTorch
def test_whole_numbered_layers_of_one_input_are_one_product_in_eager_and_compiled_code(launches):
    torch.manual_seed(0)
    with torch.no_grad():
        model = Attends().eval()
        found = sites.observe(model, lambda: model(X)) + fusions.search(model, lambda: model(X))[0]
        chosen = [one for one in sites.quantised_sites(found) if one.weights]
        assert [one.words.partition(" in ")[0] for one in chosen] == ["int8", "int8", "int8 shared"]
        expected = torch.cat([F.linear(X, dequantised(*int8_of(w), "int8")) for w in model.parameters()], -1)
        installed.install(model, [one.stand(compiled=True) for one in chosen], with_gradients=False)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        launches.clear()
        torch.testing.assert_close(model(X), expected, rtol=0.02, atol=0.02)
        assert launches == [32]
        torch.testing.assert_close(compiled(X), model(X), rtol=0, atol=0)
        model.load_state_dict({name: -one for name, one in model.state_dict().items()})
        torch.testing.assert_close(compiled(X), -expected, rtol=0.02, atol=0.02)
        launches.clear()
        model.k.weight.mul_(2)
        torch.testing.assert_close(model(X)[:, :16], -expected[:, :16], rtol=0.02, atol=0.02)
        torch.testing.assert_close(model(X)[:, 16:24], -2 * expected[:, 16:24], rtol=0.05, atol=0.05)
        assert launches == [16, 8] * 2  # each alone, and k as PyTorch has it
        installed.uninstall(model)
        assert not [*model.buffers()]
