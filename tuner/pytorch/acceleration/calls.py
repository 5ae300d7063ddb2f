"""Which modules and functions of PyTorch an operator of ours can stand in for, and with which arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from tilewright.tuner.pytorch.attention import ATTENTION
from tilewright.tuner.pytorch.convolution import CONV2D, as_sizes
from tilewright.tuner.pytorch.norms import LAYER_NORM, RMS_NORM
from tilewright.tuner.pytorch.operator import Operator, is_known
from tilewright.tuner.pytorch.products import GEMM, LINEAR
from tilewright.tuner.pytorch.softmax import SOFTMAX


class Call(NamedTuple):
    """An operator of ours with its arguments. `shape`: the result's, where it is another view of the operator's."""

    operator: Operator
    arguments: tuple[Any, ...]
    shape: tuple[int, ...] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether no tensor is of a kind of its own, whose owner would not know our operator."""
        return all(is_known(one) for one in self.arguments if isinstance(one, Tensor))

    def run(self) -> Any:
        """The result."""
        result = self.operator(*self.arguments)
        return result if self.shape is None else result.reshape(self.shape)


def entry(argument: Any) -> Hashable:
    """What of an argument decides whether a call is one that was accepted; no GPU's number, as ranks have each one.

    Beside device, type, shape and strides of a tensor it is the precision of autocast.
    """
    if isinstance(argument, Tensor):
        if argument.layout is not torch.strided:
            return str(argument.layout)
        kind = argument.device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return kind, argument.dtype, tuple(argument.shape), tuple(argument.stride()), autocast
    return tuple(argument) if isinstance(argument, list) else argument


def entries(call: Call) -> tuple[Hashable, ...]:
    """That of every argument, with the result's shape.

    Attention's tensors count without their strides: layers that are joined hand it views of one product.
    """
    if call.operator is ATTENTION:
        return *[_without_strides(one) for one in call.arguments], call.shape
    return *[entry(one) for one in call.arguments], call.shape


def _without_strides(argument: Any) -> Hashable:
    found = entry(argument)
    if not isinstance(argument, Tensor) or not isinstance(found, tuple):
        return found
    kind, dtype, shape, _, autocast = found
    return kind, dtype, shape, autocast


# Below, arguments have PyTorch's names, so that a call by name is bound as PyTorch binds it.


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call | None:  # noqa: A002
    return Call(LINEAR, (input, weight, bias, "none", "fp32")) if weight.dim() == 2 else None


def _matmul(input: Tensor, other: Tensor) -> Call | None:  # noqa: A002
    """Matrices, or as many of them on either side; batches of several dimensions become one."""
    a, b = input, other
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or min(a.dim(), b.dim()) < 2:
        return None
    if a.dim() == b.dim() == 2:
        return Call(GEMM, (a, b, 1.0, "fp32"))
    if a.shape[:-2] != b.shape[:-2]:
        return None
    if a.dim() == 3:
        return Call(GEMM, (a, b, 1.0, "fp32"))
    shape = (*a.shape[:-1], b.shape[-1])
    return Call(GEMM, (a.flatten(0, -3), b.flatten(0, -3), 1.0, "fp32"), tuple(shape))


def _product(dimensions: int) -> Callable[..., Call | None]:
    """`mm` or `bmm`, which take just so many dimensions."""

    def product(input: Tensor, mat2: Tensor) -> Call | None:  # noqa: A002
        return _matmul(input, mat2) if input.dim() == mat2.dim() == dimensions else None

    return product


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
    return None if sizes is None else Call(CONV2D, (input, weight, bias, *sizes, groups, "none", "fp32"))


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
    F.linear: _linear,
    torch.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.mm: _product(2),
    torch.Tensor.mm: _product(2),
    torch.bmm: _product(3),
    torch.Tensor.bmm: _product(3),
    F.conv2d: _conv2d,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.scaled_dot_product_attention: _attention,
    F.softmax: _softmax,
    torch.softmax: _softmax_of_torch,
    torch.Tensor.softmax: _softmax_of_torch,
}
"""By PyTorch's function, with its arguments; None for those that no kernel computes."""


def call_of(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Call | None:
    """Our operator's call for a call of PyTorch's function; None for what no kernel computes or nobody here knows."""
    try:
        call = FUNCTIONS[function](*arguments, **named)
        if call is not None:
            call.operator.result(*call.arguments)
    except (TypeError, AttributeError, ValueError, RuntimeError):
        return None  # another argument, such as `out`, or one that PyTorch itself has the words for
    return call


NAMES: Mapping[Any, str] = {function: function.__name__ for function in FUNCTIONS}
"""How reports and locks call a function: a method and the function that does the same have one name."""


def _of_convolution(module: nn.Conv2d, x: Tensor) -> Call | None:
    if module.padding_mode != "zeros":
        return None
    return _conv2d(x, module.weight, module.bias, module.stride, module.padding, module.dilation, module.groups)


MODULES: Mapping[type[nn.Module], Callable[[Any, Tensor], Call | None]] = {
    nn.Linear: lambda module, x: _linear(x, module.weight, module.bias),
    nn.Conv2d: _of_convolution,
    nn.LayerNorm: lambda module, x: _layer_norm(x, module.normalized_shape, module.weight, module.bias, module.eps),
    nn.RMSNorm: lambda module, x: _rms_norm(x, module.normalized_shape, module.weight, module.eps),
    nn.Softmax: lambda module, x: _softmax(x, module.dim),
}
"""By PyTorch's class, with a module of exactly that class and its input."""


def of_foreign_norm(module: Any, x: Tensor) -> Call | None:
    """By its weight and its eps; whether it computes what its name says is found by comparison."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return _rms_norm(x, module.weight.shape, module.weight, eps) if isinstance(eps, float) else None


def stand_in(module: nn.Module) -> Callable[[Any, Tensor], Call | None] | None:
    """What makes a call of such a module; None where there is nothing for its class.

    Libraries of models have norms of their own, whose classes are named alike (`LlamaRMSNorm`).
    """
    known = MODULES.get(type(module))
    is_norm = type(module).__name__.endswith("RMSNorm") and isinstance(getattr(module, "weight", None), Tensor)
    return of_foreign_norm if known is None and is_norm else known
