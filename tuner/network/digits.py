"""Handwritten digits: the form that the network was trained on, a drawing brought into it, and the trained network.

The data are the 8x8 digits of the UCI repository that scikit-learn ships: bitmaps of 32x32 that fill their box from
top to bottom, strokes thinned or thickened until about the same share is ink, and the ink of each 4x4 block counted, 0
to 16. A drawing gets the same treatment. The network sees the 8x8 counts enlarged to 28x28.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.tuner.network.network import Matrix, Network

Cells = NDArray[np.float32]

CELLS, BLOCK, SIDE = 8, 4, 28
BOX = CELLS * BLOCK
WEIGHTS = Path(__file__).with_name("digits.npz")

INK_SHARE = 0.305
"""The share of a box that has ink: 19.5 of 64 cells on average over the 1,797 images, within 0.9 of that in the mean of
every class."""
WIDEST = 24
"""Pixels of 32: all but 41 of the 1,797 images leave a column of cells free on either side, or two."""
BLUR = 1.4
"""Standard deviation, in pixels of the box: wide enough that a thin stroke thickens evenly, less than half a stroke."""


def images(cells: NDArray[Any]) -> Matrix:
    """(count, 8, 8) counts of 0 to 16 as the network's inputs (count, 784): 28x28 in 0 to 1, bilinear, row-major."""
    enlarge = interpolation(CELLS, SIDE)
    enlarged = enlarge @ (np.asarray(cells, np.float32) / BLOCK**2) @ enlarge.T
    return np.ascontiguousarray(enlarged.reshape(-1, SIDE * SIDE), np.float32)


def cells_of_drawing(ink: NDArray[Any]) -> Cells | None:
    """The 8x8 counts of a drawing: (side, side), 0 for paper to 1 for ink. None where nothing is drawn."""
    drawn = np.asarray(ink, np.float32)
    rows, columns = (np.flatnonzero((drawn > 0.5).any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return None
    height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
    cut = drawn[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    # A dash would fill the box: nothing is stretched to more than four times its width.
    fitted_height = min(BOX, max(1, round(4 * BOX * height / width)))
    fitted_width = int(np.clip(round(fitted_height * width / height), 1, WIDEST))
    fitted = (interpolation(height, fitted_height) @ cut @ interpolation(width, fitted_width).T).astype(np.float32)
    box = np.zeros((BOX, BOX), np.float32)
    top, left = (BOX - fitted_height) // 2, _left(fitted)
    box[top : top + fitted_height, left : left + fitted_width] = fitted
    cells: Cells = counted(thresholded(box[None]))[0]
    return cells


def _left(fitted: NDArray[np.float32]) -> int:
    """The column where the drawing begins, for its centre of mass to lie in the box's middle or as near as it fits."""
    width = fitted.shape[1]
    centre = float((fitted.sum(axis=0) * (np.arange(width) + 0.5)).sum() / max(float(fitted.sum()), 1e-6))
    return int(np.clip(round(BOX / 2 - centre), 0, BOX - width))


def thresholded(boxes: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Bitmaps (count, 32, 32) with the data's share of ink: blurred, then the darkest pixels."""
    blur = smoothing(BOX, BLUR)
    blurred = blur @ boxes @ blur.T
    limits = np.quantile(blurred.reshape(len(boxes), -1), 1 - INK_SHARE, axis=1)
    return np.asarray(blurred > np.maximum(limits, 1e-3)[:, None, None])


def counted(bitmaps: NDArray[np.bool_]) -> Cells:
    """(count, 8, 8): the ink of each 4x4 block."""
    blocks = bitmaps.reshape(len(bitmaps), CELLS, BLOCK, CELLS, BLOCK)
    cells: Cells = blocks.sum(axis=(2, 4)).astype(np.float32)
    return cells


@cache
def interpolation(size: int, target: int) -> NDArray[np.float32]:
    """A matrix (target, size) that resamples an axis: bilinear to enlarge; to shrink, the mean of merged cells."""
    scale = size / target
    centres = (np.arange(target) + 0.5) * scale - 0.5
    reach = max(scale, 1.0)
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(size) - centres[:, None]) / reach)
    shares: NDArray[np.float32] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares


@cache
def smoothing(size: int, deviation: float) -> NDArray[np.float32]:
    """A matrix (size, size) that blurs an axis by a Gaussian, with paper beyond its ends."""
    apart = np.arange(size) - np.arange(size)[:, None]
    weights = np.exp(-0.5 * (apart / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi))
    kernel: NDArray[np.float32] = weights.astype(np.float32)
    return kernel


@cache
def trained() -> Network:
    """The network for `images`, with the weights that come with the package; its `about` says how they were made."""
    return Network.load(WEIGHTS)
