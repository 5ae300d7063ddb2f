"""Products of float32 have the accuracy that the caller asks for, or that the program allows PyTorch's own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import tilewright.torch as tw  # noqa: E402
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


def posed(operator, device, dtype, accuracy):
    """The accuracy of the problem that such a product poses."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        a, c = (torch.empty(8, 8, dtype=dtype, device=device) for _ in range(2))
        given = {
            "gemm": (a, a, 1.0, accuracy),
            "gemm_": (c, a, a, 1.0, 0.0, accuracy),
            "linear": (a, a, c[0], "none", accuracy),
        }
        return operator.plans.posed(*given[operator.name]).named.get("accuracy", "fp32")


@pytest.mark.parametrize("operator", [GEMM, GEMM_INTO, LINEAR])
def test_a_product_on_a_gpu_is_posed_as_the_program_allows(precision, operator):
    allowed = "fp32" if precision == "highest" else "tf32"
    assert posed(operator, "cuda", torch.float32, ALLOWED) == allowed
    assert posed(operator, "cuda", torch.float32, "fp32") == "fp32"
    assert posed(operator, "cuda", torch.bfloat16, ALLOWED) == "fp32"
    assert posed(operator, "cpu", torch.float32, ALLOWED) == "fp32"


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
        with FakeTensorMode():
            assert resolved(ALLOWED, torch.empty(2, device="cuda")) == "tf32"
    finally:
        matmul.fp32_precision = before


def test_on_the_cpu_products_have_all_their_bits(precision):
    a, b = torch.randn(6, 5, requires_grad=True), torch.randn(5, 4)
    product = tw.gemm(a, b)
    torch.testing.assert_close(product, a @ b)
    product.sum().backward()
    torch.testing.assert_close(a.grad, torch.ones(6, 4) @ b.T)
