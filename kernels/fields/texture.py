"""How a source reads an input through the texture units of a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass

DTYPES = ("float32", "int8", "int16", "int32", "uint8", "uint16", "uint32")
"""Dtypes that a texel's components may have."""

MEMORIES = {"linear": (1,), "pitched": (2,), "array": (1, 2, 3)}
"""By kind of memory, how many axes of texels there may be."""

FILTERS = ("point", "linear")
ADDRESSES = ("wrap", "clamp", "mirror", "border")
"""In the order of CUfilter_mode and CUaddress_mode."""

WEIGHT_STEP = 2.0**-8
"""Linear filtering weighs neighbours by numbers of 9 bits, 8 of them behind the point (CUDA C++ Programming Guide,
"Linear Filtering"); whether they are rounded or cut off is not documented."""

TEXTURE_REFERENCE = re.compile(r"\btexture\s*<[^;{}()]*>\s*\w+\s*;")


@dataclass(frozen=True)
class Texture:
    """How a texture is created for a `cudaTextureObject_t` parameter, which stands in place of a pointer.

    `memory`: "linear" for `tex1Dfetch`, "pitched" for `tex2D`, "array" (a CUDA array) for `tex1D`, `tex2D`, `tex3D`.
    x is the tensor's last axis, or the one before it where texels have 2 or 4 `channels`, such as `float4`.
    `filter`, "point" or "linear", and `address`, "clamp", "border", "wrap" or "mirror", are those of cudaTextureDesc;
    linear memory has neither. Raises ValueError for what CUDA does not have.
    """

    memory: str = "array"
    filter: str = "point"
    address: str = "clamp"
    normalized: bool = False
    channels: int = 1

    def __post_init__(self) -> None:
        """Checks the words and what goes together."""
        choices = {"memory": tuple(MEMORIES), "filter": FILTERS, "address": ADDRESSES, "channels": (1, 2, 4)}
        for name, words in choices.items():
            if getattr(self, name) not in words:
                listed = ", ".join(map(str, words))
                raise ValueError(f"a texture's {name} is one of {listed}, not {getattr(self, name)!r}")
        if self.memory == "linear" and (self.filter, self.address, self.normalized) != ("point", "clamp", False):
            raise ValueError("a texture of linear memory has neither filter nor address mode; it is read by index")
        if self.address in {"wrap", "mirror"} and not self.normalized:
            raise ValueError(f"a texture's address mode {self.address} needs normalized=True")
