"""Makes the virtual environment fit for `run` or `dev`, from the locks; a second call finds nothing to do.

With the standard library of any Python from 3.11 to 3.13 alone:  python3 tools/prepare.py run|dev|bench|gpu|torch

Besides the lock that is asked for it adds what this machine calls for: a C++ compiler from a wheel where there is
none, PyCUDA where there is an NVIDIA driver, and for `dev` PyTorch where pip knows its build for CPUs. What was
installed is noted in the environment, in tilewright.json.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("VENV") or ".venv")
PYTHON = VENV / "bin" / "python"
NOTES = VENV / "tilewright.json"
OLDEST, NEWEST = (3, 11), (3, 13)
LAYERS = {"run": ("light", "run"), "dev": ("light", "run", "signatures", "dev")}
"""The locks for each purpose; each holds only what those before it lack."""


def main(purpose: str) -> None:
    """Install the missing packages for `purpose`."""
    os.chdir(ROOT)
    folder = os.open(ROOT, os.O_RDONLY)  # two makes at once must not install into one environment
    fcntl.flock(folder, fcntl.LOCK_EX)
    make_environment()
    install_locks(*LAYERS["dev" if purpose in {"dev", "bench", "torch"} else "run"])
    install_project()
    if purpose == "bench":
        install_bench()
    if not has_compiler():
        install_locks("zig")
    if purpose == "gpu" or has_driver():
        install_pycuda(again=purpose == "gpu")
    if purpose in {"dev", "torch"}:
        install_torch(again=purpose == "torch")
    os.close(folder)


def make_environment() -> None:
    """Make the virtual environment, or leave it when its Python works."""
    probe = "import sys; print(sys.version_info[:2])"
    if PYTHON.exists():
        found = subprocess.run([PYTHON, "-Ic", probe], capture_output=True, text=True, check=False).stdout.strip()
        if found and (3, 11) <= tuple(map(int, found.strip("()").split(","))) <= NEWEST:
            return
        print(f"{VENV} no longer works: making a new one", flush=True)
        shutil.rmtree(VENV)
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        sys.exit(f"Tilewright needs Python 3.11 to 3.13, this is {sys.version.split()[0]}: make PYTHON=python3.12 …")
    print(f"making {VENV} with Python {sys.version.split()[0]}", flush=True)
    if subprocess.run([sys.executable, "-m", "venv", VENV], capture_output=True, check=False).returncode == 0:
        return
    # Debian and Ubuntu keep ensurepip in a package of its own; a pip of the system can stand in for it.
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", VENV], check=True)
    bring_pip = [sys.executable, "-m", "pip", "-q", "--python", str(PYTHON), "install", "pip"]
    if subprocess.run(bring_pip, capture_output=True, check=False).returncode != 0:
        shutil.rmtree(VENV)
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        sys.exit(
            f"Python {version} cannot make a virtual environment: its module ensurepip is missing, and so is pip.\n"
            f"Debian, Ubuntu: apt-get install python{version}-venv (as root); elsewhere name a complete Python: "
            "make PYTHON=/path/to/python3 …"
        )


def install_locks(*names: str) -> None:
    """Install these locks, if one of them changed since it was last installed."""
    locks = {name: Path("requirements", f"{name}.lock") for name in names}
    notes, wanted = read_notes(), {name: digest(lock) for name, lock in locks.items()}
    changed = [str(lock) for name, lock in locks.items() if notes.get(name) != wanted[name]]
    if not changed:
        return
    begun = time.monotonic()
    print(f"installing {' '.join(changed)}", flush=True)
    pip("install", "--no-deps", "--require-hashes", *(word for lock in changed for word in ("-r", lock)))
    write_notes(wanted)
    print(f"installed {' '.join(changed)} in {time.monotonic() - begun:.0f} s", flush=True)


def install_bench() -> None:
    """Install what the benchmarks compare with, at versions that leave the locked ones as they are."""
    wanted = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]["bench"]
    locks = [Path("requirements", f"{name}.lock") for name in LAYERS["dev"]]
    notes = {"bench": " ".join([*map(digest, locks), *wanted])}
    if read_notes().get("bench") == notes["bench"]:
        return
    text = "".join(lock.read_text(encoding="utf-8") for lock in locks)
    pinned = re.findall(r"^[\w.-]+==[^\n\\]+", text, re.MULTILINE)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(pinned))
        constraints.flush()
        pip("install", "-c", constraints.name, *wanted)
    write_notes(notes)


def install_project() -> None:
    """Make `import tilewright` and the command find this folder."""
    notes = {"project": f"{digest(Path('pyproject.toml'))} {ROOT}"}
    if read_notes().get("project") == notes["project"]:
        return
    pip("install", "--no-deps", "--no-build-isolation", "-e", ".")
    write_notes(notes)


def has_compiler() -> bool:
    """Whether the system has a C++ compiler for the CPU device."""
    names = [os.environ.get("CXX", "").split(" ")[0], "g++", "clang++"]
    return any(name and shutil.which(name) for name in names)


def has_driver() -> bool:
    """Whether NVIDIA's driver is installed and answers to this process."""
    try:
        return bool(ctypes.CDLL("libcuda.so.1").cuInit(0) == 0)
    except OSError:
        return False


def install_pycuda(*, again: bool) -> None:
    """Build and install PyCUDA; a failure is printed, and leaves everything else working."""
    locks = digest(Path("requirements/gpu.lock")) + digest(Path("requirements/pycuda.lock"))
    noted = read_notes().get("gpu")
    if noted == locks:
        return
    if noted == f"failed {locks}" and not again:
        print(
            "PyCUDA could not be built earlier, so the GPU is not used. `make gpu` tries again and shows why.",
            flush=True,
        )
        return
    install_locks("gpu")
    print("an NVIDIA driver is here: building PyCUDA (a minute or two, once)", flush=True)
    built = subprocess.run([PYTHON, "tools/build_pycuda.py"], stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode == 0:
        pip("install", "--no-deps", "--no-index", built.stdout.strip())
        write_notes({"gpu": locks})
        return
    write_notes({"gpu": f"failed {locks}"})
    print("PyCUDA was not built (the reason is above). The CPU device works; `make gpu` tries again.", flush=True)
    if again:
        sys.exit(1)


def install_torch(*, again: bool) -> None:
    """Install PyTorch's build for CPUs, unless some PyTorch is there; without one its tests are left out."""
    wanted = Path("requirements/torch.txt")
    noted, now = read_notes().get("torch"), digest(wanted)
    if noted == now or (noted == f"failed {now}" and not again):
        return
    has_one = [PYTHON, "-c", "import torch"]
    if subprocess.run(has_one, capture_output=True, check=False).returncode == 0:
        write_notes({"torch": now})
        return
    print(f"installing {wanted}", flush=True)
    done = run_pip("install", "--no-deps", "--only-binary=:all:", "-r", str(wanted), capture_output=not again)
    write_notes({"torch": now if done.returncode == 0 else f"failed {now}"})
    if done.returncode != 0:
        print(
            "PyTorch's build for CPUs cannot be had here: the tests of tilewright.torch are left out. "
            "Where pip knows an index that has it (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS), `make torch` installs it.",
            flush=True,
        )
        if again:
            sys.exit(1)


def run_pip(*arguments: str, capture_output: bool = False) -> subprocess.CompletedProcess[bytes]:
    """What pip of the environment did; its own words tell what went wrong."""
    command = [PYTHON, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=False, capture_output=capture_output)


def pip(*arguments: str) -> None:
    """Run pip of the environment, and end where it fails."""
    if run_pip(*arguments).returncode != 0:
        sys.exit(f"prepare: pip {arguments[0]} failed (above). Nothing else was changed; run it again.")


def digest(path: Path) -> str:
    """A short hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def read_notes() -> dict[str, str]:
    """What was noted as installed; empty if nothing was."""
    try:
        notes: dict[str, str] = json.loads(NOTES.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return notes


def write_notes(added: dict[str, str]) -> None:
    """Note what was installed."""
    NOTES.write_text(json.dumps(read_notes() | added, indent=1), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] not in (["run"], ["dev"], ["bench"], ["gpu"], ["torch"]):
        sys.exit(f"usage: {sys.argv[0]} run|dev|bench|gpu|torch")
    main(sys.argv[1])
