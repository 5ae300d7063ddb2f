"""Functions that a model calls, with ours in their place: attention by its name, others by a mode."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402
from tilewright.tuner.pytorch.acceleration.installation.installed import Replacement, install, uninstall  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.call import entries  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.calls import call_of  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
ATTENTION = by_an_own_name = functional.scaled_dot_product_attention


class Attending(nn.Module):
    """Says how many modes each call was under."""

    def __init__(self, *, by_name: bool, fails: bool = False) -> None:
        super().__init__()
        self.by_name, self.fails, self.modes = by_name, fails, list[int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.modes.append(torch._C._len_torch_function_stack())
        attend = functional.scaled_dot_product_attention if self.by_name else by_an_own_name
        result = attend(x, x, x)
        if self.fails:
            raise ValueError("after attention")
        return result


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(1, 2, 5, 16)


def replaced(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """The model, its attention replaced for such an input."""
    call = call_of(ATTENTION, (x, x, x), {})
    assert call is not None
    stand = Replacement(entries(call), function="scaled_dot_product_attention")
    install(model.eval(), [stand], with_gradients=False)
    return model


def calls_ours() -> int:
    return sum(one.calls_ours for one in tw.status() if one.operator == "scaled_dot_product_attention")


@torch.no_grad()
def test_attention_by_its_name_is_replaced_without_a_mode_from_the_second_call_on(x) -> None:
    model = replaced(Attending(by_name=True), x)
    torch.testing.assert_close(model(x), ATTENTION(x, x, x))
    before = calls_ours()
    for _ in range(2):
        torch.testing.assert_close(model(x), ATTENTION(x, x, x))
    assert model.modes == [1, 0, 0]
    assert calls_ours() == before + 2
    assert functional.scaled_dot_product_attention is ATTENTION


@torch.no_grad()
def test_our_operator_calls_pytorchs_attention_itself_where_that_runs(x) -> None:
    model = replaced(Attending(by_name=True), x)
    model(x)
    before = calls_ours()
    tw.off()
    try:
        torch.testing.assert_close(model(x), ATTENTION(x, x, x))
    finally:
        tw.on()
    assert calls_ours() == before


@torch.no_grad()
def test_attention_by_a_name_of_the_programs_own_keeps_the_mode(x) -> None:
    model = replaced(Attending(by_name=False), x)
    torch.testing.assert_close(model(x), ATTENTION(x, x, x))
    before = calls_ours()
    for _ in range(2):
        torch.testing.assert_close(model(x), ATTENTION(x, x, x))
    assert model.modes == [1, 1, 1]
    assert calls_ours() == before + 2


@torch.no_grad()
def test_other_threads_and_failures_find_pytorchs_own(x) -> None:
    model, other = replaced(Attending(by_name=True), x), Attending(by_name=True)
    model(x)
    inside, goes_on, seen = threading.Event(), threading.Event(), list[int]()

    def elsewhere() -> None:
        inside.wait()
        before = calls_ours()
        other(x)
        seen.append(calls_ours() - before)
        goes_on.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    forward = model.forward._forward

    def waiting(*given: torch.Tensor) -> torch.Tensor:
        inside.set()
        goes_on.wait()
        return forward(*given)

    model.forward._forward = waiting
    model(x)
    thread.join()
    assert seen == [0]
    model.fails = True
    with pytest.raises(ValueError, match="after attention"):
        model(x)
    assert functional.scaled_dot_product_attention is ATTENTION
    uninstall(model)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", ["addmm", "baddbmm"])
def test_a_sum_with_a_product_has_autocasts_dtype(name, grad) -> None:
    function, batch = getattr(torch, name), () if name == "addmm" else (2,)
    c, a, b = (torch.randn(*batch, *shape) for shape in ((3, 5), (3, 4), (4, 5)))
    call = call_of(function, (c, a, b), {"beta": 0.5})
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(grad):
        result, expected = call.run(), function(c, a, b, beta=0.5)
    assert result.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=0.03, atol=0.03)
