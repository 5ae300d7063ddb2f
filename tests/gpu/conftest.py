from __future__ import annotations

import pytest

from tilewright.tuner import nvml


@pytest.fixture(scope="session")
def gpu():
    """The first GPU of this machine."""
    found = nvml.gpus()
    if not found:
        pytest.skip("no NVIDIA GPU on this machine")
    pytest.importorskip("pycuda", reason="PyCUDA is not installed")
    return found[0]
