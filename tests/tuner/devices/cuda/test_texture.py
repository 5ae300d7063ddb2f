"""The driver's structures of texture objects, as cuda.h lays them out. No driver is called."""

import ctypes
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tilewright.tuner.devices.cpu.compile import find_compiler
from tilewright.tuner.devices.cuda import texture

LAYOUTS = {
    "CUDA_ARRAY3D_DESCRIPTOR": (texture.ArrayDescription, "Width Height Depth Format NumChannels Flags"),
    "CUDA_RESOURCE_DESC": (
        texture.ResourceDescription,
        "resType {0}.devPtr {0}.format {0}.numChannels {0}.width {0}.height {0}.pitchInBytes - flags".format(
            "res.pitch2D"
        ),
    ),
    "CUDA_TEXTURE_DESC": (
        texture.TextureDescription,
        "addressMode filterMode flags maxAnisotropy mipmapFilterMode mipmapLevelBias borderColor reserved",
    ),
    "CUDA_MEMCPY3D": (texture.CopyDescription, "srcXInBytes dstXInBytes WidthInBytes Height Depth"),
}
ENDS = "{0}XInBytes {0}MemoryType {0}Host {0}Device {0}Array {1} {0}Pitch {0}Height"
RECORDED = {
    "CUDA_ARRAY3D_DESCRIPTOR": [40, 0, 8, 16, 24, 28, 32],
    "CUDA_RESOURCE_DESC": [144, 0, 8, 16, 20, 24, 32, 40, 136],
    "CUDA_TEXTURE_DESC": [104, 0, 12, 16, 20, 24, 28, 40, 56],
    "CUDA_MEMCPY3D": [200, 0, 88, 176, 184, 192],
}
"""Of cuda.h 13: the size, then the offset of each field."""


def include_folder():
    spec = find_spec("nvidia")
    folders = [Path(place) / "cu13" / "include" for place in (spec.submodule_search_locations if spec else ())]
    return next((folder for folder in folders if (folder / "cuda.h").is_file()), None)


def ours(structure, names):
    fields = [field for field, name in zip(structure._fields_, names.split(), strict=True) if name != "-"]
    return [ctypes.sizeof(structure), *(getattr(structure, name).offset for name, _ in fields)]


@pytest.mark.parametrize("name", LAYOUTS)
def test_structures_lie_as_the_driver_reads_them(name):
    assert ours(*LAYOUTS[name]) == RECORDED[name]


def test_both_ends_of_a_copy_lie_alike():
    assert ours(texture.CopyEnd, ENDS.format("src", "reserved0")) == [88, 0, 32, 40, 48, 56, 64, 72, 80]


@pytest.mark.skipif(include_folder() is None, reason="needs cuda.h (the wheel nvidia-cuda-runtime)")
def test_the_recorded_layouts_are_those_of_cuda_h(tmp_path):
    asked = {
        name: [f"sizeof({name})", *(f"offsetof({name}, {field})" for field in fields.split() if field != "-")]
        for name, (_, fields) in LAYOUTS.items()
    }
    ends = [f"offsetof(CUDA_MEMCPY3D, {field})" for field in ENDS.format("src", "reserved0").split()]
    ends += [f"offsetof(CUDA_MEMCPY3D, {field}) - 88" for field in ENDS.format("dst", "reserved1").split()]
    numbers = [number for each in asked.values() for number in each] + ends
    values = [value for each in RECORDED.values() for value in each] + [0, 32, 40, 48, 56, 64, 72, 80] * 2
    checks = "".join(f'static_assert({n} == {v}, "{n}");\n' for n, v in zip(numbers, values, strict=True))
    source = tmp_path / "layout.cpp"
    source.write_text("#include <cuda.h>\n#include <stddef.h>\n" + checks)
    command = [*find_compiler().command, "-fsyntax-only", "-std=c++17", f"-I{include_folder()}", str(source)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
