"""Builds PyCUDA's wheel, which its authors do not publish, and prints the wheel's path.

Needed: a C++ compiler. Not needed: a CUDA toolkit or a driver. The headers come from CUDA_ROOT, from
/usr/local/cuda or else from NVIDIA's header wheels; for the linker a stand-in takes the place of the driver's
library libcuda.so.1, which is looked up anew whenever the module is loaded. CURAND is left out: nothing uses it, and
its headers are in none of these wheels. The wheel is kept in the user's cache folder.

Run it with the Python that PyCUDA is for, NumPy installed:  .venv/bin/python tools/build_pycuda.py
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "pycuda.lock"
BUILD_LOCK = ROOT / "requirements" / "pycuda-build.lock"
# One entry is enough: a shared library may leave names open until it is loaded.
STAND_IN = "int cuInit(unsigned int flags) { (void) flags; return 34; }  /* CUDA_ERROR_STUB_LIBRARY */\n"


class BuildError(Exception):
    """PyCUDA could not be built; the message says what is missing."""


def cached_wheel() -> Path | None:
    """The wheel of an earlier build with the same locks for the same Python."""
    return next(iter(sorted(_cache_folder().glob("pycuda-*.whl"))), None)


def build() -> Path:
    """Path of the wheel, built if it is not in the cache."""
    wheel = cached_wheel()
    if wheel is not None:
        return wheel
    with tempfile.TemporaryDirectory(prefix="pycuda-") as folder:
        work = Path(folder)
        site = work / "site"
        _pip("install", "--target", str(site), "--no-deps", "--require-hashes", "-r", str(BUILD_LOCK))
        compilers = _compilers()
        environment = _build_environment(work, _cuda_root(site), compilers)
        _link_stand_in(work, compilers[0])
        arguments = ("--no-build-isolation", "--no-cache-dir", "--no-binary=pycuda", "--no-deps", "--require-hashes")
        _pip("wheel", *arguments, "-w", str(work), "-r", str(LOCK), environment=environment)
        built = next(work.glob("pycuda-*.whl"))
        cache = _cache_folder()
        cache.mkdir(parents=True, exist_ok=True)
        partial = cache / f".{built.name}.{os.getpid()}"
        shutil.copyfile(built, partial)
        return partial.rename(cache / built.name)


def _cache_folder() -> Path:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(LOCK.read_bytes() + BUILD_LOCK.read_bytes())
    key.update(f"{sys.implementation.cache_tag} {sysconfig.get_platform()} {os.environ.get('CUDA_ROOT')}".encode())
    return caches / "tilewright" / "pycuda" / key.hexdigest()[:16]


def _cuda_root(site: Path) -> Path:
    """A folder with include/cuda.h."""
    given = os.environ.get("CUDA_ROOT")
    if given and not Path(given, "include", "cuda.h").is_file():
        raise BuildError(f"CUDA_ROOT is {given}, which has no include/cuda.h")
    candidates = [Path(given)] if given else [Path("/usr/local/cuda"), *sorted(site.glob("nvidia/cu*"))]
    for root in candidates:
        if (root / "include" / "cuda.h").is_file() and (root / "include" / "cudaProfiler.h").is_file():
            return root
    raise BuildError("no CUDA headers found: set CUDA_ROOT to the folder that holds include/cuda.h")


def _compilers() -> tuple[str, str]:
    """Commands of a C and a C++ compiler: $CC and $CXX, the system's, else those of the wheel ziglang."""
    given = os.environ.get("CC"), os.environ.get("CXX")
    for pair in (given, ("gcc", "g++"), ("clang", "clang++")):
        if all(name and shutil.which(name.split()[0]) for name in pair):
            return str(pair[0]), str(pair[1])
    zig = f"{sys.executable} -m ziglang"
    if subprocess.run([*zig.split(), "version"], capture_output=True, check=False).returncode == 0:
        return f"{zig} cc", f"{zig} c++"
    raise BuildError("no C++ compiler found: install g++ (Debian, Ubuntu: apt-get install g++), or set CC and CXX")


def _link_stand_in(folder: Path, compiler: str) -> None:
    (folder / "stand_in.c").write_text(STAND_IN, encoding="utf-8")
    target = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so"))
    command = [*compiler.split(), *target, str(folder / "stand_in.c")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise BuildError(f"the compiler {compiler} does not link a shared library: {made.stderr[-2000:]}")


def _build_environment(work: Path, cuda: Path, compilers: tuple[str, str]) -> dict[str, str]:
    """What PyCUDA's setup reads: its settings come from a file in the home folder."""
    home = work / "home"
    home.mkdir()
    settings = (
        ("CUDA_ROOT", str(cuda)),
        ("CUDA_INC_DIR", [str(cuda / "include")]),
        ("CUDADRV_LIB_DIR", [str(work)]),  # where the stand-in lies
        ("CUDA_ENABLE_CURAND", False),
    )
    text = "".join(f"{name} = {value!r}\n" for name, value in settings)
    (home / ".aksetup-defaults.py").write_text(text, encoding="utf-8")
    return {
        **os.environ,
        "HOME": str(home),
        "PYTHONPATH": str(work / "site"),
        "CC": compilers[0],
        "CXX": compilers[1],
        "LDFLAGS": "-Wl,-s",
    }


def _pip(*arguments: str, environment: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"pip {arguments[0]} failed:\n{(done.stdout + done.stderr)[-4000:]}")


if __name__ == "__main__":
    begun = time.monotonic()
    try:
        wheel = build()
    except BuildError as error:
        sys.exit(f"build_pycuda: {error}")
    print(f"build_pycuda: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    print(wheel)
