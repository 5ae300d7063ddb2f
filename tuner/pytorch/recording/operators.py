"""Calls of PyTorch's own operators as problems of kernels, by the declarations of our operators.

An operator that no kernel computes is recorded by name, so that its share of the time is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.errors import KernelError
from tilewright.kernels.problem import Problem
from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch.operator import OPERATORS, Operator
from tilewright.tuner.pytorch.operators.attention import ATTENTION
from tilewright.tuner.pytorch.operators.convolution import CONV2D
from tilewright.tuner.pytorch.operators.norms import LAYER_NORM, RMS_NORM
from tilewright.tuner.pytorch.operators.products import GEMM, GEMM_INTO, GEMV, LINEAR
from tilewright.tuner.pytorch.operators.softmax import SOFTMAX
from tilewright.tuner.pytorch.precision import ALLOWED
from tilewright.tuner.pytorch.tuned_call import NoKernelError, Posed
from tilewright.tuner.runtime.arrays.arguments import laid_out
from tilewright.tuner.runtime.arrays.views import READERS

aten = torch.ops.aten

Call = tuple[Operator, Sequence[Any]]
"""An operator of ours and the arguments with which it computes the same."""


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Call:
    if c.dim() == 1 and beta == alpha == 1 and b.mT.is_contiguous():
        return LINEAR, (a, b.mT, c, "none", ALLOWED)
    if c.dim() == 1:
        return GEMM, (a, b, float(alpha), ALLOWED)
    return GEMM_INTO, (c, a, b, float(alpha), float(beta), ALLOWED)


def _convolution(x: Tensor, w: Tensor, b: Tensor | None, *rest: Any) -> Call:
    stride, padding, dilation, is_transposed, _output_padding, groups = rest
    if is_transposed or x.dim() not in {3, 4}:
        raise NoKernelError("the kernel computes convolutions of one and two dimensions, not transposed ones")
    if x.dim() == 3:  # as images of one row
        [stride], [padding], [dilation] = stride, padding, dilation
        x, w = x[:, :, None], w[:, :, None]
        stride, padding, dilation = [1, stride], [0, padding], [1, dilation]
    return CONV2D, (x, w, b, stride, padding, dilation, groups, "none", ALLOWED)


def _layer_norm(x: Tensor, shape: Sequence[int], w: Tensor | None, b: Tensor | None, eps: float) -> Call:
    if len(shape) != 1 or w is None or b is None:
        raise NoKernelError("the kernel normalises the last dimension, with a weight and a bias")
    return LAYER_NORM, (x, w, b, eps)


def _rms_norm(x: Tensor, shape: Sequence[int], w: Tensor | None, eps: float | None = None) -> Call:
    if len(shape) != 1 or w is None:
        raise NoKernelError("the kernel normalises the last dimension, with a weight")
    return RMS_NORM, (x, w, torch.finfo(x.dtype).eps if eps is None else eps)


def _attention(
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_others: Any,
) -> Call:
    if dropout_p > 0.0:
        raise NoKernelError("the kernel has no dropout")
    return ATTENTION, (query, key, value, attn_bias if attn_mask is None else attn_mask, is_causal, scale, False)


ATTENTIONS = frozenset(
    {
        aten._scaled_dot_product_efficient_attention,  # noqa: SLF001 - the names that PyTorch calls them by
        aten._scaled_dot_product_flash_attention,  # noqa: SLF001
        aten._scaled_dot_product_cudnn_attention,  # noqa: SLF001
        aten._scaled_dot_product_flash_attention_for_cpu,  # noqa: SLF001
    }
)
"""Backends of attention, whose arguments have the same names in different places."""

CALLS: Mapping[Any, Callable[..., Call]] = {
    aten.mm: lambda a, b: (GEMM, (a, b, 1.0, ALLOWED)),
    aten.bmm: lambda a, b: (GEMM, (a, b, 1.0, ALLOWED)),
    aten.addmm: _addmm,
    aten.baddbmm: _addmm,
    aten.linear: lambda x, w, b=None: (LINEAR, (x, w, b, "none", ALLOWED)),
    aten.mv: lambda a, x: (GEMV, (a, x, 1.0)),
    aten.addmv: lambda _y, a, x, **_numbers: (GEMV, (a, x, 1.0)),
    aten.convolution: _convolution,
    aten.native_layer_norm: _layer_norm,
    aten._fused_rms_norm: _rms_norm,  # noqa: SLF001 - the name that PyTorch calls it by
    aten._softmax: lambda x, dim, _to_float: (SOFTMAX, (x, dim)),  # noqa: SLF001 - the name that PyTorch calls it by
}

STEPS = "its steps wait for one another, and PyTorch's own computes them in one call"
QUANTISED = "its weights are quantised, and its library has kernels for them"
NONE = "no kernel computes it"

OTHERS: Mapping[str, str] = {
    "_cudnn_rnn": STEPS,
    "_thnn_fused_gru_cell": STEPS,
    "_thnn_fused_lstm_cell": STEPS,
    "gru": STEPS,
    "lstm": STEPS,
    "mkldnn_rnn_layer": STEPS,
    "_native_multi_head_attention": "it is one operator in inference; nn.Linear and attention alone can be replaced",
    "_grouped_mm": "the kernels multiply batches of one shape, not groups of different ones",
    "_int_mm": QUANTISED,
    "_scaled_mm": QUANTISED,
    "_weight_int4pack_mm": QUANTISED,
    "_weight_int8pack_mm": QUANTISED,
    "_log_softmax": NONE,
    "_softmax_backward_data": NONE,
    "convolution_backward": NONE,
    "cudnn_batch_norm": NONE,
    "native_batch_norm": NONE,
    "native_group_norm": NONE,
    "native_layer_norm_backward": NONE,
}
"""Operators of aten that are recorded though no kernel computes them, and why."""


def is_recorded(function: Any) -> bool:
    """Whether calls of this overload are recorded."""
    packet = function.overloadpacket
    return packet in CALLS or packet in ATTENTIONS or function.namespace == "tilewright" or packet.__name__ in OTHERS


def problem_of(function: Any, arguments: Sequence[Any], named: Mapping[str, Any], result: Any) -> Problem:
    """The problem of a call, as its arrays lie; raises NoKernelError, KernelError or TunerError where there is none."""
    packet = function.overloadpacket
    given: Sequence[Any]
    declared = function._schema.arguments  # noqa: SLF001 - as in operator.py
    if function.namespace == "tilewright":
        defaults = [one.default_value for one in declared[len(arguments) :]]
        operator, given = OPERATORS[packet.__name__], (*arguments, *defaults)
    elif packet in ATTENTIONS:
        operator, given = _attention(**dict(zip((one.name for one in declared), arguments, strict=False)), **named)
    elif packet in CALLS:
        operator, given = CALLS[packet](*arguments, **named)
    else:
        raise NoKernelError(OTHERS[packet.__name__])
    if isinstance(result, tuple):  # of PyTorch's norms the first of several, of ours all
        result = result if function.namespace == "tilewright" else result[0]
    output = given[0] if result is None else result
    if operator is CONV2D and output.dim() == 3:
        output = output[:, :, None]
    return posed_problem(operator.kernel, operator.pose(output, *given), given[0].dtype)


def posed_problem(name: str, posed: Posed, dtype: torch.dtype) -> Problem:
    """The problem of the posed call, as its arrays lie."""
    kernel = catalogue().get(name)
    axes = {axis: size for axis, size in posed.named.items() if axis in kernel.axis_names}
    options = {option: value for option, value in posed.named.items() if option not in axes}
    problem = kernel.problem(axes, str(dtype).removeprefix("torch."), options)
    readers = [READERS[type(array)] for array in posed.arrays]
    layouts = [reader.layout(reader.read(array)[1]) for reader, array in zip(readers, posed.arrays, strict=True)]
    return laid_out(kernel, problem, layouts)


REFUSALS = (KernelError, TunerError, RuntimeError, TypeError)
"""What `problem_of` raises where there is none; RuntimeError is PyTorch's, for tensors without memory."""
