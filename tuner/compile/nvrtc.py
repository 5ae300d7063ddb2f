"""NVRTC, NVIDIA's run-time compiler, by ctypes: CUDA C++ source in, cubin out. Needs neither a GPU nor a driver."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from tilewright.tuner.errors import NoCompilerError

KEEP_STACK_LIMIT = "--modify-stack-limit=false"
"""NVRTC otherwise lifts the limit of this process while it compiles, and leaves it lifted after a catastrophic error,
such as a header that is missing. A process started then has threads of 2 MiB, which OpenBLAS overflows."""

SETTINGS = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")
"""Variables that name the folder of a CUDA toolkit."""


class NvrtcError(Exception):
    """The source did not compile; the message is the compiler's log."""


@cache
def version() -> str:
    """NVRTC's version, such as "13.0.88", or "13.0" where the library does not say more. Raises NoCompilerError."""
    library, path = _library()
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    short = f"{major.value}.{minor.value}"
    # The file's full name ends in the build (libnvrtc.so.13.0.88) in toolkits; wheels say it in their metadata.
    full = path.resolve().name.removeprefix("libnvrtc.so.")
    return full if full.startswith(short) else _wheel_version(short)


def is_available() -> bool:
    """Whether NVRTC can be loaded here."""
    try:
        _library()
    except NoCompilerError:
        return False
    return True


def compile_cubin(
    source: str, options: Sequence[str], instance: str | None = None, headers: Mapping[str, str] | None = None
) -> tuple[bytes, str]:
    """The cubin and the log; with `instance`, such as `scale<float>`, it holds that instance of a template.

    `headers` are the texts of headers by the names under which the source includes them.

    Raises NvrtcError with the log where the source or an option is wrong.
    """
    library, _ = _library()
    program = ctypes.c_void_p()
    given = headers or {}
    texts = (ctypes.c_char_p * len(given))(*(text.encode() for text in given.values()))
    names = (ctypes.c_char_p * len(given))(*(name.encode() for name in given))
    created = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", len(given), texts, names)
    _check(library, created)
    try:
        if instance is not None:
            _check(library, library.nvrtcAddNameExpression(program, instance.encode()))
        flags = [option.encode() for option in (KEEP_STACK_LIMIT, *options)]
        status = library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
        log = _read(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
        if status:
            raise NvrtcError(log or _message(library, status))
        return _read(library, program, "CUBIN"), log
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def library_folders() -> Iterator[Path]:
    """Folders where CUDA's libraries may lie: those of the nvidia-* wheels first, then the toolkit's."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(root).glob("*/lib"), reverse=True)
    for variable in SETTINGS:
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "lib64"
    yield Path("/usr/local/cuda/lib64")


@cache
def header_folders() -> tuple[Path, ...]:
    """Folders of CUDA's own headers, such as cooperative_groups.h, and of those that they include; empty without them.

    NVRTC has none: they come with a toolkit, or the wheels nvidia-cuda-runtime, nvidia-cuda-crt, nvidia-cuda-cccl.
    """
    for folder in library_folders():
        include = folder.parent / "include"
        if any((include / name).is_file() for name in ("cooperative_groups.h", "cuda_fp16.h")):
            return tuple(path for path in (include, include / "cccl") if path.is_dir())
    return ()


@cache
def _library() -> tuple[ctypes.CDLL, Path]:
    for folder in library_folders():
        for path in sorted(folder.glob("libnvrtc.so.*"), key=lambda p: len(p.name)):
            # NVRTC opens its builtins by bare name; a wheel's folder is not on the loader's path, so load them first.
            for builtins in folder.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path)), path
    raise NoCompilerError("libnvrtc was not found; install it with: pip install nvidia-cuda-nvrtc")


def _wheel_version(short: str) -> str:
    from importlib import metadata  # noqa: PLC0415 - 20 ms that a pool's worker does not need

    for name in ("nvidia-cuda-nvrtc", f"nvidia-cuda-nvrtc-cu{short.partition('.')[0]}"):
        try:
            wheel_version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if wheel_version.startswith(short):
            return wheel_version
    return short


def _read(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(library: ctypes.CDLL, status: int) -> None:
    if status:
        raise NvrtcError(_message(library, status))


def _message(library: ctypes.CDLL, status: int) -> str:
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return str(library.nvrtcGetErrorString(status).decode())
