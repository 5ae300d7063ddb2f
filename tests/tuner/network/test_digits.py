"""The digits: accuracy on images that were never trained on, and drawings brought into their form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from drawn_digits import STROKES, ink

from tilewright.tuner.network import digits

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
