"""conv2d as an operator, and its gradient with respect to the images, which is a convolution too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tilewright.tuner.pytorch.kept import zeros
from tilewright.tuner.pytorch.operator import Operator, check, is_transformed
from tilewright.tuner.pytorch.operators.products import ACTIVATIONS, before_activation, options
from tilewright.tuner.pytorch.precision import ALLOWED, convolutions_in_tf32
from tilewright.tuner.pytorch.tuned_call import NoKernelError, Posed

Pair = Sequence[int]


def _memory_format(x: Tensor) -> torch.memory_format:
    """The memory format of the result, which is that of the images."""
    is_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if is_last else torch.contiguous_format


def _extents(x: Tensor, w: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> list[Any]:
    return [
        (x.shape[2 + i] + 2 * padding[i] - dilation[i] * (w.shape[2 + i] - 1) - 1) // stride[i] + 1 for i in range(2)
    ]


def _empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=_memory_format(like))


def _result(x: Tensor, w: Tensor, b: Tensor | None, *rest: Any) -> Tensor:
    stride, padding, dilation, groups, activation, _accuracy = rest
    check(
        x.dim() == 4 and w.dim() == 4 and x.shape[1] == w.shape[1] * groups and w.shape[0] % groups == 0,
        "conv2d",
        lambda: f"images {tuple(x.shape)} and filters {tuple(w.shape)} do not go together with groups={groups}",
    )
    check(not x.is_complex(), "conv2d", lambda: "of complex images PyTorch alone has the gradients")
    check(x.dtype == w.dtype, "conv2d", lambda: f"the images are {x.dtype} and the filters {w.dtype}")
    check(activation in ACTIVATIONS, "conv2d", lambda: f"the activations are {', '.join(ACTIVATIONS)}")
    if b is not None:
        check(b.shape == (w.shape[0],), "conv2d", lambda: f"b is {tuple(b.shape)}, and the filters {tuple(w.shape)}")
    extents = _extents(x, w, stride, padding, dilation)
    check(all(one > 0 for one in extents), "conv2d", lambda: f"filters {tuple(w.shape)} reach over the padded images")
    return _empty(x, (x.shape[0], w.shape[0], *extents))


def _axes(x: Tensor, w: Tensor, sizes: Sequence[Pair], groups: int) -> dict[str, Any]:
    channels, filters = x.shape[1], w.shape[0]
    if groups not in {1, channels}:
        raise NoKernelError(f"the kernel has no groups but those of one channel each, not {groups} of {channels}")
    is_depthwise = groups == channels > 1
    axes = {
        "batch": x.shape[0],
        "height": x.shape[2],
        "width": x.shape[3],
        "channels": channels,
        "filters": filters // channels if is_depthwise else filters,
        "kernel_h": w.shape[2],
        "kernel_w": w.shape[3],
    }
    for name, (down, across) in zip(("stride", "padding", "dilation"), sizes, strict=True):
        axes |= {name: down, f"{name}_w": across}
    layout = "nhwc" if _memory_format(x) is torch.channels_last else "nchw"
    return axes | {"layout": layout} | ({"depthwise": True} if is_depthwise else {})


def _posed(y: Tensor, x: Tensor, w: Tensor, b: Tensor | None, *rest: Any) -> Posed:
    *sizes, groups, activation, accuracy = rest
    axes = _axes(x, w, sizes, groups)
    form, bias = _memory_format(x), zeros(w, w.shape[0]) if b is None else b
    arrays = (x.contiguous(memory_format=form), w.contiguous(memory_format=form), bias, y)
    kept = frozenset({2}) if b is None else frozenset[int]()
    return Posed(axes | options(_posed_accuracy(accuracy), x, activation), arrays, kept=kept)


def _posed_accuracy(accuracy: str) -> str:
    """The accuracy FP32 also where TF32 is allowed: our results then have all bits, and must beat PyTorch's TF32."""
    return "fp32" if accuracy == ALLOWED else accuracy


def _pytorch(x: Tensor, w: Tensor, b: Tensor | None, *rest: Any) -> Tensor:
    stride, padding, dilation, groups, activation, _accuracy = rest
    y = ACTIVATIONS[activation](torch.nn.functional.conv2d(x, w, b, stride, padding, dilation, groups))
    return y if is_transformed() else y.contiguous(memory_format=_memory_format(x))  # vmap has no such question


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, b, *ctx.rest = inputs
    ctx.save_for_backward(x, w, b, None if ctx.rest[4] in {"none", "gelu"} else output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, w, b, y = ctx.saved_tensors
    *sizes, groups, activation, accuracy = ctx.rest
    gradient = before_activation(activation, gradient, y, lambda: CONV2D.op(x, w, b, *sizes, groups, "none", accuracy))
    of_x = of_w = of_b = None
    if ctx.needs_input_grad[0]:
        of_x = CONV2D_IMAGES.op(gradient, w, list(x.shape), *sizes, groups, accuracy)
    if ctx.needs_input_grad[1]:
        of_w = _library_gradients(gradient, x, w, sizes, groups, of_images=False)
    if b is not None and ctx.needs_input_grad[2]:
        of_b = gradient.sum((0, 2, 3))
    return of_x, of_w, of_b, *([None] * 6)


def _library_gradients(
    gradient: Tensor, x: Tensor, w: Tensor, sizes: Sequence[Pair], groups: int, *, of_images: bool
) -> Tensor:
    """PyTorch's own gradient of the images or of the filters."""
    backward, is_transposed = torch.ops.aten.convolution_backward.default, False
    wanted = (of_images, not of_images, False)
    found: tuple[Tensor, ...] = backward(gradient, x, w, None, *sizes, is_transposed, [0, 0], groups, wanted)
    return found[0 if of_images else 1]


_SIZES = "int[2] stride=1, int[2] padding=0, int[2] dilation=1, int groups=1"

CONV2D = Operator(
    name="conv2d",
    schema=f'(Tensor x, Tensor w, Tensor? b=None, {_SIZES}, str activation="none", str accuracy="fp32") -> Tensor',
    kernel="conv2d",
    result=_result,
    pose=_posed,
    pytorch=_pytorch,
    in_tf32=convolutions_in_tf32,
    setup=_setup,
    backward=_backward,
    autocast=("conv2d", "lower"),
)


def _images_result(gradient: Tensor, _w: Tensor, x_shape: Sequence[int], *_rest: Any) -> Tensor:
    return _empty(gradient, x_shape)


def _images_posed(of_x: Tensor, gradient: Tensor, w: Tensor, _x_shape: Sequence[int], *rest: Any) -> Posed:
    """The problem of the images' gradient: the turned filters applied to Y's gradient."""
    stride, padding, dilation, groups, accuracy = rest
    around = [dilation[i] * (w.shape[2 + i] - 1) - padding[i] for i in range(2)]
    if list(stride) != [1, 1] or groups != 1 or min(around) < 0:
        raise NoKernelError("the gradient of images is a convolution where stride and groups are 1 only")
    form = _memory_format(gradient)
    turned = w.transpose(0, 1).flip(2, 3).contiguous(memory_format=form)
    axes = _axes(gradient, turned, (stride, around, dilation), groups)
    arrays = (gradient.contiguous(memory_format=form), turned, zeros(w, w.shape[1]), of_x)
    return Posed(axes | options(_posed_accuracy(accuracy), gradient), arrays)


def _images_pytorch(gradient: Tensor, w: Tensor, x_shape: Sequence[int], *rest: Any) -> Tensor:
    *sizes, groups, _accuracy = rest
    x = gradient.new_empty(x_shape)  # only its shape counts
    found = _library_gradients(gradient, x, w, sizes, groups, of_images=True)
    return found.contiguous(memory_format=_memory_format(gradient))


CONV2D_IMAGES = Operator(
    name="conv2d_images_gradient",
    schema=f'(Tensor gradient, Tensor w, SymInt[] x_shape, {_SIZES}, str accuracy="fp32") -> Tensor',
    kernel="conv2d",
    result=_images_result,
    pose=_images_posed,
    pytorch=_images_pytorch,
    in_tf32=convolutions_in_tf32,
)


def conv2d(
    input: Tensor,  # noqa: A002 - PyTorch's name
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: int | Pair | str = 0,
    *,
    dilation: int | Pair = 1,
    groups: int = 1,
    activation: str = "none",
    accuracy: str = ALLOWED,
) -> Tensor:
    """act(conv(x, w) + b) in one launch, `torch.nn.functional.conv2d` of images in any memory format."""
    if input.dim() == 3 and weight.dim() == 4:
        call = partial(conv2d, dilation=dilation, groups=groups, activation=activation, accuracy=accuracy)
        return call(input[None], weight, bias, stride, padding)[0]
    sizes = as_sizes(weight, stride, padding, dilation)
    if sizes is None:
        return _pytorch(input, weight, bias, stride, padding, dilation, groups, activation, accuracy)
    return CONV2D(input, weight, bias, *sizes, groups, activation, accuracy)


def as_sizes(w: Tensor, stride: Any, padding: Any, dilation: Any) -> list[list[int]] | None:
    """Stride, padding and dilation of both axes; None where "same" would not pad both sides alike."""
    stride, dilation = _pair(stride), _pair(dilation)
    if padding == "valid":
        padding = 0
    elif padding == "same":
        reach = [dilation[i] * (w.shape[2 + i] - 1) for i in range(2)]
        if stride != [1, 1] or reach[0] % 2 or reach[1] % 2:
            return None
        padding = [one // 2 for one in reach]
    return None if isinstance(padding, str) else [stride, _pair(padding), dilation]


def _pair(value: Any) -> list[int]:
    pair = [value] if isinstance(value, int) else list(value)
    return pair * 2 if len(pair) == 1 else pair
