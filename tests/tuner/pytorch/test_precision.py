"""Products of float32 have the accuracy that the caller asks for, or that the program allows PyTorch's own."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402
from tilewright.kernels.catalogue import catalogue  # noqa: E402
from tilewright.tuner.pytorch import operator_plans  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement.candidates import Candidate  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition import call as calls  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.calls import call_of  # noqa: E402
from tilewright.tuner.pytorch.operators import products  # noqa: E402
from tilewright.tuner.pytorch.operators.convolution import CONV2D  # noqa: E402
from tilewright.tuner.pytorch.operators.products import GEMM, GEMM_INTO, LINEAR  # noqa: E402
from tilewright.tuner.pytorch.precision import (  # noqa: E402
    ALLOWED,
    asks_for_more,
    convolutions_in_tf32,
    products_in_tf32,
    resolved,
    setting,
    without_tf32,
)


@pytest.fixture(params=["highest", "high", "medium"])
def precision(request):
    """The program's setting."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


def of(dtype, *, is_cuda):
    """What decides of a tensor: where it is, and its dtype."""
    return SimpleNamespace(is_cuda=is_cuda, dtype=dtype)


def test_a_product_on_a_gpu_is_as_the_program_allows(precision):
    assert resolved(ALLOWED, of(torch.float32, is_cuda=True)) == ("fp32" if precision == "highest" else "tf32")
    assert resolved("fp32", of(torch.float32, is_cuda=True)) == "fp32"
    assert resolved(ALLOWED, of(torch.bfloat16, is_cuda=True)) == "fp32"
    assert resolved(ALLOWED, of(torch.float32, is_cuda=False)) == "fp32"


@pytest.mark.parametrize("operator", [GEMM, GEMM_INTO, LINEAR], ids=lambda operator: operator.name)
def test_problems_of_products_have_that_accuracy(monkeypatch, operator):
    monkeypatch.setattr(products, "resolved", lambda accuracy, tensor: f"{accuracy} for {tensor.dtype}")
    a, c = torch.ones(8, 8), torch.ones(8, 8)
    given = {
        "gemm": (a, a, 1.0, ALLOWED),
        "gemm_": (c, a, a, 1.0, 0.0, ALLOWED),
        "linear": (a, a, None, "none", ALLOWED),
    }
    assert operator.plans.posed(*given[operator.name]).named["accuracy"] == "allowed for torch.float32"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_decided_under_one_setting_is_not_for_another(monkeypatch, dtype):
    """Of float32 on a GPU, whatever accuracy the caller asks for: PyTorch's own call differs."""
    monkeypatch.setattr(operator_plans, "may_be_tf32", lambda tensor: tensor.dtype is torch.float32)
    a = torch.ones(4, 4, dtype=dtype)
    before = torch.get_float32_matmul_precision()
    for accuracy in (ALLOWED, "fp32"):
        keys = []
        for allowed in ("highest", "high", "highest"):
            torch.set_float32_matmul_precision(allowed)
            keys.append(GEMM.plans._key((a, a, 1.0, accuracy)))
        torch.set_float32_matmul_precision(before)
        assert keys[0] == keys[2]
        assert (keys[0] == keys[1]) is (dtype is torch.bfloat16)


def test_a_setting_by_the_newer_name_counts_too():
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("PyTorch 2.9 has it")
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        assert resolved(ALLOWED, of(torch.float32, is_cuda=True)) == "tf32"
    finally:
        matmul.fp32_precision = before


def test_on_the_cpu_products_have_all_their_bits(precision):
    a, b = torch.randn(6, 5, requires_grad=True), torch.randn(5, 4)
    product = tw.gemm(a, b)
    torch.testing.assert_close(product, a @ b)
    product.sum().backward()
    torch.testing.assert_close(a.grad, torch.ones(6, 4) @ b.T)


@pytest.fixture
def on_gpu(monkeypatch):
    """Tensors of float32 are as on a GPU, as far as TF32 is concerned."""
    for place in (calls, operator_plans):
        monkeypatch.setattr(place, "may_be_tf32", lambda tensor: tensor.dtype is torch.float32)


def test_what_was_accepted_under_one_setting_is_not_under_another(on_gpu, precision):
    """Under PyTorch's defaults entries are those of earlier locks."""
    x = torch.ones(3, 4)
    assert calls.entry(x)[-1] == (None if precision == "highest" else "tf32")
    assert calls.entry(x.double())[-1] is None
    assert calls.entry(ALLOWED) == "fp32"


def test_convolutions_count_by_cudnns_own_setting(precision):
    conv = torch.backends.cudnn.conv
    before = conv.fp32_precision
    assert convolutions_in_tf32()
    assert setting() == ("" if precision == "highest" else "tf32")
    conv.fp32_precision = "ieee"
    try:
        assert not convolutions_in_tf32()
        assert setting() == ("ieee" if precision == "highest" else "products")
    finally:
        conv.fp32_precision = before


def test_compiled_code_knows_the_setting_that_it_was_made_for(on_gpu, precision):
    compiled = torch.compile(lambda x: x + (2 if calls.entry(x)[-1] == "tf32" else 1), fullgraph=True, backend="eager")
    assert compiled(torch.zeros(2)).tolist() == [1 if precision == "highest" else 2] * 2
    torch._dynamo.reset()


def test_what_pytorch_is_told_while_it_is_judged_is_not_what_the_program_allows(precision):
    with without_tf32():
        assert products_in_tf32() is (precision != "highest")
        assert convolutions_in_tf32()
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert products_in_tf32() is (precision != "highest")


def test_replaced_products_are_posed_as_the_program_allows(monkeypatch):
    monkeypatch.setattr(products, "resolved", lambda accuracy, _tensor: {"allowed": "tf32"}.get(accuracy, accuracy))
    x, w, image, filters = torch.ones(8, 8), torch.ones(8, 8), torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3)
    for function, arguments in ((torch.nn.functional.linear, (x, w)), (torch.mm, (x, w)), (torch.addmm, (x, x, w))):
        call = call_of(function, arguments, {})
        assert call.operator.plans.posed(*call.arguments).named["accuracy"] == "tf32"
    call = call_of(torch.nn.functional.conv2d, (image, filters), {})
    assert call.operator is CONV2D
    assert "accuracy" not in call.operator.plans.posed(*call.arguments).named  # the records are of FP32


@pytest.mark.parametrize("accuracy", ["fp32", "tf32"])
def test_what_may_compute_in_tf32_is_judged_by_pytorchs_tf32(accuracy):
    problem = catalogue().get("linear").problem({"m": 8, "n": 8, "k": 8}, options={"accuracy": accuracy})
    assert Candidate(None, problem).is_tf32 is (accuracy == "tf32")
    assert not Candidate(None).is_tf32


def test_all_bits_are_asked_for_by_name():
    assert asks_for_more((torch.ones(2), 1.0, "fp32"))
    assert asks_for_more(("none", "fp32-fma"))
    assert not asks_for_more((torch.ones(2), None, "none", ALLOWED))
    assert not asks_for_more(("tf32",))
