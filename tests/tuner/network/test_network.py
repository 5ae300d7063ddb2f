"""The network and its digits: accuracy, drawings, its file, and the same pass on tuned kernels."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from drawn_digits import STROKES, ink

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


@pytest.mark.in_turn(3)
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


HELD_OUT = Path(__file__).parents[2] / "data" / "digits_held_out.npz"


@pytest.fixture(scope="module")
def held_out():
    with np.load(HELD_OUT) as stored:
        return stored["cells"], stored["labels"]


def seen(drawing):
    cells = digits.cells_of_drawing(drawing)
    return int(digits.trained().forward(digits.images(cells[None]))[0].argmax())


def test_the_accuracy_that_is_stated_is_the_accuracy_on_the_held_out_images(held_out):
    cells, labels = held_out
    network = digits.trained()
    right = (network.forward(digits.images(cells)).argmax(axis=1) == labels).mean()
    assert network.sizes == (784, 100, 100, 10)
    assert network.about["images"]["held_out"] == len(labels)
    assert right == pytest.approx(network.about["accuracy"]["held_out"], abs=0.5 / len(labels))
    assert right > 0.93


def test_weights_are_small_and_say_where_they_come_from():
    assert digits.WEIGHTS.stat().st_size < 400_000
    about = digits.trained().about
    assert {"data", "seed", "command", "date", "accuracy"} <= set(about)
    assert "CC BY 4.0" in about["data"]


@pytest.mark.parametrize("digit", sorted(STROKES))
@pytest.mark.parametrize(("scale", "shift"), [(1.0, (0, 0)), (0.5, (-0.2, 0.2)), (0.35, (0.3, -0.3))])
def test_a_drawn_digit_is_recognised_wherever_it_stands(digit, scale, shift):
    assert seen(ink(digit, scale=scale, shift=shift)) == digit


@pytest.mark.parametrize("width", [0.03, 0.075, 0.13])
def test_the_width_of_the_pen_does_not_matter(width):
    assert [seen(ink(digit, width=width)) for digit in sorted(STROKES)] == sorted(STROKES)


def test_a_drawing_has_the_form_of_the_data(held_out):
    share = held_out[0].sum(axis=(1, 2)).mean() / digits.BOX**2
    for digit in STROKES:
        cells = digits.cells_of_drawing(ink(digit))
        assert cells.shape == (8, 8)
        assert cells.min() >= 0
        assert cells.max() <= 16
        assert cells[0].any()  # top to bottom, as the data are
        assert cells[-1].any()
        assert cells.sum() / digits.BOX**2 == pytest.approx(share, abs=0.02)


def test_moving_a_drawing_by_whole_pixels_changes_nothing():
    drawn = ink(3, scale=0.5)
    moved = np.roll(drawn, (5, -7), (0, 1))
    np.testing.assert_array_equal(digits.cells_of_drawing(drawn), digits.cells_of_drawing(moved))


def test_paper_is_no_drawing():
    assert digits.cells_of_drawing(np.zeros((28, 28))) is None
    assert digits.cells_of_drawing(np.full((28, 28), 0.4)) is None


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (64, 64)])
def test_any_blot_gives_probabilities(shape):
    drawn = np.zeros((64, 64))
    drawn[: shape[0], : shape[1]] = 1
    cells = digits.cells_of_drawing(drawn)
    probabilities = digits.trained().forward(digits.images(cells[None]))
    assert np.isfinite(probabilities).all()
    assert probabilities.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("size", "target"), [(8, 28), (56, 24), (1, 32), (32, 32), (7, 7)])
def test_resampling_keeps_what_is_even(size, target):
    weights = digits.interpolation(size, target)
    assert weights.shape == (target, size)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    if size == target:
        np.testing.assert_array_equal(weights, np.eye(size))
