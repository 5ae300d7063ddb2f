"""Weights quantised for `linear_quantized`, in the array type that they came in: what `quantise` returns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.linear_quantized.quantise import LARGEST, quantised
from tilewright.tuner.runtime.errors import ArgumentError


@dataclass(frozen=True)
class QuantisedWeights:
    """The arrays W and S of `linear_quantized`, and the options that tell the kernel how to read them."""

    W: Any
    S: Any
    options: dict[str, str]
    dtype: str


def quantise(W: Any, weights: str = "int8", *, group: int | str = 128, dtype: str | None = None) -> QuantisedWeights:
    """The weights W (n, k) of a layer in 8 or 4 bits, for `best("linear_quantized", dtype=q.dtype, **q.options)`.

    `weights` is int8, int4 or int4_zeros; `group` 128 or "row": how many neighbours along k share a scale. `dtype`,
    that of X, S and Y, is bfloat16 or float16, by default W's own where it is one of them. W is a PyTorch tensor, or an
    array of CuPy, PyCUDA or NumPy; W and S come back as the same, on the same device. Computed on the host. Raises
    ArgumentError.
    """
    to_host, like = _copies(W)
    own = str(W.dtype).rpartition(".")[2]
    dtype = dtype or (own if own in HALF else "bfloat16")
    _check("weights", weights, LARGEST)
    _check("group", str(group), ("128", "row"))
    _check("dtype", dtype, HALF)
    if len(W.shape) != 2:
        raise ArgumentError("W", f"has {len(W.shape)} axes, not 2", "Give the weights as (n, k), a row for each output")
    try:
        whole, scales = quantised(to_host(W), weights, str(group), dtype)
    except ValueError as error:
        raise ArgumentError("W", str(error), "Quantise other weights, or use linear") from error
    return QuantisedWeights(like(whole), like(scales), {"weights": weights, "group": str(group)}, dtype)


def _check(name: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise ArgumentError(name, f"is {value!r}", f"Give one of {', '.join(known)}")


Host = NDArray[Any]


def _copies(array: Any) -> tuple[Callable[[Any], Host], Callable[[Host], Any]]:
    """Functions that copy such an array to the host, and an array there back to its device and type."""
    if isinstance(array, np.ndarray):
        return lambda given: given, lambda made: made
    packages = {base.__module__.partition(".")[0] for base in type(array).__mro__}
    if "torch" in packages:
        return lambda given: given.detach().cpu().double().numpy(), lambda made: _torch_like(made, array)
    if "cupy" in packages:
        return lambda given: given.get(), lambda made: _cupy_like(made, array)
    if "pycuda" in packages:
        return lambda given: given.get(), sys.modules["pycuda.gpuarray"].to_gpu
    raise ArgumentError("W", f"is a {type(array).__qualname__}", "Give a PyTorch tensor, a CuPy or a NumPy array")


def _torch_like(made: Host, tensor: Any) -> Any:
    torch = sys.modules["torch"]
    if made.dtype.name != "bfloat16":
        return torch.from_numpy(made).to(tensor.device)
    return torch.from_numpy(made.view(np.int16)).view(torch.bfloat16).to(tensor.device)  # NumPy's own types alone


def _cupy_like(made: Host, array: Any) -> Any:
    with array.device:
        return sys.modules["cupy"].asarray(made)
