"""The launcher's view of an array of any library: address, dtype, shape and strides. Nothing is copied.

`read` is in the path of every launch: an address, and a hashable picture of all else in the owner's own words, which is
translated into a `Layout` once. No framework is imported; an array's type says where it comes from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tilewright.tuner.runtime.arrays.dlpack import KINDS, borrow
from tilewright.tuner.runtime.errors import LaunchError

LEGACY_STREAM = 1
"""CU_STREAM_LEGACY; the array interface uses the same number."""


@dataclass(frozen=True)
class Layout:
    """Strides are in elements. `ordinal` is the GPU's, None where only the driver knows; `kind` "cuda" or "cpu"."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    ordinal: int | None = None
    is_writable: bool = True


class Reader(NamedTuple):
    """How arrays of one type are read.

    `read(array)` gives address and picture, `layout(picture)` its meaning, `stream(array)` the handle of the stream
    that the owner orders its work by. `keeps_memory`: it cannot be freed while there is an array of it.
    """

    read: Callable[[Any], tuple[int, Hashable]]
    layout: Callable[[Any], Layout]
    stream: Callable[[Any], int]
    keeps_memory: bool = False


class _Readers(dict[type, Reader]):
    def __missing__(self, kind: type) -> Reader:
        self[kind] = reader = _choose(kind)
        return reader


READERS = _Readers()
"""Readers by type, added as types are met; raises LaunchError for types that are no arrays."""


def _choose(kind: type) -> Reader:
    packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if issubclass(kind, np.ndarray):
        return Reader(_read_numpy, _layout_numpy, lambda _array: 0, keeps_memory=True)
    if hasattr(kind, "__cuda_array_interface__"):
        for package, reader in _BY_PACKAGE.items():
            if package in packages:
                return reader
        return Reader(_read_interface, _layout_interface, _stream_interface)
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        return Reader(borrow, _layout_dlpack, lambda _array: LEGACY_STREAM)
    raise LaunchError(
        f"{kind.__module__}.{kind.__qualname__} is not an array: it is not NumPy's, and has neither "
        "__cuda_array_interface__ nor __dlpack__"
    )


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense row-major array, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _read_torch(tensor: Any) -> tuple[int, Hashable]:
    if tensor.is_neg():  # a conjugated view is of a dtype that no kernel has
        raise LaunchError("a torch tensor is negated when it is read, and its memory is not. Give tensor.resolve_neg()")
    return tensor.data_ptr(), (tensor.dtype, tensor.shape, tensor.stride(), tensor.get_device())


def _layout_torch(picture: Any) -> Layout:
    dtype, shape, strides, ordinal = picture
    kind = "cpu" if ordinal < 0 else "cuda"
    name = str(dtype).removeprefix("torch.")
    return Layout(kind, name, tuple(shape), tuple(strides), None if ordinal < 0 else ordinal)


def _stream_torch(tensor: Any) -> int:
    torch, ordinal = sys.modules["torch"], tensor.get_device()
    try:  # the handle alone, without an object around it, in a tenth of the time
        return int(torch._C._cuda_getCurrentRawStream(ordinal))  # noqa: SLF001
    except AttributeError:  # it is none of what torch promises to keep
        return int(torch.cuda.current_stream(ordinal).cuda_stream)


def _read_cupy(array: Any) -> tuple[int, Hashable]:
    data = array.data
    return data.ptr, (array.dtype, array.shape, array.strides, data.device_id)


def _layout_cupy(picture: Any) -> Layout:
    dtype, shape, strides, ordinal = picture
    return _in_bytes("cuda", dtype, shape, strides, ordinal=ordinal)


def _stream_cupy(_array: Any) -> int:
    return int(sys.modules["cupy"].cuda.get_current_stream().ptr)


def _read_pycuda(array: Any) -> tuple[int, Hashable]:
    memory = array.gpudata
    return 0 if memory is None else memory.__int__(), (array.dtype, array.shape, array.strides)


def _layout_pycuda(picture: Any) -> Layout:
    return _in_bytes("cuda", *picture)


def _read_numpy(array: Any) -> tuple[int, Hashable]:
    # In words: True would equal CuPy's 1 for a GPU, and the picture of an array in host memory that of one there.
    access = "writable" if array.flags.writeable else "read-only"
    return array.ctypes.data, (array.dtype, array.shape, array.strides, access)


def _layout_numpy(picture: Any) -> Layout:
    dtype, shape, strides, access = picture
    return _in_bytes("cpu", dtype, shape, strides, is_writable=access == "writable")


def _read_interface(array: Any) -> tuple[int, Hashable]:
    facts = array.__cuda_array_interface__
    address, is_read_only = facts["data"]
    return address, (facts["typestr"], facts["shape"], facts.get("strides"), is_read_only, facts.get("mask") is None)


def _layout_interface(picture: Any) -> Layout:
    typestr, shape, strides, is_read_only, is_whole = picture
    if not is_whole:
        raise LaunchError("masked arrays are not supported; fill in the masked elements first")
    dtype = np.dtype(typestr)
    if strides is None:
        return Layout("cuda", _name(dtype), tuple(shape), contiguous_strides(tuple(shape)), None, not is_read_only)
    return _in_bytes("cuda", dtype, shape, strides, is_writable=not is_read_only)


def _stream_interface(array: Any) -> int:
    return int(array.__cuda_array_interface__.get("stream") or LEGACY_STREAM)


_DLPACK_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}  # DLDataTypeCode of dlpack.h


def _layout_dlpack(picture: Any) -> Layout:
    (device_type, ordinal), (code, bits, lanes), shape, strides = picture
    if device_type not in KINDS:
        raise LaunchError(f"DLPack device type {device_type} is neither CUDA nor the CPU")
    plain = _DLPACK_CODES.get(code) if lanes == 1 else None
    dtype = f"{plain}{bits}" if plain else f"DLPack type {code}, {bits} bits, {lanes} lanes"
    kind = KINDS[device_type]
    return Layout(kind, dtype, shape, strides or contiguous_strides(shape), ordinal if kind == "cuda" else None)


def _in_bytes(
    kind: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    *,
    ordinal: int | None = None,
    is_writable: bool = True,
) -> Layout:
    size = dtype.itemsize
    # A stride that is no whole element matches nothing that is taken, and so is refused by what it is.
    elements = tuple(stride // size if stride % size == 0 else -1 for stride in strides)
    return Layout(kind, _name(dtype), tuple(shape), elements, ordinal, is_writable)


def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.isnative else f"{dtype.name} in foreign byte order"


_BY_PACKAGE = {
    "torch": Reader(_read_torch, _layout_torch, _stream_torch, keeps_memory=True),
    "cupy": Reader(_read_cupy, _layout_cupy, _stream_cupy, keeps_memory=True),
    "pycuda": Reader(_read_pycuda, _layout_pycuda, lambda _array: LEGACY_STREAM),
}
