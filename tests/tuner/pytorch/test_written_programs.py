"""What programs of others call: layers of libraries, products by every name, adapters, and what is left alone."""

import copy

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402
from tilewright.tuner.pytorch.acceleration.installation import installed  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition import fusions, left, sites  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.call import entries  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.calls import FUNCTIONS  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_gradients")

nn, F = torch.nn, torch.nn.functional
A, B, C = torch.randn(3, 8, 6), torch.randn(3, 6, 8), torch.randn(3, 8, 8)
FOUR, OTHER = torch.randn(2, 3, 8, 6), torch.randn(2, 3, 6, 8)
HEADS, SIGNALS = torch.randn(2, 2, 5, 8), torch.randn(2, 4, 16)


class Runs(nn.Module):
    """A function as a model."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


def replaced(model, *given):
    """The sites of the model, all of which are replaced."""
    found = sites.observe(model, lambda: model(*given))
    installed.install(model, [one.stand() for one in found], with_gradients=torch.is_grad_enabled())
    return found


def operators():
    return [one.operator for one in tw.status() if one.is_ours]


CALLS = {
    "addmm as a layer": (torch.addmm, C[0, 0], A[0], torch.randn(8, 6).mT),
    "addmm of GPT-2": (torch.addmm, C[0, 0], A[0], B[0]),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0), C[0], A[0], B[0]),
    "addmm by method": (lambda c, a, b: c.addmm(a, b), C[0], A[0], B[0]),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2.0), C, A, B),
    "matmul of four dimensions": (torch.matmul, FOUR, OTHER),
    "matmul with one matrix on the right": (torch.matmul, FOUR, B[0]),
    "matmul with one matrix on the left": (torch.matmul, A[0], OTHER),
    "einsum of attention": (lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k), FOUR, FOUR),
    "einsum with the result turned": (lambda a, b: torch.einsum("bik,bkj->bji", a, b), A, B),
    "einsum with one matrix": (lambda a, b: torch.einsum("bid,de->bie", a, b), A, B[0]),
    "einsum of a last dimension first": (lambda a, b: torch.einsum("kbi, bkj -> bij", a, b), A.permute(2, 0, 1), B),
    "conv1d": (lambda x, w: F.conv1d(x, w, None, 1, 1), SIGNALS, torch.randn(5, 4, 3)),
    "attention by aten's name": (torch.ops.aten.scaled_dot_product_attention, HEADS, HEADS, HEADS),
    "attention by aten's overload": (torch.ops.aten.scaled_dot_product_attention.default, HEADS, HEADS, HEADS),
}


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("name", CALLS)
def test_products_by_every_name_are_ours_with_pytorchs_result_and_gradients(name):
    function, *given = CALLS[name]
    model = Runs(function)
    expected = model(*given)
    assert sum(one.calls for one in replaced(model, *given)) == 1
    torch.testing.assert_close(model(*given), expected)
    assert len(operators()) == 1, tw.status()
    torch.testing.assert_close(model(*[one * 2 for one in given]), function(*[one * 2 for one in given]))
    installed.uninstall(model)
    with torch.enable_grad():
        given = [one.detach().requires_grad_() for one in given]
        expected = torch.autograd.grad(function(*given).sum(), given)
        replaced(model, *given)
        torch.testing.assert_close(torch.autograd.grad(model(*given).sum(), given), expected)


@pytest.mark.parametrize(
    "given",
    [
        ("bij,bjk->bi", A, B),  # a sum over a free axis
        ("ii,ij->j", C[0], C[1]),
        ("...ik,...kj->...ij", A, B),
        ("bik,bkj", A, B),
        ("bi,bi->bi", A[:, 0], A[:, 1]),  # no product of matrices
        ("bik,bkj,bjl->bil", A, B, A),
    ],
)
def test_an_einsum_that_is_no_product_of_two_is_left_alone(given):
    model = Runs(torch.einsum)
    assert not replaced(model, *given)
    torch.testing.assert_close(model(*given), torch.einsum(*given))


def test_sums_with_other_numbers_or_results_in_another_order_are_other_calls():
    made = [FUNCTIONS[torch.addmm](C[0], A[0], B[0], beta=beta) for beta in (0.5, 1.0)]
    made += [FUNCTIONS[torch.einsum](f"bik,bkj->{result}", A, B) for result in ("bij", "bji", "ibj")]
    assert len({entries(one) for one in made}) == 5
    assert FUNCTIONS[torch.addmm](C[0], A[0], B[0], alpha=0.0) is None


class Conv1D(nn.Module):
    """As GPT-2 has it."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x):
        x, size = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight), x.size()[:-1]
        return x.view(*size, self.nf)


def test_gpt2s_layer_is_one_linear_whose_weight_is_turned_and_turned_back():
    model, x = nn.Sequential(Conv1D(8, 6), nn.Tanh(), Conv1D(8, 8)), torch.randn(2, 5, 6)
    expected, state, weights = model(x), copy.deepcopy(model.state_dict()), [model[0].weight, model[2].weight]
    found = replaced(model, x)
    assert [(one.call.operator.name, list(one.modules)) for one in found] == [("linear", ["0"]), ("linear", ["2"])]
    assert [one.weight.stride() for one in (model[0], model[2])] == [(1, 6), (1, 8)]
    torch.testing.assert_close(model(x), expected)
    assert operators() == ["linear"] * 2
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    model.load_state_dict({name: one * 2 for name, one in state.items()})
    doubled = model(x)
    torch.testing.assert_close(copy.deepcopy(model)(x), doubled)
    installed.uninstall(model)
    assert (model[0].weight is weights[0], model[2].weight is weights[1]) == (True, True)
    assert all(one.is_contiguous() for one in weights)
    torch.testing.assert_close(model(x), doubled)
    torch.testing.assert_close(model.state_dict(), {name: one * 2 for name, one in state.items()}, rtol=0, atol=0)


def test_weights_that_share_memory_under_two_names_are_not_moved():
    one, two = Conv1D(6, 6), Conv1D(6, 6)
    two.weight = nn.Parameter(one.weight.detach())
    model, x = nn.Sequential(one, two), torch.randn(5, 6)
    assert not [site for site in replaced(model, x) if site.modules]
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = nn.Parameter(first.weight.detach())

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x):
            return self.first(x) + self.second(x)

    both = Both()
    assert not [site for site in fusions.search(both, lambda: both(x))[0] if site.fusion == installed.SHARED]
    expected = both(x)
    replaced(both, x)
    torch.testing.assert_close(both(x), expected)


def test_an_output_layer_that_is_tied_to_an_embedding_stays_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(self.embedding(tokens))

    model, tokens = Tied(), torch.arange(5)
    expected = model(tokens)
    assert [list(one.modules) for one in replaced(model, tokens)] == [["head"]]
    assert model.head.weight is model.embedding.weight
    torch.testing.assert_close(model(tokens), expected)
    model.embedding.weight.mul_(2)
    torch.testing.assert_close(model(tokens), expected * 4)


def test_a_convolution_of_signals_is_a_module_that_is_replaced():
    model = nn.Sequential(nn.Conv1d(4, 6, 3, padding=1), nn.GELU(), nn.Conv1d(6, 6, 3, stride=2, padding="valid"))
    expected = model(SIGNALS)
    assert [one.call.operator.name for one in replaced(model, SIGNALS)] == ["conv2d"] * 2
    assert type(model[0]) is installed.AcceleratedConv1d
    torch.testing.assert_close(model(SIGNALS), expected)
    assert operators() == ["conv2d"] * 2


class Lora(nn.Module):
    """A layer beside which an adapter is trained."""

    def __init__(self):
        super().__init__()
        self.base_layer = nn.Linear(16, 12, bias=False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(16, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 12, bias=False)})
        self.lora_dropout = nn.ModuleDict({"default": nn.Identity()})
        self.base_layer.requires_grad_(requires_grad=False)

    def forward(self, x):
        result = self.base_layer(x)
        return result + self.lora_B["default"](self.lora_A["default"](self.lora_dropout["default"](x))) * 2.0


def test_an_adapter_and_its_layer_are_three_products_or_two_that_share_their_input():
    model, x = Lora().eval(), torch.randn(4, 16)
    expected = model(x)
    assert len(replaced(model, x)) == 3
    torch.testing.assert_close(model(x), expected)
    installed.uninstall(model)
    [shared] = [one for one in fusions.search(model, lambda: model(x))[0] if one.fusion == installed.SHARED]
    assert list(shared.modules) == ["base_layer+lora_A.default"]
    installed.install(model, [shared.stand()], with_gradients=False)
    torch.testing.assert_close(model(x), expected)
    model.lora_A["default"].weight.mul_(2)
    again = Lora().eval()
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(x), again(x))


def test_an_adapter_is_trained_through_our_operators():
    model, x = Lora().eval(), torch.randn(4, 16)
    with torch.enable_grad():
        trained = [one for one in model.parameters() if one.requires_grad]
        expected = torch.autograd.grad(model(x).square().sum(), trained)
        replaced(model, x)
        torch.testing.assert_close(torch.autograd.grad(model(x).square().sum(), trained), expected)
    assert operators()


def test_modules_that_are_left_alone_are_named_with_a_reason():
    model = nn.Sequential(
        nn.LSTM(8, 8),
        nn.MultiheadAttention(8, 2),
        torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
        nn.Linear(8, 8),
    )
    words = left.left_alone(model)
    assert words.keys() == {"LSTM (0)", "MultiheadAttention (1)", "ParametrizedLinear (2)"}
    assert "remove_parametrizations" in words["ParametrizedLinear (2)"]
    normed = model[2:]
    expected = normed(C)
    assert [list(one.modules) for one in replaced(normed, C) if one.modules] == [["3"]]
    torch.testing.assert_close(normed(C), expected)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.LSTM(8, 8)

    def forward(self, x):
        return self.steps(x)[0]


def test_a_model_of_such_modules_is_told_why_nothing_is_replaced():
    with pytest.warns(tw.AccelerationWarning, match=r"LSTM \(steps\): .* each of which waits for the one before"):
        assert not tw.accelerate(Recurrent(), torch.randn(4, 2, 8), compiles=None).is_applied


def test_a_record_names_what_programs_call_and_why_it_stays():
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    with tw.record() as seen:
        Recurrent()(x)
        attention(x, x, x)
        Conv1D(8, 6)(A)
        torch.baddbmm(C, A, B)
        torch.einsum("bik,bkj->bij", A, B)
        F.conv1d(SIGNALS, torch.randn(5, 4, 3))
    by_name = {one.operator.removeprefix("aten::"): one for one in seen}
    assert "wait for one another" in next(
        one.reason for name, one in by_name.items() if "lstm" in name or "rnn" in name
    )
    assert "one operator in inference" in by_name["_native_multi_head_attention"].reason
    kernels = {name: one.problem.kernel for name, one in by_name.items() if one.problem}
    assert kernels == {"addmm": "gemm", "baddbmm": "gemm", "bmm": "gemm", "convolution": "conv2d"}
