"""Fusions in a model: what one kernel computes of a module's code, always with the model's own result, and undone."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from slowness import slow_down  # noqa: E402

import tilewright.torch as tw  # noqa: E402
from tilewright.tuner.pytorch.acceleration import lock  # noqa: E402
from tilewright.tuner.pytorch.acceleration.installation import fused as fused_code  # noqa: E402
from tilewright.tuner.pytorch.acceleration.installation import installed  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition import fusions  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_gradients")

nn, F = torch.nn, torch.nn.functional


class Attention(nn.Module):
    """Its arguments by star are what torch.fx cannot trace."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x, **named):
        sizes = [*x.shape[:-1]]
        q, k, v = self.query(x), self.key(x), self.value(x)
        return F.pad(torch.softmax(k @ v.mT, -1) @ v, (0, 4)).view(*sizes, 8) + q


class Layer(nn.Module):
    """As in BERT, with arguments that are not tensors; `choices` is what its code has for each of them."""

    def __init__(self):
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(8)
        self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)

    def forward(self, x, mask=None, scale=1.0):
        x = x if mask is None else x * mask
        total = self.attention(x) + x
        y = self.norm(total)
        return self.down(self.act(self.up(y * scale))) + total


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Linear(8, 16, bias=False, dtype=torch.bfloat16) for _ in range(2))

    def forward(self, x):
        return F.silu(self.gate(x)) * self.up(x)


X = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model():
    return nn.Sequential(Layer(), Layer()).eval()


def fused(model, x=X, **named):
    """The model with every fusion that it has."""
    sites, _ = fusions.search(model, lambda: model(x))
    installed.install(model, [one.stand() for one in sites], with_gradients=torch.is_grad_enabled(), **named)
    return sites


def ours():
    """The operators that have run as kernels, with the options that say a fusion."""
    return sorted((one.operator, "gelu" in one.call) for one in tw.status() if one.is_ours)


def test_layers_activations_sums_and_norms_are_one_kernel_each_with_the_same_result(model):
    expected = model(X)
    sites = fused(model)
    assert sorted((one.fusion.split()[0], one.calls) for one in sites) == [
        ("add_layer_norm", 2),
        ("gelu(linear)", 2),
        ("shared", 2),
    ]
    torch.testing.assert_close(model(X), expected)
    assert ours() == [("add_layer_norm", False), ("linear", False), ("linear", True)]


def test_layers_behind_one_another_are_fused_with_their_gradients():
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4)).eval()
    with torch.enable_grad():
        expected, found = model(X), [one.fusion.split()[0] for one in fused(model)]
        result = model(X)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(*[torch.autograd.grad(one.sum(), model.parameters()) for one in (result, expected)])
    assert found == ["relu(linear)"] * 2
    assert ours().count(("linear", False)) == 2


def test_a_fusion_that_fails_costs_that_fusion_only(monkeypatch):
    def code(module, key, names):
        if any(one.startswith("tanh") for one in names):
            raise ValueError("used before it has been defined")
        return plain(module, key, names)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Sequential(nn.Linear(8, 8), nn.GELU())
            self.two = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

        def forward(self, x):
            return self.two(self.one(x))

    plain = fused_code.Code
    monkeypatch.setattr(fused_code, "Code", code)
    slow_down(monkeypatch, nn.GELU)
    result = tw.accelerate(Both(), X, compiles=None, limit_s=300)
    reasons = {one.site.fusion.split()[0]: one.reason for one in result.candidates if one.site.fusion}
    assert reasons["gelu(linear)"] == "", str(result)
    assert reasons["tanh(linear)"] != ""


def test_layers_whose_input_is_changed_between_them_are_not_joined_in_inference_mode():
    class Changing(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.step = nn.Linear(8, 8), nn.Linear(8, 8), 0.0

        def forward(self, x):
            x = x.clone()
            y = self.q(x)
            x += self.step
            return y + self.k(x)

    model = Changing().eval()
    with torch.inference_mode():
        assert [one.fusion for one in fused(model)] == ["shared"]
        model.step = 1.0
        expected = F.linear(X, model.q.weight, model.q.bias) + F.linear(X + 1, model.k.weight, model.k.bias)
        torch.testing.assert_close(model(X), expected)
        installed.uninstall(model)
        assert fused(model) == []  # seen while it was watched


def test_a_gated_pair_is_one_kernel_and_what_sets_a_weight_is_seen():
    model, x = Gated().eval(), torch.randn(4, 8, dtype=torch.bfloat16)
    fused(model, x)
    for change in (lambda: None, lambda: model.gate.weight.data.mul_(2), lambda: model.up.weight.data.add_(1)):
        change()
        expected = F.silu(F.linear(x, model.gate.weight)) * F.linear(x, model.up.weight)
        torch.testing.assert_close(model(x), expected, rtol=2e-2, atol=2e-2)
    assert [one.operator for one in tw.status()] == ["linear_gated"]


def test_other_arguments_gradients_and_training_run_the_modules_own_code(model):
    plain = copy.deepcopy(model)
    fused(model)
    mask = torch.rand(2, 3, 8)
    torch.testing.assert_close(model[0](X, mask), plain[0](X, mask))
    torch.testing.assert_close(model[0](X, scale=2.0), plain[0](X, scale=2.0))
    torch.testing.assert_close(model(X[:1]), plain(X[:1]))
    torch.testing.assert_close(model.train()(X), plain.train()(X))
    with torch.enable_grad():
        found = torch.autograd.grad(model(X).sum(), [*model.parameters()])
        torch.testing.assert_close(found, torch.autograd.grad(plain(X).sum(), [*plain.parameters()]))


def test_a_layer_that_is_watched_or_replaced_is_called_again(model):
    plain, seen = copy.deepcopy(model), []
    fused(model)
    handle = model[0].up.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(model(X), plain(X))
    assert seen == [1]
    handle.remove()
    model[0].act = plain[0].act = nn.ReLU()
    model[1].attention.key = nn.Linear(8, 4)
    plain[1].attention.key.load_state_dict(model[1].attention.key.state_dict())
    torch.testing.assert_close(model(X), plain(X))


def test_shared_layers_see_what_happens_to_their_parameters_and_inputs(model):
    fused(model)
    attention = model[0].attention
    for change in (
        lambda: attention.key.weight.data.mul_(2),
        lambda: attention.value.load_state_dict(nn.Linear(8, 4).state_dict()),
        lambda: setattr(attention.key, "weight", nn.Parameter(torch.randn(4, 8))),
        lambda: model.double().float(),
    ):
        change()
        x = X.clone()
        for place, layer in enumerate((attention.query, attention.key, attention.value)):
            torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
            x = x.add_(1) if place == 1 else x
    torch.testing.assert_close(attention.key(X), F.linear(X, attention.key.weight, attention.key.bias))


def test_undo_gives_every_module_and_parameter_its_own_back(model):
    before, expected = [*model.parameters()], model(X)
    fused(model)
    joined = {one.untyped_storage().data_ptr() for one in before}
    assert len(joined) < len(before)
    installed.uninstall(model)
    assert all(one is other for one, other in zip(model.parameters(), before, strict=True))
    assert len({one.untyped_storage().data_ptr() for one in before}) == len(before)
    assert not any("forward" in vars(module) for module in model.modules())
    torch.testing.assert_close(model(X), expected, rtol=0, atol=0)


def test_copies_and_compiled_models_compute_the_same(model):
    expected = model(X)
    fused(model)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301 - our own
        torch.testing.assert_close(copied(X), expected)
        installed.uninstall(copied)
        assert not any("forward" in vars(module) for module in copied.modules())
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(X), expected)


def test_a_fusion_is_found_again_by_what_a_lock_says(model):
    expected, sites = model(X), fused(model)
    stands = [lock.stand_from_json(lock.stand_as_json(one.stand())) for one in sites]
    assert stands == [one.stand() for one in sites]
    installed.uninstall(model)
    installed.install(model, stands, with_gradients=False)
    torch.testing.assert_close(model(X), expected)
    assert ("add_layer_norm", False) in ours()


def test_a_fusion_that_wins_is_taken_saved_and_undone(monkeypatch, tmp_path):
    slow_down(monkeypatch, nn.GELU)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU()).eval()
    expected = model(X)
    result = tw.accelerate(model, X, compiles=None, limit_s=300)
    assert "gelu(linear) in the model" in [one.site.words for one in result.replaced], str(result)
    torch.testing.assert_close(model(X), expected)
    path = result.save(tmp_path / "tilewright.lock")
    result.undo()
    assert result.candidates[-1].site.fusion in [one.fusion for one in tw.accelerate(model, lock=path).stands]
    torch.testing.assert_close(model(X), expected)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 8), 0

    def forward(self, x):
        return F.relu(self.layer(x)) if x.sum() > 0 else x


class Counting(Branching):
    def forward(self, x):
        self.calls += 1
        return F.relu(self.layer(x))


@pytest.mark.parametrize(("kind", "reason"), [(Branching, "control flow"), (Counting, "changes the module")])
def test_code_that_cannot_be_traced_is_told_once_and_left_alone(kind, reason):
    model = kind().eval()
    with pytest.warns(tw.AccelerationWarning, match=f"nothing is fused: .*{kind.__name__}.*{reason}") as told:
        result = tw.accelerate(model, X.abs(), rounds=5, limit_s=300, compiles=None)
    assert len(told) == 1
    assert result.candidates
    assert reason in result.as_json()["untraced"][kind.__name__]


def test_a_row_with_gaps_is_copied_for_the_layer(model):
    x, layer = torch.randn(5, 4, 8), nn.Linear(8, 8)
    result = tw.linear(x[:, 0], layer.weight, layer.bias, activation="tanh")
    torch.testing.assert_close(result, torch.tanh(layer(x[:, 0])))
    torch.testing.assert_close(tw.linear(x[:, 1], layer.weight, layer.bias), layer(x[:, 1]))
    assert [one.is_ours for one in tw.status()] == [True, True]


@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler deprecates parts of PyTorch
def test_joined_products_stay_in_compiled_code_which_is_made_once_for_each_way(model):
    gated = nn.Sequential(nn.Linear(8, 8), Gated().float()).bfloat16().eval()
    for whole, x, operators in ((model, X, {"linear"}), (gated, X.bfloat16(), {"linear_gated"})):
        sites, _ = fusions.search(whole, lambda whole=whole, x=x: whole(x))
        stands = [one.stand(compiled=True) for one in sites if one.can_compile]
        assert stands
        graphs = []
        backend = lambda graph, _inputs, graphs=graphs: graphs.append(graph) or graph.forward  # noqa: E731
        expected, compiled = whole(x), torch.compile(whole, fullgraph=True, backend=backend)
        for installed_now in (stands, [], stands, []):
            installed.install(whole, installed_now, with_gradients=False)
            torch.testing.assert_close(compiled(x), expected, rtol=0.02, atol=0.02)
        assert len(graphs) == 2
        found = {node.target for node in graphs[0].graph.nodes if "tilewright" in str(node.target)}
        assert {str(one).split(".")[1] for one in found} == operators
        installed.install(whole, stands, with_gradients=False)
        next(one for name, one in whole.named_parameters() if "query" in name or "gate" in name).mul_(2)
        torch.testing.assert_close(compiled(x), whole(x), rtol=0.02, atol=0.02)
        assert len(graphs) == 2
        installed.uninstall(whole)


class Cross(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, y):
        return self.query(x) - self.key(y)


@pytest.mark.filterwarnings("ignore")
def test_layers_of_two_inputs_are_not_one_in_compiled_code_although_the_sample_was_given_twice():
    model, y = Cross().eval(), X + 1
    sites, _ = fusions.search(model, lambda: model(X, X))
    expected = model(X, y)
    installed.install(model, [one.stand(compiled=True) for one in sites], with_gradients=False)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(X, y), expected)
    assert [one.fusion for one in sites] == [installed.SHARED]
    torch.testing.assert_close(model(X, y), expected)
