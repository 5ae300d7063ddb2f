"""DLPack tensors, borrowed: the capsule is looked into and given back unused, so that its owner keeps the memory.

The structures are those of dlpack.h, version 0.8, and its versioned capsule of 1.0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from typing import Any

KINDS = {1: "cpu", 2: "cuda", 13: "cuda"}
"""kDLCPU, kDLCUDA, kDLCUDAManaged."""

_LEGACY_STREAM = 1  # the producer orders its work before ours there


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


def borrow(array: Any) -> tuple[int, Hashable]:
    """Address and picture: device, type, shape, strides (in elements; None where row-major)."""
    device_type, _ordinal = array.__dlpack_device__()
    is_cuda = KINDS.get(int(device_type)) == "cuda"
    capsule = array.__dlpack__(stream=_LEGACY_STREAM) if is_cuda else array.__dlpack__()
    if _is_valid(capsule, b"dltensor_versioned"):
        tensor = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned")).tensor
    else:
        tensor = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    device, kind = (tensor.device_type, tensor.device_id), (tensor.code, tensor.bits, tensor.lanes)
    return (tensor.data or 0) + tensor.byte_offset, (device, kind, shape, strides)
