"""The operators: what they compute, their gradients, and how PyTorch's compilers see them."""

import threading

import pytest

torch = pytest.importorskip("torch")

from sampling import sampled  # noqa: E402

import tilewright.torch as tw  # noqa: E402
from tilewright.tuner.pytorch.operator import OPERATORS  # noqa: E402

F = torch.nn.functional


def with_activation(activation):
    """Both layers, ours and PyTorch's, and what they take."""
    return (
        lambda *given: tw.linear(*given, activation=activation),
        lambda *given: getattr(F, activation)(F.linear(*given)),
        [(3, 6), (5, 6), (5,)],
    )


def array(*shape, dtype=torch.float32, grad=False):
    return torch.randn(shape, dtype=dtype, requires_grad=grad)


def ours():
    """The operators that launched a kernel of ours."""
    return {one.operator for one in tw.status() if one.is_ours}


X, W, B = (2, 3, 6, 5), (4, 3, 3, 3), (4,)
CALLS = {
    "gemm": (lambda a, b: tw.gemm(a, b, alpha=2), lambda a, b: 2 * (a @ b), [(7, 6), (6, 5)]),
    "gemm of a batch": (tw.gemm, torch.matmul, [(2, 7, 6), (2, 6, 5)]),
    "gemm with b shared": (tw.gemm, torch.matmul, [(2, 7, 6), (6, 5)]),
    "gemm with a shared": (tw.gemm, torch.matmul, [(7, 6), (2, 6, 5)]),
    "linear": (tw.linear, F.linear, [(2, 3, 6), (5, 6), (5,)]),
    "linear without bias": (tw.linear, F.linear, [(3, 6), (5, 6)]),
    "linear with gelu": with_activation("gelu"),
    "linear with relu": with_activation("relu"),
    "linear with tanh": with_activation("tanh"),
    "gemv": (tw.gemv, torch.mv, [(7, 6), (6,)]),
    "softmax": (tw.softmax, lambda x: x.softmax(-1), [(2, 3, 7)]),
    "rms_norm": (tw.rms_norm, lambda x, w: F.rms_norm(x, w.shape, w), [(2, 3, 7), (7,)]),
    "layer_norm": (tw.layer_norm, lambda x, w, b: F.layer_norm(x, w.shape, w, b), [(2, 3, 7), (7,), (7,)]),
    "add_rms_norm": (
        lambda *a: sum(tw.add_rms_norm(*a)),
        lambda x, r, w: F.rms_norm(x + r, w.shape, w) + x + r,
        [(3, 7), (3, 7), (7,)],
    ),
    "add_layer_norm": (
        lambda *a: sum(tw.add_layer_norm(*a)),
        lambda x, r, w, b: F.layer_norm(x + r, w.shape, w, b) + x + r,
        [(3, 7), (3, 7), (7,), (7,)],
    ),
    "conv2d": (lambda *a: tw.conv2d(*a, padding=1), lambda *a: F.conv2d(*a, padding=1), [X, W, B]),
    "conv2d, stride, sigmoid": (
        lambda x, w: tw.conv2d(x, w, None, 2, (1, 0), activation="sigmoid"),
        lambda x, w: F.conv2d(x, w, None, 2, (1, 0)).sigmoid(),
        [X, W],
    ),
    "conv2d by channels": (
        lambda x, w: tw.conv2d(x, w, None, 1, 1, groups=3),
        lambda x, w: F.conv2d(x, w, None, 1, 1, groups=3),
        [X, (6, 1, 3, 3)],
    ),
}


@pytest.mark.in_turn(3)
@pytest.mark.filterwarnings("ignore:tilewright..conv2d_images_gradient:tilewright.torch.FallbackWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_result_and_its_gradients_are_those_of_pytorch(name):
    call, reference, shapes = CALLS[name]
    given = [array(*shape, dtype=torch.float64, grad=True) for shape in shapes]
    result, expected = call(*given), reference(*given)
    torch.testing.assert_close(result, expected)
    along = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(result, given, along), torch.autograd.grad(expected, given, along))
    assert name.split()[0].strip(",") in ours()


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu", "sigmoid"])
def test_a_gated_layer_and_its_gradients_are_those_of_pytorch(activation):
    def reference(x, w):
        gate, up = F.linear(x, w).chunk(2, -1)
        return getattr(F, activation)(gate) * up

    x, w = (array(*shape, dtype=torch.bfloat16, grad=True) for shape in [(2, 3, 8), (10, 8)])
    result, wide = (
        tw.linear_gated(x, w, activation=activation),
        [one.detach().double().requires_grad_() for one in (x, w)],
    )
    expected = reference(*wide)
    along = torch.randn_like(expected)
    found = torch.autograd.grad(result, (x, w), along.bfloat16())
    close = {"rtol": 0.03, "atol": 0.1, "check_dtype": False}
    torch.testing.assert_close(result.double(), expected, **close)
    torch.testing.assert_close(found, torch.autograd.grad(expected, wide, along), **close)
    assert "linear_gated" in ours()


def test_gradients_have_gradients():
    x, w, b = (array(*shape, dtype=torch.float64, grad=True) for shape in [(2, 3), (2, 3), (2,)])
    assert torch.autograd.gradgradcheck(lambda *a: tw.linear(*a, activation="tanh"), (x, w, b))
    images, filters = (array(*shape, dtype=torch.float64, grad=True) for shape in [(1, 1, 3, 3), (1, 1, 2, 2)])
    assert torch.autograd.gradgradcheck(lambda *a: tw.conv2d(*a, padding=1), (images, filters))
    assert torch.autograd.gradgradcheck(tw.layer_norm, (x, array(3, dtype=torch.float64, grad=True), w[0]))


def test_a_layout_is_kept_and_views_are_read_as_they_are():
    x = array(*X).to(memory_format=torch.channels_last)
    y = tw.conv2d(x, array(*W))
    assert y.is_contiguous(memory_format=torch.channels_last)
    a, b = array(7, 12)[:, :8], array(5, 8).mT
    torch.testing.assert_close(tw.gemm(a, b), a @ b)
    assert ours() == {"conv2d", "gemm"}


def test_a_tensor_given_twice_is_not_taken_for_two_of_another_call():
    a, b = array(8, 8), array(8, 8)
    for left, right in [(a, a), (a, b), (b, a), (b, b)]:
        torch.testing.assert_close(tw.gemm(left, right), left @ right)
        torch.testing.assert_close(tw.gemm_(torch.empty(8, 8), left, right), left @ right)


def test_a_product_goes_into_a_matrix_that_is_there():
    c, a, b = array(2, 7, 5), array(2, 7, 6), array(6, 5)
    expected = 0.5 * (a @ b) + 2 * c
    assert tw.gemm_(c, a, b, alpha=0.5, beta=2) is c
    torch.testing.assert_close(c, expected)
    torch.testing.assert_close(tw.gemm_(c, a, b), a @ b)
    assert ours() == {"gemm_"}


def test_what_does_not_go_together_is_refused_by_name():
    with pytest.raises(
        RuntimeError, match=r"tilewright::gemm: a \(7, 6\) has not as many columns as b \(5, 6\) has rows"
    ):
        tw.gemm(array(7, 6), array(5, 6))
    with pytest.raises(RuntimeError, match="the activations are none, relu, sigmoid, tanh, gelu"):
        tw.linear(array(7, 6), array(5, 6), activation="swish")


EXAMPLES = {
    "gemm": [(7, 6), (6, 5)],
    "gemm_": [(7, 5), (7, 6), (6, 5)],
    "linear": [(2, 3, 6), (5, 6), (5,), "gelu"],
    "gemv": [(7, 6), (6,)],
    "softmax": [(3, 7)],
    "rms_norm": [(3, 7), (7,)],
    "scaled_dot_product_attention": [(1, 2, 5, 16)] * 3,
    "layer_norm": [(3, 7), (7,), (7,)],
    "add_rms_norm": [(3, 7), (3, 7), (7,)],
    "add_layer_norm": [(3, 7), (3, 7), (7,), (7,)],
    "linear_gated": [(3, 6), (10, 6)],
    "linear_quantized": [(3, 128), torch.ones(5, 128, dtype=torch.int8), torch.ones(5, 1, dtype=torch.bfloat16)],
    "conv2d": [X, W, B, [1, 1], [1, 1]],
    "conv2d_images_gradient": [(2, 4, 6, 5), W, list(X), [1, 1], [1, 1]],
}


def test_every_operator_has_an_example():
    assert EXAMPLES.keys() == OPERATORS.keys()


@pytest.mark.in_turn(3)
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck of torch 2.14 reads it of any tensor
@pytest.mark.parametrize("name", sampled(EXAMPLES, {"gemm_", "linear", "add_rms_norm"}.__contains__))
def test_pytorch_finds_nothing_wrong_with_an_operator(name):
    takes_gradients = OPERATORS[name].backward is not None
    dtype = torch.bfloat16 if name in {"linear_gated", "linear_quantized"} else torch.float32
    given = [
        array(*one, dtype=dtype, grad=takes_gradients) if isinstance(one, tuple) else one for one in EXAMPLES[name]
    ]
    torch.library.opcheck(OPERATORS[name].op, given)


class Net(torch.nn.Module):
    """A convolution, a layer and a softmax."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(48, 6)

    def forward(self, x):
        y = tw.conv2d(x, self.conv.weight, self.conv.bias, activation="relu").flatten(1)
        return tw.softmax(tw.linear(y, self.linear.weight, self.linear.bias))


def test_a_compiled_model_is_one_graph_and_computes_the_same():
    net, x = Net(), array(*X)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    expected = net(x)
    torch.testing.assert_close(compiled(x), expected)
    along = torch.randn_like(expected)
    found = torch.autograd.grad(compiled(x), net.parameters(), along)
    torch.testing.assert_close(found, torch.autograd.grad(net(x), net.parameters(), along))


def test_an_exported_model_has_the_operators_in_it():
    net, x = Net().eval(), array(*X)
    exported = torch.export.export(net, (x,))
    torch.testing.assert_close(exported.module()(x), net(x))
    assert {str(node.target) for node in exported.graph.nodes if node.op == "call_function"} >= {
        "tilewright.conv2d.default",
        "tilewright.linear.default",
        "tilewright.softmax.default",
    }


def test_threads_share_the_operators():
    w, wrong = array(5, 6), []

    def work():
        for rows in range(1, 9):
            x = torch.full((rows, 6), float(rows))
            if not torch.allclose(tw.linear(x, w), F.linear(x, w), atol=1e-4):
                wrong.append(rows)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
