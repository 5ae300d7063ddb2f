"""Operators with TILEWRIGHT_ANY_SIZE: new lengths compile nothing, and results are PyTorch's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402 - behind the check that torch is here
from tilewright.tuner.pytorch import plans  # noqa: E402
from tilewright.tuner.runtime.answers import AnswerCache  # noqa: E402
from tilewright.tuner.runtime.runtime import Runtime  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.errors.UntunedWarning")


@pytest.fixture
def any_size(tmp_path):
    tw.use(Runtime(answers=AnswerCache(tmp_path / "answers"), any_size_operators=True))
    yield
    tw.use(None)


def test_new_lengths_compile_nothing(any_size, monkeypatch):
    w, b = torch.randn(24, 40), torch.randn(24)
    tw.linear(torch.randn(3, 40), w, b)
    monkeypatch.setattr("tilewright.tuner.devices.cpu.build.HostBuilder.program", None)
    for m in (1, 2, 65, 300):
        x = torch.randn(m, 40)
        for _ in range(2):
            torch.testing.assert_close(tw.linear(x, w, b), torch.nn.functional.linear(x, w, b), atol=1e-4, rtol=1e-4)
    ours = [one for one in tw.status() if one.operator == "linear"]
    assert len(ours) >= 5
    assert all(one.is_ours for one in ours)


def test_layouts_that_rows_would_move_have_launchers_of_their_own(any_size):
    a, b = torch.randn(40, 17).T, torch.randn(40, 24)
    torch.testing.assert_close(tw.gemm(a, b), a @ b, atol=1e-4, rtol=1e-4)
    batch = torch.randn(3, 17, 40)
    torch.testing.assert_close(tw.gemm(batch, b.expand(3, 40, 24)), batch @ b, atol=1e-4, rtol=1e-4)


def test_unless_it_is_asked_for_a_shape_has_code_of_its_own():
    assert not plans.runtime()._any_size_operators
