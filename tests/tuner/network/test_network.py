"""The network: NumPy, its file, and the same pass on tuned kernels."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from tilewright.tuner.network import digits
from tilewright.tuner.network.launch import LaunchedNetwork
from tilewright.tuner.network.network import Network, NetworkFileError
from tilewright.tuner.runtime import ArgumentError, Runtime, UntunedWarning

SIZES = [(784, 100, 100, 10), (17, 5), (40, 33, 9, 12, 3)]


def inputs(network, batch):
    return np.random.default_rng(2).standard_normal((batch, network.sizes[0])).astype(np.float32)


def in_float64(network, x):
    y = x.astype(np.float64)
    for place, layer in enumerate(network.layers):
        y = y @ layer.weights.T.astype(np.float64) + layer.bias
        if place < len(network.layers) - 1:
            y = np.where(y > 0, y, 0)
    y = np.exp(y - y.max(axis=1, keepdims=True))
    return y / y.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("sizes", SIZES)
def test_forward_agrees_with_the_formula_in_float64(sizes):
    network = Network.random(sizes, seed=1)
    x = inputs(network, 19)
    found = network.forward(x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, in_float64(network, x), atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize(("sizes", "fused"), [*((sizes, False) for sizes in SIZES), *((s, True) for s in SIZES[::2])])
def test_kernels_compute_what_numpy_does(sizes, fused):
    network = Network.random(sizes, seed=1)
    x, probabilities = inputs(network, 6), np.full((6, sizes[-1]), np.nan, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntunedWarning)
        launched = LaunchedNetwork(network, 6, choose=Runtime().best, fused=fused)
        returned = launched(x, probabilities)
    assert returned is probabilities
    np.testing.assert_allclose(probabilities, in_float64(network, x), atol=2e-6, rtol=2e-5)
    x[:] = 0  # the next batch, in the same array
    launched(x, probabilities)
    np.testing.assert_allclose(probabilities, in_float64(network, x), atol=2e-6, rtol=2e-5)


def test_another_batch_than_it_was_made_for_is_refused_before_anything_runs():
    network = Network.random((17, 5), seed=1)
    launched = LaunchedNetwork(network, 6, choose=Runtime().best)
    probabilities = np.full((6, 5), np.nan, np.float32)
    with pytest.raises(ArgumentError, match="X"):
        launched(inputs(network, 7), probabilities)
    with pytest.raises(ArgumentError, match="X"):
        launched(inputs(network, 6).astype(np.float64), probabilities)
    assert np.isnan(probabilities).all()


def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parents[3] / "docs" / "network.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntunedWarning)
        names: dict = {}
        exec(code, names)  # noqa: S102 - our own page
    np.testing.assert_allclose(names["probabilities"], names["network"].forward(names["x"]), atol=2e-6)


def test_a_single_layer_cannot_be_fused():
    with pytest.raises(ValueError, match="this network has only one"):
        LaunchedNetwork(Network.random((17, 5), seed=1), 6, choose=Runtime().best, fused=True)


def test_large_numbers_do_not_overflow():
    network = Network.of([np.eye(3) * 1e4], [np.zeros(3)])
    np.testing.assert_array_equal(network.forward(np.eye(3)), np.eye(3))


def test_what_is_saved_is_loaded(tmp_path):
    network = Network.of([np.ones((2, 3)), np.full((4, 2), 0.1)], [np.zeros(2), np.arange(4)], {"seed": 3})
    network.save(tmp_path / "network.npz", "float32")
    found = Network.load(tmp_path / "network.npz")
    assert found.sizes == (3, 2, 4)
    assert found.about == {"seed": 3}
    assert [layer.activation for layer in found.layers] == ["relu", "none"]
    for layer, kept in zip(network.layers, found.layers, strict=True):
        np.testing.assert_array_equal(layer.weights, kept.weights)
        np.testing.assert_array_equal(layer.bias, kept.bias)


def test_a_file_that_is_no_network_is_refused_by_name(tmp_path):
    for name, content in (("empty", b""), ("text", b"weights"), ("cut", digits.WEIGHTS.read_bytes()[:5000])):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(NetworkFileError, match=name):
            Network.load(path)
    np.savez(tmp_path / "other.npz", weights_0=np.ones((2, 2)))
    with pytest.raises(NetworkFileError, match="other"):
        Network.load(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("weights", "biases"),
    [
        ([], []),
        ([np.ones((2, 3))], []),
        ([np.ones((2, 3))], [np.ones(3)]),
        ([np.ones((2, 3)), np.ones((4, 3))], [np.ones(2), np.ones(4)]),
        ([np.ones(3)], [np.ones(3)]),
    ],
)
def test_layers_must_follow(weights, biases):
    with pytest.raises(ValueError, match=r"bias"):
        Network.of(weights, biases)


def test_work_is_counted_by_the_products():
    assert digits.trained().flops(256) == 2 * 256 * (784 * 100 + 100 * 100 + 100 * 10)
