"""Products of float32 have the accuracy that the caller asks for, or that the program allows PyTorch's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402
from tilewright.tuner.pytorch import products  # noqa: E402
from tilewright.tuner.pytorch.operator_plans import layout_key  # noqa: E402
from tilewright.tuner.pytorch.precision import ALLOWED, resolved  # noqa: E402
from tilewright.tuner.pytorch.products import GEMM, GEMM_INTO, LINEAR  # noqa: E402


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


def test_what_is_decided_under_one_setting_is_not_for_another():
    keys = []
    before = torch.get_float32_matmul_precision()
    for setting in ("highest", "high", "highest"):
        torch.set_float32_matmul_precision(setting)
        keys.append(layout_key(ALLOWED))
    torch.set_float32_matmul_precision(before)
    assert keys[0] == keys[2] != keys[1]
    assert layout_key("tf32") == "tf32"


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
