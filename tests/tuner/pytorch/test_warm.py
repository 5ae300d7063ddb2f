"""The short way through a replaced module: few calls of Python, and nothing that is not what it was."""

import sys

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402
from tilewright.tuner.pytorch import warm  # noqa: E402
from tilewright.tuner.pytorch.acceleration.installation import installed  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.call import entry  # noqa: E402

nn, F = torch.nn, torch.nn.functional
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


@pytest.fixture
def layer():
    """A replaced layer that was called."""
    model = nn.Sequential(nn.Linear(8, 8)).eval()
    installed.install(model, [installed.Replacement(entry(X), ("0",))], with_gradients=False)
    model(X)
    assert model[0]._tilewright.warm._call is not None
    return model[0]


def calls_of(function):
    """The functions of Python that one call of it enters."""
    names = []
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        function()
    finally:
        sys.setprofile(None)
    return names


def test_the_short_way_is_as_many_calls_of_python_as_there_are_things_to_do(layer):
    plain = nn.Linear(8, 8).eval()
    theirs, ours = calls_of(lambda: plain(X)), calls_of(lambda: layer(X))
    own = [one for one in ours if one not in {*theirs, "is_scripting"}]  # which PyTorch's is_compiling may ask
    until_launch = own[: own.index("call") + 1]
    assert until_launch == ["is_compiling", "run", "era", "is_watched_in_eager_mode", "call"]


def test_the_short_way_ends_where_the_program_allows_another_precision(monkeypatch):
    """What was faster than PyTorch's FP32 need not be faster than its TF32; seen as on a GPU."""
    monkeypatch.setattr(warm, "may_be_tf32", lambda _tensor: True)
    model = nn.Sequential(nn.Linear(8, 8)).eval()
    installed.install(model, [installed.Replacement(entry(X), ("0",))], with_gradients=False)
    model(X)
    layer, before = model[0], torch.get_float32_matmul_precision()
    parameters = list(layer.parameters())
    assert layer._tilewright.warm.run(X, parameters) is not None
    torch.set_float32_matmul_precision("high")
    try:
        assert layer._tilewright.warm.run(X, parameters) is None
    finally:
        torch.set_float32_matmul_precision(before)
    assert layer._tilewright.warm.run(X, parameters) is not None


def test_the_short_way_computes_what_the_layer_does_with_each_input(layer):
    for x in (X, X * 2, torch.randn(6, 8)):
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
    assert len(tw.status()) == 1


@pytest.mark.filterwarnings("ignore::tilewright.tuner.pytorch.plans.FallbackWarning")
@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer.weight, "data", torch.randn(8, 8)),
        lambda layer: setattr(layer, "weight", nn.Parameter(torch.randn(8, 8))),
        lambda layer: layer.weight.mul_(2),
        lambda layer: layer.weight.t_(),
        lambda layer: layer.load_state_dict({name: one + 1 for name, one in layer.state_dict().items()}),
        lambda layer: layer.double(),
        lambda layer: setattr(layer, "bias", None),
    ],
    ids=["data", "parameter", "numbers", "turned", "state", "dtype", "no bias"],
)
def test_the_short_way_is_left_or_follows_where_a_parameter_changes(layer, change):
    change(layer)
    x = torch.randn(6, 8).to(layer.weight.dtype)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))


@pytest.mark.filterwarnings("ignore::tilewright.tuner.pytorch.plans.FallbackWarning")
@pytest.mark.parametrize(
    "x",
    [X[:3], torch.randn(8, 6).mT, torch.randn(12, 8)[::2], torch._neg_view(X), X.double(), X.to_sparse()],
    ids=["length", "transposed", "gaps", "negated", "dtype", "sparse"],
)
def test_an_input_that_lies_otherwise_takes_the_long_way(layer, x):
    if x.dtype == torch.float64:
        with pytest.raises(RuntimeError):
            layer(x)
        return
    found, expected = layer(x), F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(found, expected)


def test_the_short_way_ends_where_operators_are_pytorchs_again(layer, monkeypatch):
    tw.off()
    try:
        monkeypatch.setattr(type(layer._tilewright.warm), "learn", lambda *_: pytest.fail("it is off"))
        assert layer._tilewright.warm.run(X, layer._parameters.values()) is None
    finally:
        tw.on()


def test_a_turned_layer_takes_the_short_way_too():
    class Conv1D(nn.Module):
        def __init__(self):
            super().__init__()
            self.nf = 5
            self.weight, self.bias = nn.Parameter(torch.randn(8, 5)), nn.Parameter(torch.randn(5))

        def forward(self, x):
            return torch.addmm(self.bias, x, self.weight)

    model = nn.Sequential(Conv1D()).eval()
    expected = model(X)
    installed.install(model, [installed.Replacement(entry(X), ("0",))], with_gradients=False)
    for _ in range(2):
        torch.testing.assert_close(model(X), expected)
    warm = model[0].forward._replaced.warm
    torch.testing.assert_close(warm.run(X, model[0]._parameters.values()), expected)
    model[0].weight.mul_(2)
    torch.testing.assert_close(model(X), F.linear(X, model[0].weight.mT, model[0].bias))
