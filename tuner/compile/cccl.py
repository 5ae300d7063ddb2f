"""CUB, Thrust and libcu++, which a CUDA toolkit has under the name CCCL: where they are, and how NVRTC takes them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tilewright.tuner.compile.nvrtc import SETTINGS, header_folders, library_folders

USUAL = ("/usr/local/cuda", *sorted(map(str, Path("/usr/local").glob("cuda-*")), reverse=True), "/opt/cuda")

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<((?:cub|cuda|nv|thrust)/[^>\n]+)>", re.MULTILINE)
_MISSING = re.compile(r'(?:cannot|could not) open source file "(?:cub|cuda|nv|thrust)/')
_IN_THRUST = re.compile(r"^\S*/thrust/\S+\(\d+\): (?:catastrophic )?error", re.MULTILINE)
_PARTS = re.compile(r"^#[ \t]*include <cub/[^>\n]+>", re.MULTILINE)
_ALLOCATOR = "cub/util_allocator.cuh"
_VERSION = re.compile(r"^#define ((?:CCCL|CUB|CUDA)_VERSION) (\d+)", re.MULTILINE)
_VERSION_FILES = ("cuda/std/__cccl/version.h", "cub/version.cuh", "cuda.h")


def is_used(source: str) -> bool:
    """Whether the source includes one of these headers itself, and they are here."""
    return _INCLUDE.search(source) is not None and bool(folders())


@cache
def folders() -> tuple[Path, ...]:
    """The folders that sources with such headers are compiled with, that of the headers first; empty without them."""
    for include in _candidates():
        found = [base for base in (include / "cccl", include) if (base / "cub" / "version.cuh").is_file()]
        if found:
            return tuple(dict.fromkeys([*found, include, *header_folders()]))
    return ()


@cache
def version() -> str:
    """The versions of these headers and of the toolkit, for instance "CCCL 3000001 CUB 300001 CUDA 13000"."""
    files = [folder / name for folder in folders() for name in _VERSION_FILES if (folder / name).is_file()]
    found = dict(pair for file in reversed(files) for pair in _VERSION.findall(file.read_text(errors="replace")))
    return " ".join(f"{name.removesuffix('_VERSION')} {number}" for name, number in sorted(found.items()))


@cache
def own_headers() -> dict[str, str]:
    """Headers to use in place of CUB's, by name: parts for the host alone are left out.

    `<cub/cub.cuh>` includes all of that, and that of CCCL 3.5 refuses NVRTC altogether.
    """
    base = folders()[0] if folders() else Path()
    umbrella = base / "cub" / "cub.cuh"
    parts = _PARTS.findall(umbrella.read_text(errors="replace")) if umbrella.is_file() else []
    devices = [f"cub/device/{path.name}" for path in sorted((base / "cub" / "device").glob("*.cuh"))]
    return dict.fromkeys([*devices, _ALLOCATOR], "\n") | {"cub/cub.cuh": "".join(f"{part}\n" for part in parts)}


def remedy(source: str, log: str) -> str:
    """A line for ahead of the log that says what to do where such a header made compiling fail; "" where none did."""
    included = _INCLUDE.search(source)
    if included and not folders() and _MISSING.search(log):
        return (
            f"error: <{included[1]}> was not found: install a CUDA toolkit or the wheel nvidia-cuda-cccl. It is looked "
            f"for in {', '.join(SETTINGS)}, beside nvcc and in /usr/local/cuda: set CUDA_HOME to the toolkit's folder\n"
        )
    if included and _IN_THRUST.search(log):
        return f"error: NVRTC does not take this part of <{included[1]}>; nvcc may: use --compiler pycuda\n"
    return ""


def _candidates() -> Iterator[Path]:
    """Folders of headers where these may be: a setting's, the wheels', then nvcc's and the usual ones."""
    nvcc = shutil.which("nvcc")
    named = [Path(os.environ[setting]) for setting in SETTINGS if os.environ.get(setting)]
    beside = [Path(nvcc).resolve().parent.parent] if nvcc else []
    yield from (include for root in named for include in _of(root))
    yield from (folder.parent / "include" for folder in library_folders())
    yield from (include for root in [*beside, *map(Path, USUAL)] for include in _of(root))


def _of(root: Path) -> list[Path]:
    return [root / "include", *sorted(root.glob("targets/*/include"))]
