"""conv2d's sizes: the optional axes, the output's extents, the tensors and their views, and the product inside."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial

from tilewright.kernels.errors import InvalidLayoutError
from tilewright.kernels.fields.axes import Layout, OptionalAxis, Options, Sizes
from tilewright.kernels.gemm import declaration as gemm
from tilewright.kernels.kernel import MAX_AXIS
from tilewright.kernels.problem import OptionValue, Problem
from tilewright.kernels.space import Constraint

LARGEST_STEP = 2**15 - 1  # of a stride, a padding or a dilation: places in an image are 16-bit numbers in some variants
DIRECTIONS = (("height", "h", ""), ("width", "w", "_w"))


def _one(_sizes: Sizes, _options: Options) -> int:
    return 1


def _zero(_sizes: Sizes, _options: Options) -> int:
    return 0


def _as_along_height(name: str, sizes: Sizes, _options: Options) -> int:
    return sizes[name]


def _fault(name: str, least: int, sizes: Sizes, _options: Options) -> tuple[str, int] | None:
    if least <= sizes[name] <= LARGEST_STEP:
        return None
    return f"must be a whole number from {least} to {LARGEST_STEP}", least


OPTIONAL_AXES = (
    OptionalAxis("stride", "pixels from a patch to the next", _one, partial(_fault, "stride", 1), is_place=False),
    OptionalAxis("padding", "lines of zeros around an image", _zero, partial(_fault, "padding", 0), is_place=False),
    OptionalAxis("dilation", "pixels from a tap to the next", _one, partial(_fault, "dilation", 1), is_place=False),
    *(
        OptionalAxis(
            f"{name}_w",
            f"the {name} along the width, where it is another",
            partial(_as_along_height, name),
            partial(_fault, f"{name}_w", least),
            is_place=False,
        )
        for name, least in (("stride", 1), ("padding", 0), ("dilation", 1))
    ),
)


def reach(sizes: Sizes, letter: str, suffix: str) -> int:
    """Pixels from the first to the last that a patch touches along an axis, both counted."""
    return sizes[f"dilation{suffix}"] * (sizes[f"kernel_{letter}"] - 1) + 1


def out_extents(p: Problem) -> tuple[int, int]:
    """Height and width of the output."""
    height, width = (_out_extent(p.shape, *direction) for direction in DIRECTIONS)
    return height, width


def _out_extent(sizes: Sizes, axis: str, letter: str, suffix: str) -> int:
    padded = sizes[axis] + 2 * sizes[f"padding{suffix}"]
    # At least 1 for shapes that are no problem: predictions ask about tiles of any size.
    return max(0, padded - reach(sizes, letter, suffix)) // sizes[f"stride{suffix}"] + 1


def fault(p: Problem) -> tuple[str, str] | None:
    """The axis along which a kernel is larger than the padded image, or with which there are too many pixels; why."""
    for axis, letter, suffix in DIRECTIONS:
        padded, needed = p.shape[axis] + 2 * p.shape[f"padding{suffix}"], reach(p.shape, letter, suffix)
        if needed > padded:
            return (
                f"kernel_{letter}",
                f"reaches over {needed} pixels with its dilation, and the padded {axis} is {padded}",
            )
    pixels, depth = p.shape["batch"] * math.prod(out_extents(p)), terms(p)
    if max(pixels, depth, out_channels(p)) > MAX_AXIS:
        return (
            "batch",
            f"makes {pixels} output pixels of {depth} terms and {out_channels(p)} channels; each may be {MAX_AXIS}",
        )
    return None


def is_nhwc(p: Problem) -> bool:
    """Whether the channels of a pixel are contiguous."""
    return p.options["layout"] == "nhwc"


def out_channels(p: Problem) -> int:
    """Channels of the output."""
    return p.shape["filters"] * (p.shape["channels"] if p.options["depthwise"] else 1)


def terms(p: Problem) -> int:
    """How many numbers a component adds up before the activation: products and the bias."""
    return p.shape["kernel_h"] * p.shape["kernel_w"] * (1 if p.options["depthwise"] else p.shape["channels"]) + 1


def shape_x(p: Problem) -> tuple[int, ...]:
    """The shape of X, the images."""
    return _images(p, p.shape["height"], p.shape["width"], p.shape["channels"])


def shape_y(p: Problem) -> tuple[int, ...]:
    """The shape of Y, the output."""
    return _images(p, *out_extents(p), out_channels(p))


def _images(p: Problem, height: int, width: int, channels: int) -> tuple[int, ...]:
    pixels = (height, width)
    return (p.shape["batch"], *((*pixels, channels) if is_nhwc(p) else (channels, *pixels)))


def shape_w(p: Problem) -> tuple[int, ...]:
    """The filters: those of a depthwise convolution have one channel each, and none is stated."""
    taps = (p.shape["kernel_h"], p.shape["kernel_w"])
    if p.options["depthwise"]:
        return (out_channels(p), *taps)
    return (p.shape["filters"], *((*taps, p.shape["channels"]) if is_nhwc(p) else (p.shape["channels"], *taps)))


def summed_w(p: Problem) -> int:
    """The axis of the filters that products are summed over: channels, else the taps of a column."""
    return -1 if is_nhwc(p) and not p.options["depthwise"] else 1


def is_pointwise(p: Problem) -> bool:
    """Whether a patch is one pixel and each pixel is one: with NHWC the product of two matrices as they are stored."""
    one = ("kernel_h", "kernel_w", "stride", "stride_w")
    return (
        all(p.shape[axis] == 1 for axis in one)
        and p.shape["padding"] == p.shape["padding_w"] == 0
        and not p.options["depthwise"]
    )


@lru_cache(maxsize=256)  # enumerating a space asks for the same one thousands of times
def product(p: Problem) -> Problem:
    """The gemm inside: patches, a row an output pixel, by filters, a column each. With NCHW pixels are contiguous."""
    height, width = out_extents(p)
    sizes = {"m": p.shape["batch"] * height * width, "n": p.shape["filters"], "k": terms(p) - 1}
    options = {"trans_a": not is_nhwc(p), "trans_b": True, "accuracy": p.options["accuracy"]}
    inside = gemm.KERNEL.problem(sizes, p.dtype, options)
    return replace(inside, at_launch="m") if p.at_launch else inside


def constraint_on_product(constraint: Constraint) -> Constraint:
    """The constraint, asked of the gemm that the convolution is."""
    return replace(constraint, holds=lambda c, p, d: constraint.holds(c, product(p), d))


def takes_batch(p: Problem) -> bool:
    """Whether the number of images comes with the launch."""
    return p.at_launch == "batch"


def of_pixels(m: int, n: int, k: int) -> dict[str, int]:
    """The shape of images of one pixel each whose product inside has these sizes."""
    return {"batch": m, "height": 1, "width": 1, "channels": k, "filters": n, "kernel_h": 1, "kernel_w": 1}


SHAPES = {"X": shape_x, "W": shape_w, "Y": shape_y}
CONTIGUOUS = "Make it contiguous, in torch for nhwc by .contiguous(memory_format=torch.channels_last)"


def posed_by(problem: Problem, layouts: Mapping[str, Layout]) -> tuple[dict[str, int], dict[str, OptionValue]]:
    """Shape and options of the problem that these arrays pose to a launcher of `problem`.

    Arrays may have their axes in the order of memory, or in that of PyTorch, whose tensors in the format channels_last
    name the channels second all the same. The layout is that of the arrays. Raises InvalidLayoutError.
    """
    own = str(problem.options["layout"])
    for word in (own, "nchw" if own == "nhwc" else "nhwc"):
        options = dict(problem.options) | {"layout": word}
        candidate = replace(problem, option_items=tuple(options.items()))
        if all(_fits(name, layout, candidate) for name, layout in layouts.items()):
            return problem.stated_shape, options
    name = next(name for name, layout in layouts.items() if not _fits(name, layout, problem))
    layout = layouts[name]
    expected = _expected(name, problem)
    reason = f"has the shape {layout.shape} and strides {layout.strides} (in elements), the problem needs {expected}"
    raise InvalidLayoutError(name, f"{reason}, dense and in one layout with the other arrays", CONTIGUOUS)


def _expected(name: str, problem: Problem) -> tuple[int, ...]:
    return SHAPES[name](problem) if name in SHAPES else (shape_y(problem)[-1 if _is_nhwc(problem) else 1],)


def _is_nhwc(problem: Problem) -> bool:
    return problem.options["layout"] == "nhwc"


def _fits(name: str, layout: Layout, problem: Problem) -> bool:
    """Whether the array holds what the problem says, in the order of memory or in PyTorch's."""
    expected = _expected(name, problem)
    if layout.shape == expected and _is_dense(layout):
        return True
    if name == "W" and problem.options["depthwise"]:  # PyTorch's filters have one channel
        rows, *taps = expected
        alike = Layout((rows, *layout.shape[2:]), (layout.strides[0], *layout.strides[2:]))
        return layout.shape == (rows, 1, *taps) and _is_dense(alike)
    if not _is_nhwc(problem) or len(layout.shape) != 4:
        return False
    order = (0, 2, 3, 1)
    in_memory = Layout(tuple(layout.shape[i] for i in order), tuple(layout.strides[i] for i in order))
    return in_memory.shape == expected and _is_dense(in_memory)


def _is_dense(layout: Layout) -> bool:
    """Row-major without gaps; a stride along an axis of one element says nothing."""
    dense = Layout.dense(layout.shape).strides
    return all(n == 1 or have == want for n, have, want in zip(layout.shape, layout.strides, dense, strict=True))
