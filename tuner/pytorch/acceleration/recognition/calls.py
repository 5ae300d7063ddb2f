"""Modules and functions of PyTorch that an operator of ours can stand in for, and with which arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from tilewright.tuner.pytorch.acceleration.recognition import product_calls
from tilewright.tuner.pytorch.acceleration.recognition.call import Call
from tilewright.tuner.pytorch.operators.attention import ATTENTION
from tilewright.tuner.pytorch.operators.convolution import CONV2D, as_sizes
from tilewright.tuner.pytorch.operators.norms import LAYER_NORM, RMS_NORM
from tilewright.tuner.pytorch.operators.softmax import SOFTMAX
from tilewright.tuner.pytorch.precision import ALLOWED

# Below, arguments have PyTorch's names, so that a call by name is bound as PyTorch binds it.


def _softmax(
    input: Tensor,  # noqa: A002
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
) -> Call | None:
    if not isinstance(dim, int) or not input.dim() or dim % input.dim() != input.dim() - 1:
        return None
    return Call(SOFTMAX, (input, dim)) if dtype in {None, input.dtype} else None


def _softmax_of_torch(input: Tensor, dim: int | None = None, dtype: torch.dtype | None = None) -> Call | None:  # noqa: A002
    return _softmax(input, dim, dtype=dtype)


def _layer_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Call | None:
    if len(normalized_shape) != 1 or weight is None or bias is None:
        return None
    return Call(LAYER_NORM, (input, weight, bias, float(eps)))


def _rms_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Call | None:
    if len(normalized_shape) != 1 or weight is None:
        return None
    return Call(RMS_NORM, (input, weight, None if eps is None else float(eps)))


def _conv2d(  # noqa: PLR0917 - PyTorch's own
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Call | None:
    sizes = as_sizes(weight, stride, padding, dilation) if input.dim() == 4 else None
    return None if sizes is None else Call(CONV2D, (input, weight, bias, *sizes, groups, "none", ALLOWED))


def _conv1d(  # noqa: PLR0917 - PyTorch's own
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Call | None:
    """`conv1d` as `conv2d` of images of one row."""
    if input.dim() != 3 or weight.dim() != 3:
        return None
    stride, padding, dilation = (one if isinstance(one, int | str) else one[0] for one in (stride, padding, dilation))
    padding = padding if isinstance(padding, str) else (0, padding)
    call = _conv2d(input[:, :, None], weight[:, :, None], bias, (1, stride), padding, (1, dilation), groups)
    if call is None:
        return None
    batch, filters, _, length = call.operator.result(*call.arguments).shape
    return call._replace(shape=(batch, filters, length))


def _attention(  # noqa: PLR0917 - PyTorch's own
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call | None:
    if dropout_p > 0.0 or query.dim() != 4:
        return None
    return Call(ATTENTION, (query, key, value, attn_mask, is_causal, scale, enable_gqa))


FUNCTIONS: Mapping[Any, Callable[..., Call | None]] = {
    F.linear: product_calls.linear,
    torch.matmul: product_calls.matmul,
    torch.Tensor.matmul: product_calls.matmul,
    torch.mm: product_calls.product(2),
    torch.Tensor.mm: product_calls.product(2),
    torch.bmm: product_calls.product(3),
    torch.Tensor.bmm: product_calls.product(3),
    torch.addmm: product_calls.sum_with_product(2),
    torch.Tensor.addmm: product_calls.sum_with_product(2),
    torch.baddbmm: product_calls.sum_with_product(3),
    torch.Tensor.baddbmm: product_calls.sum_with_product(3),
    torch.einsum: product_calls.einsum,
    F.conv1d: _conv1d,
    F.conv2d: _conv2d,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.scaled_dot_product_attention: _attention,
    torch.ops.aten.scaled_dot_product_attention: _attention,
    torch.ops.aten.scaled_dot_product_attention.default: _attention,
    F.softmax: _softmax,
    torch.softmax: _softmax_of_torch,
    torch.Tensor.softmax: _softmax_of_torch,
}
"""Makers of calls by PyTorch's function, with its arguments; None for those that no kernel computes."""


def call_of(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Call | None:
    """Our operator's call for a call of PyTorch's function; None for what no kernel computes or nobody here knows."""
    try:
        call = FUNCTIONS[function](*arguments, **named)
        if call is not None:
            call.operator.result(*call.arguments)
    except (TypeError, AttributeError, ValueError, RuntimeError):
        return None  # another argument, such as `out`, or one that PyTorch itself has the words for
    return call


NAMES: Mapping[Any, str] = {function: function.__name__.partition(".")[0] for function in FUNCTIONS}
"""How reports and locks call a function: a method and the function that does the same have one name."""


def _of_convolution(module: nn.Conv1d | nn.Conv2d, x: Tensor) -> Call | None:
    if module.padding_mode != "zeros":
        return None
    of_function = _conv1d if isinstance(module, nn.Conv1d) else _conv2d
    return of_function(x, module.weight, module.bias, module.stride, module.padding, module.dilation, module.groups)


MODULES: Mapping[type[nn.Module], Callable[[Any, Tensor], Call | None]] = {
    nn.Linear: lambda module, x: product_calls.linear(x, module.weight, module.bias),
    nn.Conv1d: _of_convolution,
    nn.Conv2d: _of_convolution,
    nn.LayerNorm: lambda module, x: _layer_norm(x, module.normalized_shape, module.weight, module.bias, module.eps),
    nn.RMSNorm: lambda module, x: _rms_norm(x, module.normalized_shape, module.weight, module.eps),
    nn.Softmax: lambda module, x: _softmax(x, module.dim),
}
"""Makers of calls by PyTorch's class, from a module of exactly that class and its input."""


def of_foreign_norm(module: Any, x: Tensor) -> Call | None:
    """The norm with the module's weight and eps; whether the module computes that is found by comparison."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return _rms_norm(x, module.weight.shape, module.weight, eps) if isinstance(eps, float) else None


def of_turned_layer(module: Any, x: Tensor) -> Call | None:
    """GPT-2's `Conv1D`, whose weight (inputs, outputs) has been turned so that it lies as that of `nn.Linear`."""
    weight = module.weight.mT
    return product_calls.linear(x, weight, module.bias) if weight.is_contiguous() else None


def foreign(module: nn.Module) -> Callable[[Any, Tensor], Call | None] | None:
    """The maker of calls for another library's module, known by the name of its class; None for other modules."""
    name, weight = type(module).__name__, module._parameters.get("weight")  # noqa: SLF001 - as in installed.py
    if name.endswith("RMSNorm") and weight is not None:
        return of_foreign_norm
    is_layer = name == "Conv1D" and weight is not None and weight.dim() == 2 and hasattr(module, "nf")
    return of_turned_layer if is_layer else None


def stand_in(module: nn.Module) -> Callable[[Any, Tensor], Call | None] | None:
    """The maker of such a module's calls; None where there is nothing for its class, or something makes its weight.

    A layer that is to be turned poses the problem that it will pose then.
    """
    known = MODULES.get(type(module))
    if known is not None and type(module) is not nn.Softmax and "weight" not in module._parameters:  # noqa: SLF001 - as above
        return None
    found = foreign(module) if known is None else known
    return _of_layer_to_turn if found is of_turned_layer else found


def _of_layer_to_turn(module: Any, x: Tensor) -> Call | None:
    weight = module.weight
    may_move = type(weight) is nn.Parameter and not weight.is_inference() and (weight.is_cuda or not weight.is_shared())
    return product_calls.linear(x, weight.mT.contiguous(), module.bias) if may_move else None
