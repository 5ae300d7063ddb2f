"""Random convolutions, and those at the edges of what variants do."""

from __future__ import annotations

import math
import random

from tilewright.kernels.conv2d.shape import shape_y
from tilewright.kernels.problem import Problem

EXTENTS, CHANNELS = (3, 40), (1, 160)
STEP = 32
"""Channels of a step of `tensor3xfp16_sm90`; half of the channels and filters divide by it."""

KERNELS = ((1, 1), (1, 1), (3, 3), (3, 3), (2, 2), (1, 7), (5, 3), (7, 7))


MOST_OUTPUTS = 1 << 21
"""Seven references of as many numbers take the host some seconds; depthwise, there may be 160 outputs a channel."""


def is_quick(problem: Problem) -> bool:
    """Whether its references take no longer than compiling does."""
    return math.prod(shape_y(problem)) <= MOST_OUTPUTS


def random_convolution(generator: random.Random) -> dict[str, int]:
    """Some images, kernel and steps. Not all are problems: a kernel may be larger than the images."""
    kernel_h, kernel_w = generator.choice(KERNELS)
    shape = {
        "batch": generator.choice((1, 1, 2, 5)),
        "height": generator.randint(*EXTENTS),
        "width": generator.randint(*EXTENTS),
        "channels": _channels(generator),
        "filters": _channels(generator),
        "kernel_h": kernel_h,
        "kernel_w": kernel_w,
    }
    if kernel_h == kernel_w == 1 and generator.random() < 0.5:
        return shape  # a product of matrices
    steps = {"stride": (1, 1, 2, 3), "padding": (0, 1, kernel_h // 2, 4), "dilation": (1, 1, 1, 2)}
    shape |= {name: generator.choice(values) for name, values in steps.items()}
    if generator.random() < 0.3:
        shape |= {f"{name}_w": generator.choice(values) for name, values in steps.items()}
    return shape


def edge_convolutions() -> list[dict[str, int]]:
    """One pixel, one channel, outputs that are all padding but for one tap, a line of pixels, a tile and one more."""
    one = dict.fromkeys(("batch", "height", "width", "channels", "filters", "kernel_h", "kernel_w"), 1)
    square = {"kernel_h": 3, "kernel_w": 3, "padding": 1}
    return [
        one,
        one | square,
        one | square | {"channels": 64, "filters": 64, "padding": 4},
        one | {"width": 700, "kernel_w": 5, "channels": 32, "filters": 129},
        one | square | {"batch": 2, "height": 8, "width": 8, "channels": 96, "filters": 65},
        one | square | {"batch": 129, "channels": 64, "filters": 127},
        one | {"height": 129, "width": 127, "channels": 128, "filters": 128},
        one | square | {"height": 40, "width": 3, "channels": 33, "filters": 64, "stride": 3, "stride_w": 1},
    ]


def _channels(generator: random.Random) -> int:
    count = generator.randint(*CHANNELS)
    return -(-count // STEP) * STEP if generator.random() < 0.5 else count
