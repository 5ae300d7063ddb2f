"""What a program may do with an operator of PyTorch it may do with ours: with the same result, or the same refusal."""

import pytest

torch = pytest.importorskip("torch")

import torch.autograd.forward_ad as fwad  # noqa: E402

import tilewright.torch as tw  # noqa: E402
from tilewright.tuner.pytorch.acceleration.installation import installed  # noqa: E402
from tilewright.tuner.pytorch.acceleration.installation.shared import SharedLayers, changes_nothing  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.call import entry  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.calls import FUNCTIONS, call_of  # noqa: E402

F = torch.nn.functional
pytestmark = [
    pytest.mark.filterwarnings("ignore::tilewright.torch.FallbackWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),  # torch.func.jvp calls it
    pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning"),
]
A, B, X, W = (6, 5), (5, 7), (3, 8), (8,)
CALLS = {
    "gemm": (tw.gemm, torch.matmul, [A, B]),
    "linear": (tw.linear, F.linear, [A, (7, 5), (7,)]),
    "gemv": (tw.gemv, torch.mv, [A, (5,)]),
    "softmax": (tw.softmax, lambda x: x.softmax(-1), [X]),
    "rms_norm": (tw.rms_norm, lambda x, w: F.rms_norm(x, w.shape, w), [X, W]),
    "layer_norm": (tw.layer_norm, lambda x, w, b: F.layer_norm(x, w.shape, w, b), [X, W, W]),
    "add_rms_norm": (tw.add_rms_norm, lambda x, r, w: (F.rms_norm(x + r, w.shape, w), x + r), [X, X, W]),
    "add_layer_norm": (
        tw.add_layer_norm,
        lambda x, r, w, b: (F.layer_norm(x + r, w.shape, w, b), x + r),
        [X, X, W, W],
    ),
    "conv2d": (tw.conv2d, F.conv2d, [(2, 3, 6, 6), (4, 3, 3, 3), (4,)]),
}
"""Our operator, PyTorch's, and the shapes that they take."""


def tensors(shapes, dtype=torch.float32):
    return [torch.randn(one, dtype=dtype) for one in shapes]


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("name", CALLS)
def test_a_view_that_is_negated_when_it_is_read_is_computed_as_what_it_says(name):
    ours, theirs, shapes = CALLS[name]
    given = tensors(shapes)
    lazy = [torch._neg_view(-one) for one in given]
    torch.testing.assert_close(ours(*lazy), theirs(*given))
    torch.testing.assert_close(ours(*given), theirs(*given))
    assert [one.is_ours for one in tw.status()] == [False, True]


@pytest.mark.parametrize("name", CALLS)
def test_a_forward_derivative_is_that_of_pytorch(name):
    ours, theirs, shapes = CALLS[name]
    given, along = tuple(tensors(shapes, torch.float64)), tuple(tensors(shapes, torch.float64))
    torch.testing.assert_close(torch.func.jvp(ours, given, along), torch.func.jvp(theirs, given, along))
    with fwad.dual_level():
        tangents = [
            fwad.unpack_dual(torch.utils._pytree.tree_leaves(one(*map(fwad.make_dual, given, along)))[0]).tangent
            for one in (ours, theirs)
        ]
    torch.testing.assert_close(*tangents)
    if name in {"gemm", "softmax"}:
        with fwad.dual_level(), pytest.raises(NotImplementedError, match="no forward derivative"):
            getattr(torch.ops.tilewright, name)(*map(fwad.make_dual, given, along))


@pytest.mark.parametrize("name", CALLS)
def test_vmap_and_gradients_of_functions_are_those_of_pytorch(name):
    ours, theirs, shapes = CALLS[name]
    given = [torch.randn(4, *one, dtype=torch.float64) for one in shapes]
    expected = torch.vmap(theirs)(*given)
    torch.testing.assert_close(torch.vmap(ours)(*given), expected)

    def total(call):
        return lambda *some: sum(one.sum() for one in torch.utils._pytree.tree_leaves(call(*some)))

    found = [torch.func.grad(total(one))(*[two[0] for two in given]) for one in (ours, theirs)]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", ["gemm", "linear", "gemv"])
def test_the_gradient_of_complex_numbers_is_conjugated(name):
    ours, theirs, shapes = CALLS[name]
    given = [one.requires_grad_() for one in tensors(shapes, torch.complex128)]
    along = torch.randn_like(theirs(*given))
    torch.testing.assert_close(*[torch.autograd.grad(one(*given), given, along) for one in (ours, theirs)])


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_autocast_has_the_same_rule_for_each_dtype(name, dtype):
    ours, theirs, shapes = CALLS[name]
    given = tensors(shapes, dtype)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(ours(*given), theirs(*given), rtol=0.03, atol=0.1)


@pytest.mark.parametrize("name", CALLS)
def test_meta_tensors_and_foreign_dtypes_have_pytorchs_result(name):
    ours, theirs, shapes = CALLS[name]
    meta = [one.to("meta") for one in tensors(shapes)]
    for one, other in zip(*(torch.utils._pytree.tree_leaves(call(*meta)) for call in (ours, theirs)), strict=True):
        assert (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    ours(*tensors(shapes))
    assert tw.status()[-1].is_ours


OTHERS = {
    "a batch of four dimensions": (tw.gemm, torch.matmul, [(2, 3, 4, 5), (2, 3, 5, 6)]),
    "batches that are broadcast": (tw.gemm, torch.matmul, [(2, 1, 4, 5), (3, 5, 6)]),
    "vectors": (tw.gemm, torch.matmul, [(5,), (5,)]),
    "a number": (tw.softmax, lambda x: x.softmax(-1), [()]),
    "a weight of one output": (tw.linear, F.linear, [A, (5,)]),
    "no weight": (tw.layer_norm, lambda x: F.layer_norm(x, (8,)), [X]),
    "a norm over two axes": (tw.rms_norm, lambda x, w: F.rms_norm(x, w.shape, w), [(2, 3, 8), (3, 8)]),
    "one image": (tw.conv2d, F.conv2d, [(3, 6, 6), (4, 3, 3, 3)]),
    "padding same": (
        lambda *a: tw.conv2d(*a, padding="same"),
        lambda *a: F.conv2d(*a, padding="same"),
        [(2, 3, 6, 6), (4, 3, 3, 2)],
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_forms_that_no_kernel_has_are_pytorchs_with_their_gradients(name):
    ours, theirs, shapes = OTHERS[name]
    given = [one.requires_grad_() for one in tensors(shapes, torch.float64)]
    result, expected = ours(*given), theirs(*given)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(*[torch.autograd.grad(one.sum(), given) for one in (result, expected)])
    with torch.no_grad():
        torch.testing.assert_close(ours(*given), expected)


def test_a_form_that_no_kernel_has_is_pytorchs_in_compiled_code_too():
    compiled = torch.compile(lambda x: tw.layer_norm(x) + tw.softmax(x.sum()), fullgraph=True, backend="aot_eager")
    x = torch.randn(X)
    torch.testing.assert_close(compiled(x), F.layer_norm(x, (8,)) + 1)


def test_a_norm_of_rows_and_weights_of_two_dtypes_is_pytorchs():
    x, w = torch.randn(X).bfloat16(), torch.randn(W)
    torch.testing.assert_close(tw.layer_norm(x, w, w), F.layer_norm(x, (8,), w, w))


def test_a_sparse_matrix_is_multiplied_by_pytorch():
    a, b = torch.eye(4), torch.randn(4, 4)
    tw.gemm(a, b)
    torch.testing.assert_close(tw.gemm(a.to_sparse(), b), b)
    torch.testing.assert_close(tw.linear(b, a.to_sparse()), b)
    torch.testing.assert_close(tw.gemm(a.to_sparse().requires_grad_(), b), b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_no_eps_is_what_the_installed_pytorch_takes(dtype):
    x, w = (1e-3 * torch.randn(4, 64)).to(dtype), torch.ones(64, dtype=dtype)
    torch.testing.assert_close(tw.rms_norm(x, w), F.rms_norm(x, (64,), w))
    torch.testing.assert_close(call_of(F.rms_norm, (x, (64,), w), {}).run(), F.rms_norm(x, (64,), w))
    assert all(one.is_ours for one in tw.status())


@pytest.mark.parametrize(("n", "k", "m"), [(0, 4, 3), (5, 0, 3), (5, 4, 0)])
def test_a_layer_of_no_extent_has_gradients_of_zeros(n, k, m):
    x, w = torch.ones(m, k, requires_grad=True), torch.ones(n, k, requires_grad=True)
    tw.linear(x, w).sum().backward()
    torch.testing.assert_close((x.grad, w.grad), (torch.full((m, k), float(n)), torch.full((n, k), float(m))))


def test_numbers_are_arguments_of_a_launch_and_make_no_plan():
    a, b = torch.randn(A), torch.randn(B)
    for step in range(50):
        torch.testing.assert_close(tw.gemm(a, b, alpha=1 + step), (1 + step) * (a @ b))
        c = torch.ones(6, 7)
        torch.testing.assert_close(tw.gemm_(c, a, b, alpha=2, beta=step), 2 * (a @ b) + step)
    assert len(tw.status()) == 3  # gemm, and gemm_ with beta 0 and without


def test_the_factor_comes_before_the_rounding_to_half_tuned_or_not(untuned, tuned):
    a = torch.full((2, 64), 60.0).half()
    assert tw.gemm(a, a.mT, alpha=0.01)[0, 0] == 2304
    assert tw.gemm(a[None], a.mT[None], alpha=0.01)[0, 0, 0] == 2304
    tw.use(tuned)
    assert tw.gemm(a, a.mT, alpha=0.01)[0, 0] == 2304


def test_a_product_times_0_has_pytorchs_nans():
    a, b, c = torch.full(A, float("nan")), torch.randn(B), torch.randn(6, 7)
    expected = torch.addmm(c, a, b, alpha=0)
    torch.testing.assert_close(tw.gemm_(c.clone(), a, b, alpha=0, beta=1), expected, equal_nan=True)


class TestInto:
    """`gemm_` beside `addmm_`."""

    def test_c_holds_the_product_under_autocast(self):
        a, b, c = torch.randn(A), torch.randn(B), torch.full((6, 7), 9.0)
        with torch.autocast("cpu", torch.bfloat16):
            tw.gemm_(c, a, b)
        torch.testing.assert_close(c, a @ b)

    @pytest.mark.parametrize("which", ["c", "a", "b", "cab"])
    def test_gradients_are_those_of_addmm(self, which):
        found = []
        for call in (
            lambda c, a, b: tw.gemm_(c, a, b, alpha=0.5, beta=3),
            lambda c, a, b: c.addmm_(a, b, alpha=0.5, beta=3),
        ):
            torch.manual_seed(1)
            given = dict(zip("cab", tensors([(6, 7), A, B], torch.float64), strict=True))
            leaves = [given[one].requires_grad_() for one in which]
            result = call(given["c"].clone(), given["a"], given["b"])
            found.append(torch.autograd.grad(result.pow(2).sum(), leaves))
        torch.testing.assert_close(*found)

    def test_a_leaf_with_gradients_is_refused(self):
        c = torch.zeros(6, 7, requires_grad=True)
        with pytest.raises(RuntimeError, match="leaf Variable"):
            tw.gemm_(c, torch.randn(A), torch.randn(B))

    @pytest.mark.parametrize("call", [tw.gemm_, torch.ops.tilewright.gemm_])
    def test_autograd_hears_that_c_was_changed(self, call):
        w, c = torch.ones(6, 7, requires_grad=True), torch.zeros(6, 7)
        y = (w * c).sum()
        call(c, torch.ones(A), torch.ones(B))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()

    def test_an_inference_tensor_has_no_version(self):
        with torch.inference_mode():
            c = torch.zeros(6, 7)
            tw.gemm_(c, torch.ones(A), torch.ones(B))
        assert c.eq(5).all()


X2, W2 = torch.randn(2, 3, 8), torch.randn(5, 8)


@pytest.mark.parametrize(
    ("function", "named", "is_known"),
    [
        (F.linear, {"input": X2, "weight": W2, "bias": None}, True),
        (F.softmax, {"input": X2, "dim": -1}, True),
        (torch.bmm, {"input": X2, "mat2": X2.mT}, True),
        (torch.mm, {"input": W2, "mat2": W2.mT}, True),
        (torch.matmul, {"input": X2, "other": X2.mT}, True),
        (F.layer_norm, {"input": X2, "normalized_shape": (8,), "weight": W2[0], "bias": W2[1]}, True),
        (F.rms_norm, {"input": X2, "normalized_shape": (8,), "weight": W2[0]}, True),
        (F.conv2d, {"input": X2[None], "weight": torch.randn(2, 2, 1, 1), "padding": "valid"}, True),
        (torch.matmul, {"input": X2, "other": X2.mT, "out": torch.empty(0)}, False),
        (torch.softmax, {"input": X2, "dim": "name"}, False),
    ],
)
def test_functions_take_pytorchs_names_and_what_is_unknown_is_left_to_pytorch(function, named, is_known):
    assert function in FUNCTIONS
    call = call_of(function, (), named)
    assert (call is not None) == is_known
    if is_known:
        torch.testing.assert_close(call.run(), function(**named))


@pytest.mark.parametrize(
    ("layer", "name"), [(torch.nn.Linear(8, 4), "input"), (torch.nn.LayerNorm(8), "input"), (torch.nn.RMSNorm(8), "x")]
)
def test_an_accelerated_layer_may_be_called_by_name(layer, name):
    model, x = torch.nn.Sequential(layer), torch.randn(X)
    installed.install(model, [installed.Replacement(entry(x), ("0",))], with_gradients=True)
    torch.testing.assert_close(model[0](**{name: x}), model[0](x))
    assert all(one.is_ours for one in tw.status())
    installed.uninstall(model)


class OtherRMSNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, hidden, residual=None):
        hidden = hidden if residual is None else hidden + residual
        return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def test_a_foreign_norm_has_its_own_arguments():
    model, x = torch.nn.Sequential(OtherRMSNorm()), torch.randn(X)
    expected = model[0](x), model[0](x, x), model[0](hidden=x)
    installed.install(model, [installed.Replacement(entry(x), ("0",))], with_gradients=True)
    torch.testing.assert_close((model[0](x), model[0](x, x), model[0](hidden=x)), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_input_that_is_changed_between_two_layers_is_seen_by_the_second(mode):
    q, k = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)
    with mode():
        x = torch.randn(X)
        shared = SharedLayers([q, k], frozenset({entry(x)}), frozenset())
        shared.join()
        first, second = shared.forwards()
        first(x)
        x.add_(1)
        torch.testing.assert_close(second(x), torch.nn.Linear.forward(k, x))


def test_code_that_changes_a_tensor_in_place_is_told_from_code_that_does_not():
    def steady(self, x):
        return self.q(x) + self.k(x.view(-1)).transpose(0, 1), [one == 2 for one in x.__dict__]

    def added(self, x):
        x += 1

    def called(self, x):
        return [one.add_(1) for one in x]

    def put(self, x):
        x[0] = 1

    def into(self, x):
        return torch.add(x, x, out=x)

    assert [changes_nothing(one) for one in (steady, added, called, put, into, None)] == [True] + [False] * 5


def test_the_launcher_refuses_a_view_that_is_negated_when_it_is_read(tuned):
    a, b, c = torch.randn(A), torch.randn(B), torch.empty(6, 7)
    with pytest.raises(Exception, match="resolve_neg"):
        tuned.best("gemm", m=6, n=7, k=5, device="cpu")(torch._neg_view(a), b, c)
