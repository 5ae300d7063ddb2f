"""The kernel that only reads."""

from pathlib import Path

import pytest

from tilewright.tuner.compile.compilation import Compilation
from tilewright.tuner.compile.compiler import compile_now
from tilewright.tuner.devices.cuda import read_bandwidth

SOURCE = Path(read_bandwidth.__file__).with_name("read.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_it_compiles_without_spills_in_every_unrolling(arch):
    for unroll in sorted({geometry[0] for geometry in read_bandwidth.GEOMETRIES}):
        compiled = compile_now(Compilation(SOURCE, (("UNROLL", str(unroll)),), arch, "read_all", "nvrtc"))
        assert compiled.resources.spill_bytes == 0
        assert compiled.resources.registers <= 64  # 1,024 threads of a block have no more


def test_every_geometry_is_a_launch():
    for loads, threads, blocks in read_bandwidth.GEOMETRIES:
        assert loads >= 1
        assert threads % 32 == 0
        assert threads <= 1024
        assert blocks >= 1
