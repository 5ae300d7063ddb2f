"""Kernel sources made into host programs, kept on disk by content."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import platformdirs

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.sources.source import defined_by
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.cache import remove_oldest
from tilewright.tuner.compile.compilation import triton_version
from tilewright.tuner.devices.cpu.compile import HOST_FOLDER, HostCompiler, shim_hash, translation_unit
from tilewright.tuner.devices.cpu.process import LOG_CHARACTERS, Allowance, run_limited
from tilewright.tuner.errors import NoCompilerError, TrialFailure, TunerError
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.triton.interpreter import SUFFIX, InterpretedProgram

RUNTIME = ("block", "arrays", "confined", "runner")
"""The shim's own sources, compiled once per compiler and mode."""

LIBRARY = "library"
"""The mode of programs that are loaded into this process: with no `main`, and arrays that are the caller's own."""

MAX_CACHE_BYTES = 1 << 29
"""About 18,000 programs of 28 KB."""

_FIRST_TIMEOUT_S = 300.0
"""The time for a compiler's first run, in which ziglang builds the C library's stubs."""

_MISSING = re.compile(r"fatal error: '?((?:cub|cuda|nv|thrust)/[^':\n]+)")
"""A compiler's message about a missing header of CUDA's."""

_SCRATCH, _LEFT_BEHIND_S = ".new-", 3600.0
"""What a compilation's own folder begins with; one so old is nobody's, as no compiler may take as long."""

_MIN_FREE_BYTES = 1 << 26
"""The free space below which a folder counts as full: a link without space would look like a bad kernel."""


class HostBuilder:
    """Makes programs with one compiler. They lie in the cache, or in a private folder where that cannot be used.

    Any number of processes may share the cache: files appear under their final name complete or not at all.
    """

    def __init__(self, compiler: HostCompiler, cache: Path | None = None, timeout_s: float = 60.0) -> None:
        self.compiler, self.timeout_s = compiler, timeout_s
        self._private: tempfile.TemporaryDirectory[str] | None = None
        self._private_lock = threading.Lock()
        self._proved: set[str] = set()
        self._cache = cache or default_cache()
        with contextlib.suppress(OSError):
            evict(self._cache)

    def program(
        self, kernel: Kernel, problem: Problem, configuration: Configuration, mode: str = "fast"
    ) -> tuple[Path, float]:
        """The program of a configuration and the milliseconds of compiling it, 0 from the cache.

        Raises TrialFailure(COMPILE_FAILED) with the compiler's log. In the mode LIBRARY it is a shared library.
        """
        if kernel.is_triton:
            return self._interpreted(kernel, problem, configuration, mode), 0.0
        variant = kernel.variant(configuration.variant)
        text = translation_unit(
            self.compiler,
            [entry for entry, _ in variant.launches(kernel.entry, configuration.values, problem)],
            kernel.source(variant.name),
            kernel.definitions(problem, configuration) | defined_by(kernel.flags),
            f"{kernel.name}/{variant.source}",
            constants=[tensor.symbol for tensor in kernel.constants],
        )
        if mode == LIBRARY:
            text += (HOST_FOLDER / "library.inc").read_text(encoding="utf-8")
        includes = [flag for flag in kernel.compiler_flags if flag.startswith("-I")]
        started = time.perf_counter()
        path, is_new = self._kept(
            mode, "\n".join([text, *includes]), "", lambda folder, out: self._link(folder, out, text, mode, includes)
        )
        return path, (time.perf_counter() - started) * 1e3 if is_new else 0.0

    def _interpreted(self, kernel: Kernel, problem: Problem, configuration: Configuration, mode: str) -> Path:
        triton_version()  # says where it is missing
        if mode == LIBRARY:
            reason = "a Triton kernel is launched on GPUs only; on the CPU call the function under TRITON_INTERPRET=1"
            raise TrialFailure(Outcome.COMPILE_FAILED, reason)
        if mode != "fast":
            raise NoCompilerError("Triton's interpreter has no sanitizers; an access outside an array ends it")
        text = InterpretedProgram.of(kernel, problem, configuration).text()
        return self._kept("fast", text, SUFFIX, lambda _folder, out: out.write_text(text, encoding="utf-8"))[0]

    def close(self) -> None:
        """Removes the private folder; programs in the cache stay."""
        if self._private is not None:
            self._private.cleanup()
            self._private = None

    def _kept(self, mode: str, content: str, suffix: str, make: Callable[[Path, Path], object]) -> tuple[Path, bool]:
        """The file with that content, made if it is missing, and whether it was made now."""
        identity = f"{self.compiler}{self.compiler.flags(mode)}{host_identity()}{shim_hash()}{content}{mode}"
        key = hashlib.sha256(identity.encode()).hexdigest()
        for folder in (self._cache, *([Path(self._private.name)] if self._private else [])):
            path = folder / (key + suffix)
            if _is_whole(path):
                with contextlib.suppress(OSError):
                    for one in (path, _digest_of(path)):
                        os.utime(one)  # the eviction's clock
                return path, False
        if is_usable(self._cache):
            try:
                return _made(self._cache / (key + suffix), make), True
            except (TrialFailure, TunerError, OSError):
                if is_usable(self._cache):
                    raise
                # The disk ran full meanwhile, which is not the kernel's fault: once more, elsewhere.
        return _made(self._own_folder() / (key + suffix), make), True

    def _link(self, scratch: Path, out: Path, text: str, mode: str, flags: Sequence[str]) -> None:
        self._prove(mode)
        log = self._compile(scratch, out, text, mode, self.timeout_s, flags)
        if log is not None:
            missing = _MISSING.search(log)
            if missing:
                log = f"error: the CPU device has no <{missing[1]}>, a header of CUDA's: tune on a GPU\n{log}"
            raise TrialFailure(Outcome.COMPILE_FAILED, log)

    def _prove(self, mode: str) -> None:
        """Raises NoCompilerError where not even an empty kernel links; later failures are then the kernel's fault."""

        def make(scratch: Path, out: Path) -> None:
            text = translation_unit(self.compiler, ["empty"], 'extern "C" __global__ void empty() {}', {}, "empty.cu")
            log = self._compile(scratch, out, text, mode, _FIRST_TIMEOUT_S)
            if log is not None:
                raise NoCompilerError(
                    f"{self.compiler.name} {self.compiler.version} cannot build {mode} programs: {log}"
                )

        if mode not in self._proved:
            self._kept(mode, "empty", ".proof", make)
            self._proved.add(mode)

    def _compile(
        self, scratch: Path, out: Path, text: str, mode: str, timeout_s: float, flags: Sequence[str] = ()
    ) -> str | None:
        """None where the text became a program, else the compiler's log."""
        source = scratch / "kernel.cpp"
        source.write_text(text, encoding="utf-8")
        names = RUNTIME[:1] if mode == LIBRARY else RUNTIME
        objects = [str(self._runtime_object(name, mode)) for name in names]
        arguments = [*self.compiler.flags(mode), f"-I{HOST_FOLDER}", *flags, "-pipe", str(source), *objects]
        arguments += ["-o", str(out)]
        return self._run(arguments, scratch, timeout_s)

    def _runtime_object(self, name: str, mode: str) -> Path:
        def make(scratch: Path, out: Path) -> None:
            # Without the sanitizer's own instrumentation: the scheduler is no part of what is looked at.
            flags = [flag for flag in self.compiler.flags(mode) if not flag.startswith("-fsanitize")]
            arguments = [*flags, "-O2", "-c", str(HOST_FOLDER / f"{name}.cpp"), "-o", str(out)]
            log = self._run(arguments, scratch, _FIRST_TIMEOUT_S)
            if log is not None:
                raise NoCompilerError(f"{self.compiler.name} {self.compiler.version} cannot build the host shim: {log}")

        return self._kept(mode, name, ".o", make)[0]

    def _run(self, arguments: list[str], scratch: Path, timeout_s: float) -> str | None:
        """None where the compiler succeeded, else its log."""
        # What ziglang keeps of one kernel goes with the scratch folder; else its own cache would grow without end.
        environment = {"TMPDIR": str(scratch), "ZIG_LOCAL_CACHE_DIR": str(scratch)}
        folders = (HOST_FOLDER, self._cache, *(Path(flag[2:]) for flag in arguments if flag.startswith("-I")))
        private = (Path(self._private.name),) if self._private is not None else ()
        allowance = Allowance(reads=(*folders, *private), writes=(scratch,), is_compiler=True)
        ended = run_limited([*self.compiler.command, *arguments], timeout_s, environment, allowance)
        if ended.code == 0:
            return None
        if (interruption := ended.interruption) is not None:
            raise TrialFailure(Outcome.INTERRUPTED, f"the compiler was interrupted: {interruption}\n{ended.log}")
        if ended.code is None:
            return f"the compiler was killed after {timeout_s:.3g} s\n{ended.log}".strip()
        return (ended.log or f"the compiler ended with {ended.code}")[:LOG_CHARACTERS]

    def _own_folder(self) -> Path:
        """The private folder, made where it is not there yet."""
        with self._private_lock:
            if self._private is None:
                roots = [root for root in (Path(tempfile.gettempdir()), Path("/dev/shm")) if is_usable(root)]  # noqa: S108
                if not roots:
                    raise TunerError(
                        f"there is no space to compile: {self._cache}, {tempfile.gettempdir()} and /dev/shm are full"
                    )
                self._private = tempfile.TemporaryDirectory(prefix="tilewright-build-", dir=roots[0])
            return Path(self._private.name)


def _made(path: Path, make: Callable[[Path, Path], object]) -> Path:
    """The path of a file that appears complete or not at all."""
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=path.parent, ignore_cleanup_errors=True) as scratch:
        made, digest = Path(scratch) / "made", Path(scratch) / "digest"
        make(Path(scratch), made)
        digest.write_text(_sha256(made), encoding="ascii")
        digest.replace(_digest_of(path))
        made.replace(path)
    return path


def _digest_of(path: Path) -> Path:
    """The file beside a program that holds the hash of its bytes."""
    return path.with_name(f"{path.name}.sha256")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_whole(path: Path) -> bool:
    """Whether the file is there with the bytes that were written: a damaged one would end its process."""
    try:
        return _digest_of(path).read_text(encoding="ascii") == _sha256(path)
    except (OSError, UnicodeDecodeError):
        return False


def default_cache() -> Path:
    """TILEWRIGHT_CACHE_DIR where set, else the user's cache folder; `host` inside it."""
    root = os.environ.get("TILEWRIGHT_CACHE_DIR")
    return (Path(root) if root else platformdirs.user_cache_path("tilewright")) / "host"


def is_usable(folder: Path) -> bool:
    """Whether programs can be written to the folder, which is made if need be, and run from there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        status = os.statvfs(folder)
    except OSError:
        return False
    has_room = status.f_bavail * status.f_frsize >= _MIN_FREE_BYTES
    return has_room and not status.f_flag & os.ST_NOEXEC and os.access(folder, os.W_OK | os.X_OK)


def evict(folder: Path, max_bytes: int = MAX_CACHE_BYTES) -> None:
    """Removes the files used longest ago until the folder holds at most 9/10 of `max_bytes`, if it is over.

    Scratch folders that a killed process left go in any case.
    """
    for path in folder.glob(f"{_SCRATCH}*/"):
        with contextlib.suppress(FileNotFoundError):  # another process evicts too
            if time.time() - path.stat().st_mtime > _LEFT_BEHIND_S:
                shutil.rmtree(path, ignore_errors=True)
    remove_oldest(folder.iterdir(), max_bytes)


@functools.cache
def host_identity() -> str:
    """The architecture and CPU features that `-march=native` depends on. A home folder may serve several hosts."""
    lines = cpu_information()
    return f"{platform.machine()} {lines.get('model name', '')} {lines.get('flags', lines.get('Features', ''))}"


@functools.cache
def cpu_information() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo by name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
