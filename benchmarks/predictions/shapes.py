"""Random shapes: sizes of all kinds, and layers of networks."""

from __future__ import annotations

import math
import random

from tilewright.kernels.kernel import Kernel

SEED = 20260
SMALLEST, LARGEST = 32, 4096
MULTIPLES = (1, 8, 64)
"""A size is rounded to a multiple of one of these, by chance: most real sizes are round, some are not."""

LEAST_FEATURES = 512
"""Of a language model's layer, which has one row a token: from 1, where tokens come one by one, to MOST_TOKENS."""

MOST_TOKENS = 2048

EXTENTS, MOST_CHANNELS = (7, 112), 1024
MOST_TERMS = 1 << 32
"""Of a convolution: as many multiplications take its reference on the host about a tenth of a second."""

Shape = dict[str, int]


def random_shapes(kernel: Kernel, count: int, largest: int = LARGEST, seed: int = SEED) -> list[Shape]:
    """So many different shapes, the same for the same seed; of conv2d layers such as networks have."""
    generator = random.Random(seed)
    shapes: list[Shape] = []
    while len(shapes) < count:
        if kernel.name == "conv2d":
            shape = _random_layer(generator, min(largest, MOST_CHANNELS))
        else:
            shape = {axis: _random_size(generator, largest) for axis in kernel.axes}
        if shape not in shapes:
            shapes.append(shape)
    return shapes


def random_layers(count: int, largest: int, seed: int = SEED) -> list[Shape]:
    """So many different products of language models' layers, the same for the same seed; one in four is not aligned."""
    generator = random.Random(seed)
    shapes: list[Shape] = []
    while len(shapes) < count:
        multiple = generator.choice((64, 64, 8, 1))
        n, k = (2 ** generator.uniform(math.log2(LEAST_FEATURES), math.log2(largest)) for _ in range(2))
        m = round(2 ** generator.uniform(0, math.log2(MOST_TOKENS)))
        shape = {"m": m, "n": round(n / multiple) * multiple, "k": round(k / multiple) * multiple}
        if shape not in shapes:
            shapes.append(shape)
    return shapes


MODEL_LAYERS = (
    *((768, 768), (3072, 768), (768, 3072), (1024, 1024), (4096, 1024), (1024, 4096)),  # BERT, ViT, Whisper
    *((4096, 4096), (1024, 4096), (6144, 4096), (14336, 4096), (4096, 14336), (28672, 4096)),  # Llama-3-8B, Mistral-7B
    *((3584, 3584), (4608, 3584), (18944, 3584), (3584, 18944), (1536, 8960), (8960, 1536)),  # Qwen2-7B and -1.5B
    *((5120, 5120), (8192, 8192), (28672, 8192), (8192, 28672)),  # Llama-2-13B, Llama-3-70B
)
"""n and k of public models' layers."""

MOST_MODEL_TOKENS = 4096


def model_layers(count: int, seed: int = SEED) -> list[Shape]:
    """So many layers of public models at any number of rows, the same for the same seed."""
    generator = random.Random(seed)
    layers = [generator.choice(MODEL_LAYERS) for _ in range(count)]
    rows = (round(2 ** generator.uniform(0, math.log2(MOST_MODEL_TOKENS))) for _ in layers)
    return [{"m": m, "n": n, "k": k} for m, (n, k) in zip(rows, layers, strict=True)]


def _random_size(generator: random.Random, largest: int) -> int:
    size = 2 ** generator.uniform(math.log2(SMALLEST), math.log2(largest))
    multiple = generator.choice(MULTIPLES)
    return max(1, round(size / multiple)) * multiple


def _random_layer(generator: random.Random, largest: int) -> Shape:
    """Up to 32 square images of at most MOST_TERMS products, 1x1 or 3x3, convolved at each pixel or every other."""
    while True:
        extent, kernel = round(2 ** generator.uniform(*map(math.log2, EXTENTS))), generator.choice((1, 3))
        shape = {
            "batch": round(2 ** generator.uniform(0, 5)),
            "height": extent,
            "width": extent,
            "channels": _random_size(generator, largest),
            "filters": _random_size(generator, largest),
            "kernel_h": kernel,
            "kernel_w": kernel,
            "stride": generator.choice((1, 1, 1, 2)),
            "padding": kernel // 2,
        }
        if math.prod(shape[axis] for axis in shape if axis not in ("stride", "padding")) <= MOST_TERMS:
            return shape
