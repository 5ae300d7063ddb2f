"""Trains the network of the digits page with NumPy alone; writes its weights, their accuracy and where they come from.

    python tools/train_digits.py --data digits.csv.gz

The data: the UCI repository's "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998; CC BY 4.0,
doi:10.24432/C50P49), the copy that scikit-learn installs as sklearn/datasets/data/digits.csv.gz: 1,797 images of 8x8
counts. Without --data the installed scikit-learn is asked where its copy lies; nothing else of it is used.

The last 360 images, in the file's order, are held out and never trained on: neighbours there are alike, and a shuffled
split would flatter. They are written as a fixture of the tests. What is reported is measured with the weights as
they were read back from the file, rounded to float16.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.tuner.network.digits import BLOCK, BOX, CELLS, WEIGHTS, counted, images, interpolation, thresholded
from tilewright.tuner.network.network import Network

SIZES = (784, 100, 100, 10)
HELD_OUT = 360
FIXTURE = Path("tests/data/digits_held_out.npz")
SOURCE = "UCI Optical Recognition of Handwritten Digits (Alpaydin, Kaynak 1998), doi:10.24432/C50P49, CC BY 4.0"

EPOCHS, BATCH, RATE = 60, 64, 2e-3
DECAY = 0.02
"""Of the weights, for each unit of the rate. Chosen with the other numbers on the last 300 of the training images."""
GRID, BEND = 4, 2.5  # pixels of the 32
BETA_1, BETA_2, TINY = 0.9, 0.999, 1e-8  # Kingma and Ba 2015, algorithm 1

Array = NDArray[np.float32]


def main() -> None:
    """Trains, writes both files, prints the accuracies."""
    arguments = parse()
    cells, labels = read(arguments.data or installed_data())
    train, held_out = slice(None, -HELD_OUT), slice(-HELD_OUT, None)
    network = fit(cells[train], labels[train], arguments.seed, arguments.epochs)
    network.save(arguments.out)
    kept = Network.load(arguments.out)
    accuracies = {
        "training": accuracy(kept, cells[train], labels[train]),
        "held_out": accuracy(kept, cells[held_out], labels[held_out]),
    }
    about = {
        "data": SOURCE,
        "prepared": "8x8 counts enlarged to 28x28, bilinear",
        "images": {"training": len(cells) - HELD_OUT, "held_out": HELD_OUT},
        "accuracy": accuracies,
        "seed": arguments.seed,
        "epochs": arguments.epochs,
        "command": f"python tools/train_digits.py --seed {arguments.seed} --epochs {arguments.epochs}",
        "numpy": np.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }
    Network(kept.layers, about).save(arguments.out)
    if arguments.fixture:
        np.savez_compressed(
            arguments.fixture,
            cells=cells[held_out].astype(np.uint8),
            labels=labels[held_out].astype(np.uint8),
            source=np.array(SOURCE),
        )
    print(", ".join(f"{name} {share:.4f}" for name, share in accuracies.items()))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="digits.csv.gz of scikit-learn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--fixture", type=Path, default=FIXTURE)
    return parser.parse_args()


def installed_data() -> Path:
    """The copy in an installed scikit-learn, or the end of the program with the remedy."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        sys.exit("scikit-learn is not installed: pip install scikit-learn, or name its digits.csv.gz with --data")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def read(path: Path) -> tuple[Array, NDArray[np.int64]]:
    """Counts (1797, 8, 8) and labels, in the file's order."""
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    return table[:, :-1].reshape(-1, CELLS, CELLS), table[:, -1].astype(np.int64)


def accuracy(network: Network, cells: Array, labels: NDArray[np.int64]) -> float:
    """The share that it gets right, to four digits."""
    return round(float((network.forward(images(cells)).argmax(axis=1) == labels).mean()), 4)


def varied(cells: Array, generator: np.random.Generator) -> Array:
    """The images a little turned, sheared, stretched, moved and bent: drawings differ from the data in all of these."""
    enlarge = interpolation(CELLS, BOX)
    boxes = enlarge @ (cells / BLOCK**2) @ enlarge.T
    count = len(cells)
    angle, shear = generator.normal(0, 0.12, count), generator.normal(0, 0.15, count)
    stretch_x, stretch_y = generator.normal(1.0, 0.15, count), generator.normal(1.0, 0.05, count)
    shift = generator.normal(0, 1.0, (2, count, 1, 1))
    y, x = (axis[None] - (BOX - 1) / 2 for axis in np.meshgrid(np.arange(BOX), np.arange(BOX), indexing="ij"))
    a, s = angle[:, None, None], shear[:, None, None]
    turned_x = (np.cos(a) * x - np.sin(a) * y) * stretch_x[:, None, None] + s * y
    turned_y = (np.sin(a) * x + np.cos(a) * y) * stretch_y[:, None, None]
    # Bent: each corner of a coarse grid moves by itself, what lies between follows.
    spread = interpolation(GRID, BOX)
    bend = spread @ generator.normal(0, BEND, (2, count, GRID, GRID)) @ spread.T
    middle = (BOX - 1) / 2
    moved = sampled(boxes, turned_y + middle + 0.5 * shift[0] + bend[0], turned_x + middle + shift[1] + bend[1])
    return counted(thresholded(moved))


def sampled(boxes: Array, y: NDArray[Any], x: NDArray[Any]) -> Array:
    """Bilinear samples of each box at its own places; paper outside."""
    padded = np.pad(boxes, ((0, 0), (1, 1), (1, 1)))
    y, x = np.clip(y + 1, 0, BOX + 0.999), np.clip(x + 1, 0, BOX + 0.999)
    top, left = y.astype(np.int64), x.astype(np.int64)
    down, right = y - top, x - left
    one = np.arange(len(boxes))[:, None, None]
    upper = padded[one, top, left] * (1 - right) + padded[one, top, left + 1] * right
    lower = padded[one, top + 1, left] * (1 - right) + padded[one, top + 1, left + 1] * right
    return (upper * (1 - down) + lower * down).astype(np.float32)


def fit(cells: Array, labels: NDArray[np.int64], seed: int, epochs: int) -> Network:
    """Trained by Adam on cross-entropy: every epoch sees the images once as they are and twice varied."""
    generator = np.random.default_rng(seed)
    start = Network.random(SIZES, seed)
    parameters = [array.astype(np.float64) for layer in start.layers for array in (layer.weights, layer.bias)]
    moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]
    steps = 0
    for epoch in range(epochs):
        seen = np.concatenate([cells, varied(cells, generator), varied(cells, generator)])
        inputs, expected = images(seen), np.concatenate([labels] * 3)
        rate = RATE * 0.5 * (1 + np.cos(np.pi * epoch / epochs))
        order = generator.permutation(len(inputs))
        for first in range(0, len(order), BATCH):
            part = order[first : first + BATCH]
            steps += 1
            adam(parameters, moments, gradients(parameters, inputs[part], expected[part]), rate, steps)
    return Network.of(parameters[0::2], parameters[1::2])


def gradients(parameters: list[NDArray[Any]], x: Array, labels: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Of the mean cross-entropy, in the parameters' order: weights and bias of each layer."""
    activations = [np.asarray(x, np.float64)]
    weights, biases = parameters[0::2], parameters[1::2]
    for w, b in zip(weights[:-1], biases[:-1], strict=True):
        activations.append(np.maximum(activations[-1] @ w.T + b, 0))
    z = activations[-1] @ weights[-1].T + biases[-1]
    z = np.exp(z - z.max(axis=1, keepdims=True))
    slope = z / z.sum(axis=1, keepdims=True)
    slope[np.arange(len(labels)), labels] -= 1
    slope /= len(labels)
    slopes: list[NDArray[Any]] = []
    for place in range(len(weights) - 1, -1, -1):
        slopes = [slope.T @ activations[place], slope.sum(axis=0), *slopes]
        slope = (slope @ weights[place]) * (activations[place] > 0)
    return slopes


def adam(
    parameters: list[NDArray[Any]],
    moments: list[tuple[NDArray[Any], NDArray[Any]]],
    slopes: list[NDArray[Any]],
    rate: float,
    steps: int,
) -> None:
    """One step of the parameters, in place, with the weights' decay apart from the slopes."""
    for parameter, (mean, square), slope in zip(parameters, moments, slopes, strict=True):
        mean[...] += (1 - BETA_1) * (slope - mean)
        square[...] += (1 - BETA_2) * (slope**2 - square)
        step = (mean / (1 - BETA_1**steps)) / (np.sqrt(square / (1 - BETA_2**steps)) + TINY)
        parameter[...] -= rate * (step + DECAY * parameter * (parameter.ndim == 2))  # weights decay, biases do not


if __name__ == "__main__":
    main()
