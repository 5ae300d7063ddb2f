"""The lines that `tensor3xfp16_sm90` packs images as, and what it takes of a device."""

import itertools
import random

import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.conv2d.shape import out_extents
from tilewright.kernels.conv2d.tensor_fp16_sm90_space import (
    RING_BYTES,
    TENSOR3XFP16_SM90,
    axes,
    line_tiles,
    workspace_bytes,
)
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.own import limits_of

CONV2D = catalogue().get("conv2d")
HOPPER = limits_of((9, 0))
IMAGE = {"batch": 2, "height": 14, "width": 14, "channels": 64, "filters": 128, "kernel_h": 3, "kernel_w": 3}


def drawn(count):
    """Random convolutions of 32 channels."""
    generator = random.Random(4)
    while count:
        shape = {axis: generator.randint(1, 12) for axis in ("height", "width")} | {"batch": generator.randint(1, 3)}
        shape |= {"channels": 32, "filters": 64} | {f"kernel_{axis}": generator.randint(1, 5) for axis in "hw"}
        for name, suffix in itertools.product(("stride", "padding", "dilation"), ("", "_w")):
            shape[name + suffix] = generator.randint(name != "padding", 3)
        try:
            yield CONV2D.problem(shape)
        except InvalidProblemError:
            continue
        count -= 1


def packed(problem):
    """For each set of lines the number of the pixel on each, from 1; 0 for zeros."""
    down, across = axes(problem)
    lines = np.zeros((down.phases, across.phases, problem.shape["batch"] * down.pitch * across.pitch + 4096), int)
    shape = problem.shape
    pixels = itertools.product(*(range(shape[axis]) for axis in ("batch", "height", "width")))
    height, width = out_extents(problem)
    for number, (image, y, x) in enumerate(pixels, 1):
        row, phase_h = divmod(y + shape["padding"], shape["stride"])
        column, phase_w = divmod(x + shape["padding_w"], shape["stride_w"])
        touched = row < height + down.farthest and column < width + across.farthest
        if touched and phase_h < down.phases and phase_w < across.phases:
            line = (image * down.pitch + row) * across.pitch + column
            assert lines[phase_h, phase_w, line] == 0
            lines[phase_h, phase_w, line] = number
    return lines


@pytest.mark.parametrize("problem", list(drawn(40)), ids=str)
def test_a_tap_is_the_same_lines_further_on(problem):
    """conv/lines.cuh relies on it: the line of an output, moved by a tap's distance, is the pixel under the tap."""
    shape, (down, across), lines = problem.shape, axes(problem), packed(problem)
    outputs = itertools.product(range(shape["batch"]), *map(range, out_extents(problem)))
    taps = list(itertools.product(range(shape["kernel_h"]), range(shape["kernel_w"])))
    for (image, out_y, out_x), (tap_y, tap_x) in itertools.product(outputs, taps):
        rows, phase_h = divmod(tap_y * shape["dilation"], shape["stride"])
        columns, phase_w = divmod(tap_x * shape["dilation_w"], shape["stride_w"])
        line = (image * down.pitch + out_y) * across.pitch + out_x
        y = out_y * shape["stride"] + tap_y * shape["dilation"] - shape["padding"]
        x = out_x * shape["stride_w"] + tap_x * shape["dilation_w"] - shape["padding_w"]
        on_image = 0 <= y < shape["height"] and 0 <= x < shape["width"]
        expected = (image * shape["height"] + y) * shape["width"] + x + 1 if on_image else 0
        assert lines[phase_h, phase_w, line + rows * across.pitch + columns] == expected


def test_rows_share_the_zeros_between_them():
    problem = CONV2D.problem(IMAGE | {"padding": 1})
    down, across = axes(problem)
    assert (down.pitch, across.pitch) == (15, 15)
    assert line_tiles(problem) == -(-2 * 15 * 15 // 128)


def test_the_workspace_holds_three_parts_of_lines_and_filters():
    problem = CONV2D.problem(IMAGE | {"padding": 1})
    (configuration, *_) = CONV2D.space(problem, HOPPER, only=["tensor3xfp16_sm90"]).feasible
    lines = 4 * 128 + 2 * 15 + 2 + 8  # whole tiles, the farthest tap, what a load has beyond a tile
    filters = -(-128 // configuration.values.TILE_N) * configuration.values.TILE_N
    needed = 3 * 2 * 64 * (lines + 9 * filters)
    assert workspace_bytes(configuration.values, problem) == 256 + 4 * 128 + needed


@pytest.mark.parametrize(
    ("moves", "options"),
    [
        ({"channels": 48}, {}),  # a step would be of two taps
        ({"channels": 32, "kernel_h": 1, "kernel_w": 1}, {}),  # too few terms for what tensor cores cut off
        ({}, {"accuracy": "fp32-fma"}),
        ({}, {"depthwise": True}),
    ],
)
def test_what_it_does_not_compute(moves, options):
    assert not TENSOR3XFP16_SM90.supports(CONV2D.problem(IMAGE | moves, "float32", options))


def test_its_rings_fit_a_multiprocessor():
    problem = CONV2D.problem(IMAGE)
    for configuration in CONV2D.space(problem, HOPPER, only=["tensor3xfp16_sm90"]).feasible:
        shared_bytes = TENSOR3XFP16_SM90.shared_bytes(configuration.values, problem)
        assert RING_BYTES < shared_bytes <= HOPPER.max_shared_bytes
