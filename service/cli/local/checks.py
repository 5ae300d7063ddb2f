"""The checks of `doctor`, one function each: what is there and, if something is wrong, what to do."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel

from tilewright.service.cli.commands.serve import require_free_port
from tilewright.service.cli.connection import embedded_server
from tilewright.service.cli.failure import CommandError
from tilewright.service.client import Client
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.settings import settings
from tilewright.service.store import schema
from tilewright.service.store.session import configure, database_url
from tilewright.tuner import sandbox
from tilewright.tuner.compile import cache, compilation, nvrtc
from tilewright.tuner.devices.cpu import compile as cpu_compile
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.errors import NoCompilerError

MIN_FREE_BYTES = 1 << 30
"""The embedded database keeps 256 MB of log at most, the cache of compiled kernels up to 1 GiB."""

SUPPORTED = ((3, 11), (3, 13))


class State(StrEnum):
    """The result of a check."""

    OK = "ok"
    ABSENT = "absent"  # Tilewright works without it
    BROKEN = "broken"  # the main job cannot run


class Check(BaseModel):
    """One check: what was found, or what is missing and how to get it."""

    name: str
    state: State
    found: str
    remedy: str | None = None


def python() -> Check:
    """The check of the Python interpreter."""
    version = sys.version_info[:2]
    found = f"{sys.version.split()[0]} at {sys.executable}"
    if SUPPORTED[0] <= version <= SUPPORTED[1]:
        return Check(name="Python", state=State.OK, found=found)
    return Check(name="Python", state=State.BROKEN, found=found, remedy="Use Python 3.11, 3.12 or 3.13.")


def database() -> Check:
    """PostgreSQL; an embedded one that is stopped is started for the check, to see that it can."""
    server = embedded_server()
    kind = "the one at TILEWRIGHT_DATABASE_URL" if server is None else f"embedded, in {server.home}"
    try:
        with _running_database():
            behind = "" if schema.at_head() else "; its tables are not up to date: run tilewright db upgrade"
    except (DatabaseUnavailableError, OSError) as error:
        remedy = (
            "Check TILEWRIGHT_DATABASE_URL and the server there." if server is None else "Do what the message says."
        )
        reason = " ".join(str(error).split())
        return Check(name="PostgreSQL", state=State.BROKEN, found=f"{kind}: {reason}", remedy=remedy)
    return Check(name="PostgreSQL", state=State.OK, found=f"{kind}: starts and answers{behind}")


@contextmanager
def _running_database() -> Iterator[None]:
    server = embedded_server()
    was_running = server is None or server.running()
    try:
        database_url()
        yield
    finally:
        if server is not None and not was_running:
            server.stop()
            configure(None)


def host_compiler() -> Check:
    """The C++ compiler of the CPU device."""
    try:
        found = cpu_compile.find_compiler()
    except NoCompilerError as error:
        return Check(name="C++ compiler", state=State.ABSENT, found="none", remedy=str(error))
    return Check(name="C++ compiler", state=State.OK, found=f"{found.name} {found.version} ({' '.join(found.command)})")


def kernel_sandbox() -> Check:
    """Whether kernels and compilers run without network, other processes and the files of this machine."""
    missing = sandbox.missing()
    if missing is None:
        return Check(name="sandbox", state=State.OK, found="kernels and compilers run under bubblewrap")
    found = "none: kernels and compilers run as this user, with limits and a small environment"
    return Check(name="sandbox", state=State.ABSENT, found=found, remedy=missing)


def nvrtc_compiler() -> Check:
    """NVRTC, the default compiler of GPUs."""
    try:
        return Check(name="NVRTC", state=State.OK, found=nvrtc.version())
    except NoCompilerError as error:
        remedy = f"Only for GPUs, present or not: {error}"
        return Check(name="NVRTC", state=State.ABSENT, found="none", remedy=remedy)


def nvcc_compiler() -> Check:
    """nvcc, which PyCUDA's compiler calls."""
    try:
        return Check(name="nvcc", state=State.OK, found=compilation.compiler_version("pycuda"))
    except NoCompilerError as error:
        return Check(name="nvcc", state=State.ABSENT, found="none", remedy=f"Only for GPUs: {error}")


def driver() -> Check:
    """The check of NVIDIA's driver."""
    version = nvml.driver_version()
    if version:
        return Check(name="NVIDIA driver", state=State.OK, found=version)
    remedy = "Only for GPUs: install NVIDIA's driver; in a container, run it with the NVIDIA Container Toolkit."
    return Check(name="NVIDIA driver", state=State.ABSENT, found="none", remedy=remedy)


def gpus() -> Check:
    """The GPUs that this process may use."""
    found = nvml.gpus()
    if found:
        listed = "; ".join(f"cuda:{gpu.ordinal} {gpu.name}, {gpu.memory_bytes / 1e9:.0f} GB" for gpu in found)
        return Check(name="GPUs", state=State.OK, found=listed)
    hidden = nvml.driver_version() and "CUDA_VISIBLE_DEVICES" in os.environ
    remedy = "CUDA_VISIBLE_DEVICES names no GPU of this machine: unset or correct it." if hidden else None
    return Check(name="GPUs", state=State.ABSENT, found="none", remedy=remedy)


def pycuda() -> Check:
    """The check of PyCUDA, which drives GPUs."""
    if importlib.util.find_spec("pycuda") is not None:
        return Check(name="PyCUDA", state=State.OK, found="installed")
    remedy = "Only for GPUs: make run builds it where there is a driver; by hand: pip install 'tilewright[gpu]'"
    return Check(name="PyCUDA", state=State.ABSENT, found="none", remedy=remedy)


def device(found: dict[str, Check]) -> Check:
    """Whether any device can measure: a GPU with all it needs, or the CPU with a compiler."""
    has = {name: check.state is State.OK for name, check in found.items()}
    if has["GPUs"] and has["PyCUDA"] and (has["NVRTC"] or has["nvcc"]):
        return Check(name="device", state=State.OK, found="the GPUs")
    reason = ""
    if has["GPUs"]:
        missing = [name for name in ("PyCUDA", "NVRTC") if not has[name]]
        reason = f" (the GPUs need {' and '.join(missing)})"
    if has["C++ compiler"]:
        return Check(name="device", state=State.OK, found=f"the CPU{reason}")
    remedy = found["PyCUDA" if has["GPUs"] else "C++ compiler"].remedy
    return Check(name="device", state=State.BROKEN, found=f"none{reason}", remedy=remedy)


def data_folder() -> Check:
    """The folder of the database, locks and logs."""
    return _folder("data folder", settings().data_dir, "TILEWRIGHT_DATA_DIR", State.BROKEN)


def cache_folder() -> Check:
    """The check of the folder for compiled kernels, without which every kernel is compiled again."""
    return _folder("cache folder", cache.default_folder().parent, "TILEWRIGHT_CACHE_DIR", State.ABSENT)


def _folder(name: str, folder: Path, variable: str, otherwise: State) -> Check:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0")
    except OSError as error:
        remedy = f"Make it writable, or set {variable} to a folder that is."
        return Check(name=name, state=otherwise, found=f"{folder}: {error.strerror}", remedy=remedy)
    free_bytes = shutil.disk_usage(folder).free
    found = f"{folder}, {free_bytes / 1e9:.1f} GB free"
    if free_bytes < MIN_FREE_BYTES:
        return Check(name=name, state=otherwise, found=found, remedy=f"Free 1 GB, or set {variable} to another disk.")
    return Check(name=name, state=State.OK, found=found)


def port() -> Check:
    """Whether the API's port is free, or Tilewright already serves there."""
    host, number = settings().host, settings().port
    try:
        require_free_port(host, number)
    except CommandError as error:
        with Client(f"http://{host}:{number}") as client:
            if client.is_ready():
                return Check(name="port", state=State.OK, found=f"{host}:{number}; Tilewright already serves there")
        remedy = "Choose another: tilewright up --port, or TILEWRIGHT_PORT."
        return Check(name="port", state=State.BROKEN, found=str(error), remedy=remedy)
    return Check(name="port", state=State.OK, found=f"{host}:{number} is free")


CHECKS: tuple[Callable[[], Check], ...] = (
    python,
    data_folder,
    cache_folder,
    database,
    host_compiler,
    kernel_sandbox,
    driver,
    gpus,
    pycuda,
    nvrtc_compiler,
    nvcc_compiler,
    port,
)


def run_all() -> list[Check]:
    """The result of every check; last, whether any device can measure."""
    found = [check() for check in CHECKS]
    return [*found, device({check.name: check for check in found})]
