"""PyTorch's scaled_dot_product_attention as an operator."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from tilewright.tuner.pytorch.kept import zeros
from tilewright.tuner.pytorch.operator import Operator, check
from tilewright.tuner.pytorch.precision import products_in_tf32
from tilewright.tuner.pytorch.tuned_call import NoKernelError, Posed

NAME = "scaled_dot_product_attention"
MASK_PLACE = 3  # in the kernel's order


def _result(  # noqa: PLR0917 - the operator's arguments
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Tensor:
    """An empty result, with heads behind rows in memory, as PyTorch's fast kernels have it."""
    del mask, is_causal, scale, enable_gqa
    shape = (*q.shape[:-1], v.shape[-1])
    check(q.dim() >= 2 and k.dim() >= 2, NAME, lambda: f"q is {tuple(q.shape)}, and k {tuple(k.shape)}")
    if q.dim() != 4:
        return q.new_empty(shape)
    batch, heads, rows, depth = shape
    return q.new_empty((batch, rows, heads, depth)).transpose(1, 2)


def _posed(  # noqa: PLR0917 - as above
    o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Posed:
    if not q.dim() == k.dim() == v.dim() == 4:
        raise NoKernelError("the kernel takes a batch of heads: four dimensions")
    batch, heads, queries, depth = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    if k.shape != v.shape or k.shape[0] != batch or k.shape[3] != depth:
        raise NoKernelError("the kernel takes keys and values of one shape, and as many numbers of a query")
    if kv_heads != heads and not enable_gqa:
        raise NoKernelError("heads of queries and keys differ, which is for enable_gqa=True")
    if is_causal and mask is not None:
        raise NoKernelError("a mask beside is_causal=True")
    named = {"batch": batch, "heads": heads, "queries": queries, "keys": keys, "depth": depth, "kv_heads": kv_heads}
    word = "causal" if is_causal else "none" if mask is None else "additive"
    added = zeros(q, 1) if mask is None else _added(q, mask, (batch, heads, queries, keys))
    kept = frozenset({MASK_PLACE}) if mask is None else frozenset()
    numbers = {"scale": 1 / math.sqrt(depth) if scale is None else scale}
    return Posed(named | {"mask": word, "heads_inside": True}, (q, k, v, added, o), numbers, kept)


def _added(q: Tensor, mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The mask as addends, expanded without memory; PyTorch turns True and False into addends in the same way."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, -math.inf)
    if mask.dtype != q.dtype:
        raise NoKernelError(f"the mask is {mask.dtype}, and queries {q.dtype}")
    mask = mask.expand(*mask.shape[:-1], shape[-1])
    if mask.stride(-1) != 1 and shape[-1] > 1:  # the kernel reads rows without gaps; what heads share is copied once
        *shared, _ = (slice(0, 1) if stride == 0 else slice(None) for stride in mask.stride())
        mask = mask[tuple(shared)].contiguous()
    return mask.expand(shape)


def _pytorch(  # noqa: PLR0917 - as above
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Tensor:
    found = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return found.transpose(1, 2).contiguous().transpose(1, 2) if q.dim() == 4 else found.contiguous()


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - autograd names it
    *tensors, ctx.is_causal, ctx.scale, ctx.enable_gqa = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    """PyTorch's own gradients: its forward runs again, by the backend that it chooses."""
    given = ctx.saved_tensors
    needed = [i for i, is_needed in enumerate(ctx.needs_input_grad[:4]) if is_needed]
    with torch.enable_grad():
        found = F.scaled_dot_product_attention(
            *given[:3], attn_mask=given[3], is_causal=ctx.is_causal, scale=ctx.scale, enable_gqa=ctx.enable_gqa
        )
    inputs = [given[i] for i in needed]
    gradients = torch.autograd.grad(found, inputs, gradient, create_graph=torch.is_grad_enabled())
    of = dict(zip(needed, gradients, strict=True))
    return of.get(0), of.get(1), of.get(2), of.get(3), None, None, None


ATTENTION = Operator(
    name=NAME,
    schema=(
        "(Tensor q, Tensor k, Tensor v, Tensor? mask=None, bool is_causal=False, float? scale=None, "
        "bool enable_gqa=False) -> Tensor"
    ),
    kernel="attention",
    result=_result,
    pose=_posed,
    pytorch=_pytorch,
    in_tf32=products_in_tf32,
    setup=_setup,
    backward=_backward,
)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`; with dropout PyTorch's own."""
    if dropout_p > 0.0:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return ATTENTION(query, key, value, attn_mask, is_causal, scale, enable_gqa)
