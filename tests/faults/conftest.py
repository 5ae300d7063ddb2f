from __future__ import annotations

import pytest

for name in ("fleet", "gate", "recovery"):
    pytest.register_assert_rewrite(name)

from gate import Gate  # noqa: E402


@pytest.fixture
def gate(tmp_path, tmp_path_factory) -> Gate:
    folder = tmp_path / "gate"
    folder.mkdir()
    return Gate(folder, tmp_path_factory.getbasetemp() / "gated-programs")


@pytest.fixture
def working(fleet, gate):
    """A fleet whose one worker compiles through the gate."""
    fleet.start_worker(**gate.environment)
    fleet.wait_for_device()
    return fleet
