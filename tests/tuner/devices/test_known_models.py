"""Figures of GPU products that results are imported for: every compute capability that CUDA names, old and new."""

import pytest

from tilewright.tuner.devices.known_models import model_of_product, product_of


@pytest.mark.parametrize(
    ("capability", "shared_kib"),
    [("7.0", 96), ("7.5", 64), ("8.6", 99), ("9.0", 227), ("10.3", 227), ("11.0", 227), ("12.0", 99), ("12.1", 99)],
)
def test_a_product_of_any_capability_has_its_limits(capability, shared_kib):
    figures = {"compute_capability": capability, "multiprocessors": "48", "memory_gib": "16"}
    model = model_of_product("A new one", product_of(figures))
    assert model.limits.compute_capability == tuple(map(int, capability.split(".")))
    assert model.limits.max_shared_bytes == shared_kib * 1024


def test_a_capability_that_there_is_not_is_refused_with_those_that_there_are():
    figures = {"compute_capability": "6.9", "multiprocessors": "48", "memory_gib": "16"}
    with pytest.raises(ValueError, match=r"must be one of 7\.0, 7\.2, .* 12\.1"):
        product_of(figures)
