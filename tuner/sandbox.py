"""Limits and isolation of kernels and their compilers: limits always, bubblewrap (`bwrap`) where it works here.

In the sandbox there is no network, no other process, and nothing to write but the folders that are named; homes, /etc,
/var and the like are empty, the rest is read only. Everywhere a process gets a small environment, and limits of CPU
time, memory, the size of a file, and processes. TILEWRIGHT_SANDBOX=off takes sandbox and environment away.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tilewright.kernels.sources.folders import folders_of

VARIABLE = "TILEWRIGHT_SANDBOX"

_HIDDEN = ("/etc", "/home", "/root", "/var", "/run", "/srv", "/mnt", "/media", "/tmp")  # noqa: S108 - hidden, not used
_SHOWN = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
_APART = ("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--die-with-parent")

_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
_KEPT_FOR_COMPILERS = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
    *("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "TRITON_PTXAS_PATH"),
)

MOST_PROCESSES = 8192
"""Processes of the user: the limit counts all of them. It does not bind what root starts."""

_LIMITING = (
    'ulimit -t "$0"; ulimit -f "$1"; ulimit -d "$2"; ulimit -c 0; (ulimit -u "$3" || ulimit -p "$3") 2>/dev/null;'
    ' shift 3; exec "$@"'
)
"""Sets the limits before the command begins: from here it would be a race, and Python code between fork and exec may
deadlock in a process with threads. Files in blocks of 512 bytes, memory in KiB."""


def limited(command: Sequence[str], *, cpu_s: int | None, file_bytes: int, memory_bytes: int | None) -> list[str]:
    """The command under these limits, which hold for each process that it starts; None: no limit."""
    data = "unlimited" if memory_bytes is None else str(memory_bytes // 1024)
    seconds = "unlimited" if cpu_s is None else str(cpu_s)
    return ["sh", "-c", _LIMITING, seconds, str(file_bytes // 512), data, str(MOST_PROCESSES), *command]


def confined(command: Sequence[str], *, reads: Iterable[Path] = (), writes: Iterable[Path] = ()) -> list[str]:
    """The command in the sandbox, if there is one, with these of the files and folders that it hides."""
    if not is_on():
        return list(command)
    program = shutil.which(command[0])
    shown = [*_own_folders(), *([Path(program).resolve().parent.parent] if program else []), *reads]
    words = [*_bwrap(), *_words("--ro-bind", shown), *_words("--bind", writes), "--chdir", "/"]
    return [*words, "--", *command]


def environment(given: Mapping[str, str], *, is_compiler: bool = False) -> dict[str, str]:
    """The environment of such a process: the needed variables of ours, and the given ones."""
    if os.environ.get(VARIABLE) == "off":
        return {**os.environ, **given}
    names = (*_KEPT, *(_KEPT_FOR_COMPILERS if is_compiler else ()))
    return {name: os.environ[name] for name in names if name in os.environ} | {"HOME": "/tmp"} | dict(given)  # noqa: S108


def is_on() -> bool:
    """Whether kernels and compilers run in the sandbox here."""
    return missing() is None


def missing() -> str | None:
    """The reason why there is no sandbox here, with the remedy; None where there is one."""
    if os.environ.get(VARIABLE) == "off":
        return f"{VARIABLE} is off"
    return _missing(shutil.which("bwrap"))


@functools.cache
def _missing(program: str | None) -> str | None:
    if program is None:
        return "bubblewrap is not installed; install it: apt install bubblewrap"
    try:
        tried = subprocess.run([*_bwrap(), "--", "true"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not run: {error}"
    if tried.returncode == 0:
        return None
    said = tried.stderr.strip().splitlines() or ["it failed"]
    return f"bubblewrap is not allowed to make namespaces here ({said[0]}); allow unprivileged user namespaces"


@functools.cache
def _bwrap() -> tuple[str, ...]:
    hidden = [*_HIDDEN, *([os.environ["TILEWRIGHT_DATA_DIR"]] if "TILEWRIGHT_DATA_DIR" in os.environ else [])]
    words = ["bwrap", *_APART, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for folder in hidden:
        if Path(folder).is_dir() and not Path(folder).is_symlink():
            words += ["--tmpfs", folder]
    for path in _SHOWN:
        words += ["--ro-bind-try", path, path]
    return tuple(words)


@functools.cache
def _own_folders() -> tuple[Path, ...]:
    """The folders of Python, of this package, and of the user's own kernels."""
    package = Path(__file__).resolve().parent.parent
    kernels = folders_of(os.environ.get("TILEWRIGHT_KERNEL_FOLDERS", ""))
    python = Path(sys.executable).resolve().parent.parent
    return tuple({Path(sys.prefix), Path(sys.base_prefix), package, python, *kernels})


def _words(option: str, paths: Iterable[Path]) -> list[str]:
    """Binds for those that lie in a hidden folder, and for writable ones in any case; others are visible."""
    words = []
    for path in dict.fromkeys(str(path) for path in paths):
        if option == "--bind" or path.startswith(tuple(f"{folder}/" for folder in (*_HIDDEN, "/dev"))):
            words += [option, path, path]
    return words
