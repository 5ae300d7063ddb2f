"""A few cycles of `make chaos`, of which one seed decides the faults."""

from __future__ import annotations

import pytest
from chaos.run import chaos

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


def test_some_random_cycles_lose_double_and_forget_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    report = chaos(tmp_path, seed=3, cycles=8)
    assert report.violations == []
    assert report.numbers["evaluations_witnessed"] > 0
    assert report.numbers["due_times"] > 0
