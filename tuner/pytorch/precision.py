"""The accuracy of products of float32: the caller's, or what the program allows PyTorch's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

ALLOWED = "allowed"
"""The word for an accuracy that is what the program allows PyTorch's own when the call runs."""


_precision = getattr(torch._C, "_get_fp32_precision_getter", None)  # noqa: SLF001 - the public name takes twice as long, in every call


_AS_SET: list[tuple[bool, bool]] = []
"""TF32 for products and convolutions as the program allows it, while `as_set` holds."""


@contextmanager
def as_set() -> Iterator[None]:
    """Keeps what the program allows as it is now, whatever PyTorch is told in the block."""
    _AS_SET.append((products_in_tf32(), convolutions_in_tf32()))
    try:
        yield
    finally:
        _AS_SET.pop()


def products_in_tf32() -> bool:
    """Whether the program allows products of float32 on a GPU in TF32: under "high" and "medium"."""
    if _AS_SET:
        return _AS_SET[-1][0]
    if _precision is not None:  # PyTorch 2.9; the older settings raise where a program has used the newer ones
        return bool(_precision("cuda", "matmul") == "tf32")
    return bool(torch.get_float32_matmul_precision() != "highest")


def convolutions_in_tf32() -> bool:
    """Whether cuDNN's convolutions of float32 compute in TF32, which is PyTorch's default."""
    if _AS_SET:
        return _AS_SET[-1][1]
    if _precision is not None:
        return bool(_precision("cuda", "conv") == "tf32")
    return bool(torch.backends.cudnn.allow_tf32)


def setting() -> str:
    """Both settings in a word, which is kept beside decisions; empty for PyTorch's defaults."""
    settings = products_in_tf32(), convolutions_in_tf32()
    return {(False, True): "", (True, True): "tf32", (True, False): "products", (False, False): "ieee"}[settings]


vars(setting)["_dynamo_marked_constant"] = True  # of torch.compiler.assume_constant_result, which imports all of dynamo


@contextmanager
def without_tf32() -> Iterator[bool]:
    """Gives PyTorch's float32 products all bits in the block; whether some had fewer. Ours stay as they are."""
    with as_set(), _without_tf32() as changes:
        yield changes


@contextmanager
def _without_tf32() -> Iterator[bool]:
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # PyTorch before 2.9
        products, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield products != "highest" or cudnn
        finally:
            torch.set_float32_matmul_precision(products)
            torch.backends.cudnn.allow_tf32 = cudnn
        return
    # The older settings raise where a program has used these.
    places = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = [place.fp32_precision for place in places]
    for place in places:
        place.fp32_precision = "ieee"
    try:
        yield "tf32" in before
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision


def resolved(accuracy: str, tensor: Tensor) -> str:
    """The accuracy of a product of this tensor; other dtypes and the CPU have no TF32."""
    if accuracy != ALLOWED:
        return accuracy
    return "tf32" if may_be_tf32(tensor) and products_in_tf32() else "fp32"


def may_be_tf32(tensor: Tensor) -> bool:
    """Whether PyTorch's own may compute with such a tensor in TF32."""
    return tensor.dtype is torch.float32 and tensor.is_cuda


def asks_for_more(arguments: Iterable[Any]) -> bool:
    """Whether the caller has asked for more accuracy than TF32's, by name."""
    return any(isinstance(one, str) and one in {"fp32", "fp32-fma"} for one in arguments)
