"""Errors from the model in float64: ours and PyTorch's own, and what is allowed of them."""

import math
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from tilewright.tuner.pytorch.acceleration.judgement import exact  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement.standard import NONE, Error, Standard, Verdict  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_gradients")

nn, F = torch.nn, torch.nn.functional


class Casts(nn.Module):
    """Names float32 wherever libraries of models do, has a buffer that it writes, and makes tensors of its own."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(256, 64), nn.Parameter(torch.rand(64))
        self.register_buffer("kept", torch.zeros(32, 64))

    def forward(self, x):
        y = self.layer(x)
        wide = y.to(torch.float32)
        normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        self.kept[: len(x)] = normed
        out = torch.zeros(*x.shape[:-1], 64)
        out[:] = self.scale * self.kept[: len(x)]
        return out + torch.arange(64, dtype=torch.float32)


def by_hand(model, x):
    y = x.double() @ model.layer.weight.double().T + model.layer.bias.double()
    normed = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return model.scale.double() * normed + torch.arange(64, dtype=torch.float64)


def test_code_that_names_float32_computes_in_float64_and_leaves_the_model_as_it_is():
    model, x = Casts(), torch.randn(16, 256)
    standard = Standard.of(lambda call: call(x), model)
    torch.testing.assert_close(standard.exact[0], by_hand(model, x), rtol=1e-13, atol=1e-13)
    assert torch.get_default_dtype() == torch.float32
    assert {one.dtype for one in [*model.parameters(), *model.buffers()]} == {torch.float32}
    torch.testing.assert_close(model.kept[:16].pow(2).mean(-1), torch.ones(16))  # eager's run, not that in float64
    assert 1e-9 < standard.eager[0].whole < 1e-6
    assert standard.measure == "itself in float64"


def test_a_module_that_asks_for_its_parameters_dtype_is_copied():
    model, x = nn.LSTM(8, 8, batch_first=True), torch.randn(2, 5, 8)
    standard = Standard.of(lambda call: call(x), model)
    assert [one.dtype for one in standard.exact] == [torch.float64] * 3
    assert all(0 < one.whole < 1e-6 for one in standard.eager)


def test_the_more_accurate_result_is_right_though_it_differs_from_pytorchs():
    a, b = torch.randn(64, 4096), torch.randn(4096, 64)

    def eager(_):
        return sum(x @ y for x, y in zip(a.split(1, 1), b.split(1, 0), strict=True))  # one term after another

    standard = Standard.of(eager)
    better = (a.double() @ b.double()).float()
    verdict = standard.verdict(better)
    assert verdict.is_right
    assert verdict.error.whole < verdict.eager.whole / 3
    worse = better + 1.6 * (standard.expected[0] - better)
    verdict = standard.verdict(worse)
    assert not verdict.is_right
    assert str(verdict).startswith(f"off by {verdict.error}, PyTorch's own by {verdict.eager}, and ")


def test_one_wrong_row_is_seen_in_a_tensor_that_is_right_as_a_whole():
    x, w = torch.randn(4096, 256), torch.randn(64, 256)
    standard = Standard.of(lambda _: F.linear(x, w))
    wrong = standard.expected[0].clone()
    wrong[7] *= 1 + 4e-6
    verdict = standard.verdict(wrong)
    assert verdict.error.whole < verdict.allowed.whole
    assert verdict.error.row > verdict.allowed.row
    assert not verdict.is_right


def test_a_few_roundoffs_are_allowed_whatever_pytorchs_own_error_is():
    x = torch.randn(32, 32)
    standard = Standard.of(lambda _: x * 2)
    assert standard.eager == [NONE]
    assert standard.verdict(x * 2 * (1 + 2**-23)).is_right
    assert not standard.verdict(x * 2 * (1 + 2**-20)).is_right
    half = Standard.of(lambda _: x.bfloat16() * 2)
    assert half.verdict(x.bfloat16() * 2).is_right
    assert half.verdict(None).error.whole == math.inf


def test_integers_are_equal_and_so_is_what_stands_for_infinity():
    x = torch.randn(4, 8)
    lowest = torch.finfo(torch.float32).min

    def eager(_):
        masked = x.masked_fill(x < 0, lowest)
        return masked, torch.where(x > 0, -math.inf, x), x.argsort(), x > 0

    standard = Standard.of(eager)
    masked, infinite, order, signs = eager(None)
    assert standard.verdict((masked, infinite, order, signs)).is_right
    for wrong in (
        (masked.clamp(min=-1e38), infinite, order, signs),
        (masked, infinite.clamp(min=lowest), order, signs),
        (masked, infinite, order.flip(0), signs),
        (masked, infinite, order, ~signs),
        (masked, infinite, order),
        (masked * math.nan, infinite, order, signs),
    ):
        assert not standard.verdict(wrong).is_right


def test_a_tolerance_of_the_caller_goes_before_both_errors():
    x = torch.randn(8, 8)
    assert Standard.of(lambda _: x * 2, tolerance=0.05).verdict(x * 2.08).is_right
    verdict = Standard.of(lambda _: x @ x, tolerance=0.0).verdict(x @ x)
    assert not verdict.is_right
    assert str(verdict).endswith("and 0 is allowed")
    assert Verdict(Error(0.1, 9.0), NONE, Error(0.2, math.inf)).is_right


class Router(nn.Module):
    """Chooses by a number whose sign the sums of float32 decide."""

    def forward(self, x):
        tie = (x @ torch.full((64, 1), 0.1) - (x.double() @ torch.full((64, 1), 0.1).double()).float()) != 0
        return torch.where(tie, x, -x)


@pytest.mark.parametrize("run", [lambda _: X64 @ X64.T, lambda call: call(X64.float())])
def test_where_float64_does_not_help_the_sums_of_products_are_taken_in_parts(run):
    standard = Standard.of(run, Router())
    assert standard.measure == "PyTorch's own"
    assert standard.verdict(run(Router())).is_right


X64 = torch.randn(64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def test_the_k_of_every_product_is_summed_in_parts():
    a, b, c, w = torch.randn(3, 8, 60), torch.randn(3, 60, 8), torch.randn(3, 8, 8), torch.randn(5, 60)
    images, filters = torch.randn(2, 12, 9, 9), torch.randn(6, 12, 3, 3)
    calls = [
        lambda: a[0] @ b[0],
        lambda: a @ b,
        lambda: torch.addmm(c[0], a[0], b[0], beta=0.5, alpha=2),
        lambda: torch.baddbmm(c, a, b, beta=0.5, alpha=2),
        lambda: F.linear(a, w, w[:, 0]),
        lambda: F.conv2d(images, filters, filters[:, 0, 0, 0], stride=2, padding=1),
        lambda: torch.einsum("bik,bkj->bij", a, b),
    ]
    for call in calls:
        for count in exact.PARTS:
            with exact.InParts(count):
                found = call()
            torch.testing.assert_close(found, call(), rtol=1e-4, atol=1e-4)
            assert not torch.equal(found, call())


TF32_SETTINGS = {
    "torch.set_float32_matmul_precision('high')": True,
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": True,
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'": False,
}


@pytest.mark.in_turn(3)
def test_every_way_to_allow_tf32_is_seen_and_put_back():
    """In a process each, which forks from one that has imported PyTorch: its older and newer settings do not mix."""
    program = f"""
import os
import torch
from tilewright.tuner.pytorch.precision import without_tf32

def now():
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision

for setting, expected in {TF32_SETTINGS}.items():
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, setting
        continue
    exec(setting)
    before = now()
    with without_tf32() as is_lower:
        assert "tf32" not in now(), now()
    assert now() == before, (now(), before)
    assert is_lower is expected
    break
else:
    print("all seen")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "all seen\n"), ran.stderr


def test_attention_by_itself_is_judged_in_float64():
    q, k, v = (torch.randn(2, 3, 40, 16) for _ in range(3))
    standard = Standard.of(lambda _: torch.nn.functional.scaled_dot_product_attention(q, k, v))
    assert standard.measure == "itself in float64"
    assert 0 < standard.eager[0].whole < 1e-6
    assert standard.exact[0].dtype == torch.float64
