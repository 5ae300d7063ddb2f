"""What a compiled function takes."""

from __future__ import annotations

import struct


def parameters_of(cubin: bytes) -> list[int]:
    """Bytes of each parameter by the cubin's own table: entries 0x1704 (EIATTR_KPARAM_INFO) of .nv.info."""
    found, place = {}, 0
    while (place := cubin.find(b"\x04\x17\x0c\x00", place)) >= 0:
        ordinal, _offset, flags = struct.unpack_from("<HHI", cubin, place + 8)
        found[ordinal], place = flags >> 18, place + 4
    return [found[ordinal] for ordinal in sorted(found)]
