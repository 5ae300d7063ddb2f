"""The problems that shipped records are of: layers of public models, a series a kernel, dtype and options."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from predictions.shapes import SEED, Shape

from tilewright.kernels.problem import OptionValue

LAYERS = (
    *((512, 512), (2048, 512), (512, 2048), (768, 768), (2304, 768), (3072, 768), (768, 3072)),
    *((1024, 1024), (3072, 1024), (4096, 1024), (1024, 4096), (1280, 1280), (5120, 1280), (1280, 5120)),
    *((1536, 1536), (8960, 1536), (1536, 8960), (2048, 2048), (5632, 2048), (2560, 2560), (10240, 2560)),
    *((3584, 3584), (18944, 3584), (3584, 18944), (4096, 4096), (6144, 4096), (14336, 4096), (4096, 14336)),
    *((5120, 5120), (13824, 5120), (8192, 8192), (28672, 8192), (8192, 28672)),
    *((384, 96), (96, 384), (768, 192), (192, 768), (1536, 384), (384, 1536), (384, 384), (192, 192)),
)
"""n and k: BERT, ViT, Whisper, GPT-2, T5, SDXL, Qwen2, TinyLlama, Phi-2, Llama-2 and 3, ConvNeXt, DeiT, Swin."""

BASE_LAYERS = 7
"""The first of these: BERT, ViT, GPT-2, T5 and Whisper in their base sizes."""

NARROW, MOST_TOKENS, MOST_PIXELS = 512, 8192, 65536
"""Where n or k is below NARROW a row is a pixel, of which there are up to MOST_PIXELS; else a token."""

WIDTHS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1280, 1536, 2048, 3584, 4096, 5120, 8192)
"""Of what is normalised."""

SCORES = (49, 77, 128, 197, 256, 512, 577, 1024, 1500, 2048, 4096, 32000, 50257, 128256)
"""Columns of softmax: keys and vocabularies."""

MOST_ELEMENTS = 1 << 26

HEADS = ((8, 64), (12, 64), (16, 64), (20, 64), (12, 32), (32, 128), (16, 80), (8, 40))
"""Of attention, with their depth."""

TOKENS = (64, 77, 128, 197, 256, 384, 512, 577, 1024, 1500, 2048)
MOST_SCORES = 1 << 28

DEPTHWISE = (
    *((96, 56, 7, 1), (192, 28, 7, 1), (384, 14, 7, 1), (768, 7, 7, 1), (128, 56, 7, 1), (1024, 7, 7, 1)),  # ConvNeXt
    *((32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (384, 14, 3, 1), (960, 7, 3, 1)),  # MobileNetV2
    *((240, 28, 5, 2), (672, 14, 5, 1), (1152, 7, 5, 1)),  # EfficientNet
)
"""Channels, extent, width of the filter, stride."""

IMAGES = (
    *((3, 224, 96, 4, 4, 0), (3, 224, 768, 16, 16, 0), (3, 224, 64, 7, 2, 3), (3, 224, 32, 3, 2, 1)),  # first ones
    *((96, 56, 192, 2, 2, 0), (192, 28, 384, 2, 2, 0), (384, 14, 768, 2, 2, 0)),  # ConvNeXt's between stages
    *((64, 56, 64, 3, 1, 1), (128, 28, 128, 3, 1, 1), (256, 14, 256, 3, 1, 1), (512, 7, 512, 3, 1, 1)),  # ResNet
    *(
        (64, 56, 256, 1, 1, 0),
        (256, 56, 128, 1, 1, 0),
        (512, 28, 256, 1, 1, 0),
        (1024, 14, 512, 1, 1, 0),
        (512, 7, 2048, 1, 1, 0),
    ),
    *((320, 64, 320, 3, 1, 1), (640, 32, 640, 3, 1, 1)),  # SDXL
)
"""Channels, extent, filters, width of the filter, stride, padding."""

FIRST_IMAGES = 4
"""The first of these take colours."""

MOST_TERMS = 1 << 33
"""Of a convolution: its float64 reference on the host takes as long as the search."""


class Series(NamedTuple):
    """So many problems, each searched for so long. `draw`: a shape by a random generator."""

    kernel: str
    dtype: str
    draw: Callable[[random.Random], Shape]
    count: int
    seconds: float
    options: Mapping[str, OptionValue] = {}
    of: str = ""  # which models, where another series has the rest

    @property
    def name(self) -> str:
        """For a file."""
        options = (f"{name}={value}" for name, value in self.options.items())
        return "_".join([self.kernel, self.dtype, *filter(None, [self.of]), *options])

    def shapes(self) -> list[Shape]:
        """Different ones, the same at every call."""
        generator = random.Random(SEED)
        return list(_different(lambda: self.draw(generator), self.count))


def _different(draw: Callable[[], Shape], count: int) -> Iterator[Shape]:
    seen: set[tuple[int, ...]] = set()
    while len(seen) < count:
        shape = draw()
        if (key := tuple(shape.values())) not in seen:
            seen.add(key)
            yield shape


def _between(generator: random.Random, least: int, most: int) -> int:
    return round(2 ** generator.uniform(math.log2(least), math.log2(most)))


def layer(generator: random.Random) -> Shape:
    """A product of a layer."""
    n, k = generator.choice(LAYERS)
    m = _between(generator, *((197, MOST_PIXELS) if min(n, k) < NARROW else (1, MOST_TOKENS)))
    return {"m": m, "n": n, "k": k}


def base_layer(generator: random.Random) -> Shape:
    """A product of a model of the size that most programs use."""
    n, k = generator.choice(LAYERS[:BASE_LAYERS])
    return {"m": _between(generator, 64, MOST_TOKENS), "n": n, "k": k}


def pixel_layer(generator: random.Random) -> Shape:
    """A product of a model whose rows are pixels: of a stage whose images have as many as its width allows."""
    n, k = generator.choice(LAYERS[-8:])
    extent = 56 * 96 // min(n, k)
    return {"m": extent**2 * 2 ** generator.randint(0, 5), "n": n, "k": k}


def first_image(generator: random.Random) -> Shape:
    """A model's first convolution, of colours."""
    return _image(generator, generator.choice(IMAGES[:FIRST_IMAGES]))


def rows(widths: tuple[int, ...]) -> Callable[[random.Random], Shape]:
    """Rows of one of these widths."""

    def draw(generator: random.Random) -> Shape:
        n = generator.choice(widths)
        return {"m": _between(generator, 1, min(MOST_PIXELS, MOST_ELEMENTS // n)), "n": n}

    return draw


def attention(generator: random.Random) -> Shape:
    """Heads of a batch, of as many queries as keys."""
    while True:
        (heads, depth), tokens = generator.choice(HEADS), generator.choice(TOKENS)
        batch = 2 ** generator.randint(0, 5)
        if batch * heads * tokens**2 <= MOST_SCORES:
            return {"batch": batch, "heads": heads, "queries": tokens, "keys": tokens, "depth": depth}


def depthwise(generator: random.Random) -> Shape:
    """A depthwise layer."""
    channels, extent, width, stride = generator.choice(DEPTHWISE)
    return _image(generator, (channels, extent, 1, width, stride, width // 2))


def image(generator: random.Random) -> Shape:
    """Another convolution of images."""
    return _image(generator, generator.choice(IMAGES))


def _image(generator: random.Random, facts: tuple[int, int, int, int, int, int]) -> Shape:
    channels, extent, filters, width, stride, padding = facts
    terms = extent**2 * channels * filters * width**2 // stride**2
    shape = {"batch": 2 ** generator.randint(0, max(0, min(5, int(math.log2(MOST_TERMS / terms)))))}
    shape |= {"height": extent, "width": extent, "channels": channels, "filters": filters}
    return shape | {"kernel_h": width, "kernel_w": width, "stride": stride, "padding": padding}


SERIES = (
    Series("attention", "float32", attention, 14, 3.5, {"heads_inside": True}),
    Series("attention", "float32", attention, 10, 3.5, {"mask": "causal", "heads_inside": True}),
    Series("attention", "float32", attention, 6, 3.5, {"mask": "additive", "heads_inside": True}),
    Series("linear", "float32", layer, 44, 3.0),
    Series("linear", "float32", base_layer, 18, 2.5, of="base"),
    Series("linear", "float32", pixel_layer, 20, 2.5, of="pixels"),
    Series("linear", "bfloat16", layer, 44, 2.5),
    Series("layer_norm", "float32", rows(WIDTHS), 16, 1.2),
    Series("layer_norm", "bfloat16", rows(WIDTHS), 12, 1.2),
    Series("rms_norm", "float32", rows(WIDTHS), 12, 1.2),
    Series("rms_norm", "bfloat16", rows(WIDTHS), 12, 1.2),
    Series("softmax", "float32", rows(SCORES), 12, 1.2),
    Series("softmax", "bfloat16", rows(SCORES), 8, 1.2),
    Series("conv2d", "float32", depthwise, 14, 2.5, {"depthwise": True}),
    Series("conv2d", "float32", image, 16, 3.0),
    Series("conv2d", "float32", image, 16, 3.0, {"layout": "nchw"}),
    Series("conv2d", "float32", first_image, 8, 3.0, {"layout": "nchw"}, of="first"),
    Series("linear_gated", "bfloat16", layer, 12, 2.5),
)
"""What `make records` measures, in this order."""
