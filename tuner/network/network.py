"""A multilayer perceptron: its layers, its weights on disk, and its forward pass by NumPy."""

from __future__ import annotations

import itertools
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.tuner.errors import TunerError

Matrix = NDArray[np.float32]


class NetworkFileError(TunerError):
    """A file is not a network."""


@dataclass(frozen=True)
class Layer:
    """act(X Wᵀ + b) as the kernel `linear` has it: `weights` (outputs, inputs), `bias` (outputs), row-major float32."""

    weights: Matrix
    bias: Matrix
    activation: str = "relu"  # or "none"


@dataclass(frozen=True)
class Network:
    """Layers, relu after each but the last, softmax behind that. `about` says where the weights come from."""

    layers: tuple[Layer, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, weights: Sequence[NDArray[Any]], biases: Sequence[NDArray[Any]], about: Mapping[str, Any] | None = None
    ) -> Network:
        """The network of these weights, first layer first; raises ValueError where their shapes do not follow."""
        if not weights or len(weights) != len(biases):
            raise ValueError(f"a network needs a bias for each of its layers: {len(weights)} and {len(biases)}")
        layers = []
        for place, (w, b) in enumerate(zip(weights, biases, strict=True)):
            if w.ndim != 2 or b.shape != w.shape[:1] or (place and w.shape[1] != weights[place - 1].shape[0]):
                raise ValueError(f"layer {place + 1}: weights {w.shape} and bias {b.shape} do not fit the layer before")
            activation = "relu" if place < len(weights) - 1 else "none"
            layers.append(Layer(np.ascontiguousarray(w, np.float32), np.ascontiguousarray(b, np.float32), activation))
        return cls(tuple(layers), dict(about or {}))

    @classmethod
    def random(cls, sizes: Sequence[int], seed: int) -> Network:
        """Weights as training would begin with them: normal, with variance 2 / inputs (He et al. 2015, section 2.2)."""
        generator = np.random.default_rng(seed)
        pairs = list(itertools.pairwise(sizes))
        weights = [generator.standard_normal((n, k)) * np.sqrt(2 / k) for k, n in pairs]
        return cls.of(weights, [np.zeros(n) for _, n in pairs])

    @classmethod
    def load(cls, path: Path) -> Network:
        """The network that `save` wrote; raises NetworkFileError with the reason."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                count = sum(name.startswith("weights_") for name in stored.files)
                weights = [stored[f"weights_{place}"] for place in range(count)]
                biases = [stored[f"bias_{place}"] for place in range(count)]
                return cls.of(weights, biases, json.loads(str(stored["about"])))
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise NetworkFileError(f"{path.name} is not a network: {error}") from error

    def save(self, path: Path, dtype: str = "float16") -> None:
        """Writes the weights in that type, and `about` beside them."""
        arrays: dict[str, NDArray[Any]] = {"about": np.array(json.dumps(dict(self.about), sort_keys=True))}
        for place, layer in enumerate(self.layers):
            arrays[f"weights_{place}"] = layer.weights.astype(dtype)
            arrays[f"bias_{place}"] = layer.bias.astype(dtype)
        with path.open("wb") as file:  # NumPy would add a suffix to a name
            np.savez(file, **arrays)  # type: ignore[arg-type]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Inputs, then the outputs of each layer."""
        return (self.layers[0].weights.shape[1], *(layer.weights.shape[0] for layer in self.layers))

    def flops(self, batch: int) -> int:
        """Operations of the products: 2 m n k a layer."""
        return sum(2 * batch * n * k for k, n in itertools.pairwise(self.sizes))

    def forward(self, x: NDArray[Any]) -> Matrix:
        """Probabilities (batch, classes) of the inputs (batch, inputs), in float32 by NumPy and its BLAS."""
        y = np.asarray(x, np.float32)
        for layer in self.layers:
            y = y @ layer.weights.T
            y += layer.bias
            if layer.activation == "relu":
                np.maximum(y, 0, out=y)
        y = np.exp(y - y.max(axis=1, keepdims=True))
        probabilities: Matrix = y / y.sum(axis=1, keepdims=True)
        return probabilities
