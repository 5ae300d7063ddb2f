"""Operators whose kernels find no room for their scratch memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402 - behind the check that torch is here
from tilewright.kernels.catalogue import catalogue  # noqa: E402
from tilewright.tuner.pytorch.plans import FallbackWarning  # noqa: E402
from tilewright.tuner.runtime.answers import AnswerCache  # noqa: E402
from tilewright.tuner.runtime.host import host_place  # noqa: E402
from tilewright.tuner.runtime.memory.room import HOST, ROOM, SETTING  # noqa: E402
from tilewright.tuner.runtime.runtime import Runtime  # noqa: E402

GEMV = catalogue().get("gemv")


@pytest.fixture
def split(tmp_path):
    """Operators with a configuration of gemv that needs scratch memory."""
    problem, limits = GEMV.problem({"m": 8, "n": 8192}), host_place().limits
    feasible = GEMV.space(problem, limits, ["split"]).feasible
    configuration = next(c for c in feasible if GEMV.variant("split").workspace_bytes(c.values, problem))
    tw.release()
    tw.use(Runtime(answers=AnswerCache(tmp_path / "answers"), only_tuned=True, pinned={problem: configuration}))
    yield
    tw.use(None)


def test_a_call_without_room_is_pytorchs_until_there_is_some(split, monkeypatch):
    a, x = torch.randn(8, 8192), torch.randn(8192)
    others = ROOM.taken_bytes(HOST)  # of launches in other tests, which somebody still holds
    torch.testing.assert_close(tw.gemv(a, x), a @ x, atol=1e-3, rtol=1e-4)
    assert ROOM.taken_bytes(HOST) > others
    assert tw.release() > 0
    monkeypatch.setenv(SETTING, "0")
    with pytest.warns(FallbackWarning, match=f"{SETTING}=0 are in use"):
        torch.testing.assert_close(tw.gemv(a, x), a @ x)
    (decision,) = tw.status()
    assert not decision.is_ours
    assert ROOM.taken_bytes(HOST) == others
    monkeypatch.delenv(SETTING)
    tw.gemv(a, x)
    assert ROOM.taken_bytes(HOST) > others
