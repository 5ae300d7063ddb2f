"""Tensors that a plan keeps from call to call, in memory that no CUDA graph's pool has."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def zeros(like: Tensor, count: int) -> Tensor:
    """So many zeros of the tensor's dtype on its device; on a GPU the same memory in every call.

    A plan may be made while a CUDA graph is captured. PyTorch's own zeros would then lie in the graph's pool, be zero
    only after its first replay, and be gone with it.
    """
    if not like.is_cuda:
        return like.new_zeros(count)
    from tilewright.tuner.runtime.launches.contexts import context_of  # noqa: PLC0415 - as in plans.py

    with context_of("bias", like.data_ptr()):
        return _on_gpu(like.device, count * like.element_size()).view(like.dtype)


@cache
def _on_gpu(device: torch.device, size_bytes: int) -> Tensor:
    from tilewright.tuner.runtime.memory.scratch import zeroed  # noqa: PLC0415 - as in plans.py

    return torch.as_tensor(_Memory(zeroed(size_bytes).address, size_bytes), device=device)


class _Memory:
    """The driver's memory in a form that PyTorch takes over."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
