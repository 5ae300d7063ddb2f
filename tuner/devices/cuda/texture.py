"""Texture objects of inputs, made by the driver. Pitched memory and CUDA arrays are copies of the dense input."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_byte, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

from tilewright.kernels.dtypes import ITEM_BYTES, is_integer
from tilewright.kernels.fields.arguments import ADDRESSES, FILTERS, Tensor, Texture
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.cuda.driver import DriverError, call
from tilewright.tuner.errors import TunerError

_FORMATS = {"uint8": 1, "uint16": 2, "uint32": 3, "int8": 8, "int16": 9, "int32": 10, "float32": 32}
_RESOURCES = {"array": 0, "linear": 2, "pitched": 3}
_READ_AS_INTEGER, _NORMALIZED_COORDINATES = 1, 2
_DEVICE_MEMORY, _ARRAY_MEMORY = 2, 3
"""CUarray_format, CUresourcetype, CU_TRSF_* and CUmemorytype of cuda.h."""

_ACCESS_BYTES = 16  # what cuMemAllocPitch aligns rows for, at least; its pitch suits textures


class ArrayDescription(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR; unused axes are 0."""

    _fields_ = (
        *(("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)),
        *(("format", c_int), ("channels", c_uint), ("flags", c_uint)),
    )


class ResourceDescription(ctypes.Structure):
    """CUDA_RESOURCE_DESC, whose union's kinds agree where they overlap: `width` is linear memory's size in bytes."""

    _fields_ = (
        *(("kind", c_int), ("place", c_uint64), ("format", c_int), ("channels", c_uint)),
        *(("width", c_size_t), ("height", c_size_t), ("pitch_bytes", c_size_t)),
        *(("reserved", c_byte * 88), ("flags", c_uint)),
    )


class TextureDescription(ctypes.Structure):
    """The structure CUDA_TEXTURE_DESC of cuda.h."""

    _fields_ = (
        *(("addresses", c_int * 3), ("filter", c_int), ("flags", c_uint), ("anisotropy", c_uint)),
        *(("mipmap_filter", c_int), ("mipmap_levels", c_float * 3), ("border", c_float * 4), ("reserved", c_int * 12)),
    )


class CopyEnd(ctypes.Structure):
    """Half of CUDA_MEMCPY3D: where it copies from, or to."""

    _fields_ = (
        *(("start", c_size_t * 4), ("memory", c_int), ("host", c_void_p), ("device", c_uint64), ("array", c_void_p)),
        *(("reserved", c_void_p), ("pitch_bytes", c_size_t), ("height", c_size_t)),
    )


class CopyDescription(ctypes.Structure):
    """The structure CUDA_MEMCPY3D of cuda.h."""

    _fields_ = (
        *(("source", CopyEnd), ("target", CopyEnd)),
        *(("width_bytes", c_size_t), ("height", c_size_t), ("depth", c_size_t)),
    )


class TextureObject:
    """The texture of an input at a device address; `handle` is what a launch passes. In the current context."""

    def __init__(self, tensor: Tensor, texture: Texture, problem: Problem, address: int) -> None:
        """Raises TunerError where the device has no such texture, by its size above all."""
        dtype, texels = tensor.dtype_for(problem), tensor.texels(problem)
        self.handle, self._array, self._pitched = 0, c_void_p(), c_uint64()
        self._copied: CopyDescription | None = None
        resource = ResourceDescription(_RESOURCES[texture.memory], 0, _FORMATS[dtype], texture.channels)
        texel_bytes, object_ = ITEM_BYTES[dtype] * texture.channels, c_uint64()
        try:
            if texture.memory == "linear":
                resource.place, resource.width = address, texels[0] * texel_bytes
            else:
                target = self._target(resource, texels, texel_bytes)
                self._copied = _copy(address, target, texels, texel_bytes)
            call("cuTexObjectCreate", byref(object_), byref(resource), byref(_description(texture, dtype)), None)
        except DriverError as error:
            self.close()
            reason = f"{tensor.name} of {problem} cannot be a texture of {texels} texels: {error}"
            raise TunerError(reason) from error
        self.handle = object_.value

    def refill(self, stream: int) -> None:
        """Copies the input to where the texture reads it. Linear memory is the input's own."""
        if self._copied is not None:
            call("cuMemcpy3DAsync_v2", byref(self._copied), c_void_p(stream))

    def close(self) -> None:
        """Frees the object and its memory; nothing must read it any more."""
        if self.handle:
            call("cuTexObjectDestroy", c_uint64(self.handle))
        if self._array:
            call("cuArrayDestroy", self._array)
        if self._pitched:
            call("cuMemFree_v2", self._pitched)
        self.handle, self._array, self._pitched = 0, c_void_p(), c_uint64()

    def _target(self, resource: ResourceDescription, texels: tuple[int, ...], texel_bytes: int) -> CopyEnd:
        """Memory for the copy, which the resource describes from then on."""
        if resource.kind == _RESOURCES["array"]:
            sizes = (*texels, 0, 0)[:3]
            wanted = ArrayDescription(*sizes, resource.format, resource.channels, 0)
            call("cuArray3DCreate_v2", byref(self._array), byref(wanted))
            resource.place = self._array.value or 0
            return CopyEnd(memory=_ARRAY_MEMORY, array=self._array)
        (width, height), pitch = texels, c_size_t()
        row_bytes = c_size_t(width * texel_bytes)
        call("cuMemAllocPitch_v2", byref(self._pitched), byref(pitch), row_bytes, c_size_t(height), _ACCESS_BYTES)
        resource.place, resource.width, resource.height = self._pitched.value, width, height
        resource.pitch_bytes = pitch.value
        return CopyEnd(memory=_DEVICE_MEMORY, device=self._pitched.value, pitch_bytes=pitch.value, height=height)


def _copy(address: int, target: CopyEnd, texels: tuple[int, ...], texel_bytes: int) -> CopyDescription:
    width, height, depth = (*texels, 1, 1)[:3]
    row_bytes = width * texel_bytes
    source = CopyEnd(memory=_DEVICE_MEMORY, device=address, pitch_bytes=row_bytes, height=height)
    return CopyDescription(source, target, row_bytes, height, depth)


def _description(texture: Texture, dtype: str) -> TextureDescription:
    flags = (_READ_AS_INTEGER if is_integer(dtype) else 0) | (_NORMALIZED_COORDINATES if texture.normalized else 0)
    addresses = (c_int * 3)(*(ADDRESSES.index(texture.address),) * 3)
    return TextureDescription(addresses, FILTERS.index(texture.filter), flags)
