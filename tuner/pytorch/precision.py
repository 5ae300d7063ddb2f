"""The accuracy of products of float32: the caller's, or what the program allows PyTorch's own."""

from __future__ import annotations

import torch
from torch import Tensor

ALLOWED = "allowed"
"""In place of an accuracy: as `torch.set_float32_matmul_precision` says when the call runs."""


_precision = getattr(torch._C, "_get_fp32_precision_getter", None)  # noqa: SLF001 - the public name takes 1 µs, in every call


def allowed() -> str:
    """The accuracy that the program allows products of float32 on a GPU: `tf32` under "high" and "medium"."""
    if _precision is not None:  # PyTorch 2.9; the older settings raise where a program has used the newer ones
        return "tf32" if _precision("cuda", "matmul") == "tf32" else "fp32"
    return "tf32" if torch.get_float32_matmul_precision() != "highest" else "fp32"


def resolved(accuracy: str, tensor: Tensor) -> str:
    """The accuracy of a product of this tensor; other dtypes, and the CPU, have no TF32."""
    if accuracy != ALLOWED:
        return accuracy
    return allowed() if tensor.is_cuda and tensor.dtype == torch.float32 else "fp32"
