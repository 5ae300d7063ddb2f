"""Writes requirements/*.lock from pyproject.toml. A developer's tool; needs uv. Run it as `make lock`.

The locks hold versions and hashes for Python 3.11 to 3.13 and no index address. Versions stay what they are as long
as pyproject.toml allows them; `make lock UPGRADE=1` takes the newest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
FORMAT = ("--universal", "--python-version=3.11", "--generate-hashes", "--no-header")


LAYERS = {
    "light": (),
    "run": ("light",),
    "signatures": ("light", "run"),
    "dev": ("light", "run", "signatures"),
    "zig": ("light", "run"),
    "gpu": ("light", "run"),
    "pycuda-build": ("light", "run"),
}
"""The locks that are always installed before each: it holds only what they lack."""


def compile_lock(name: str, *choice: str, text_in: str = "") -> None:
    """Write one lock; `choice` says what of pyproject.toml goes in."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        sys.exit("lock: uv is not installed (pip install uv), or set UV=/path/to/uv")
    upgrade = ("--upgrade",) if os.environ.get("UPGRADE") and name == "all" else ()
    command = [uv, "pip", "compile", "-q", *FORMAT, "--no-annotate", *upgrade, *choice, "-o", LOCKS / f"{name}.lock"]
    subprocess.run(command, cwd=ROOT, input=text_in, text=True, check=True, stdout=subprocess.DEVNULL)


def blocks(name: str) -> list[str]:
    """The requirements of a lock, each with its hashes."""
    return re.findall(r"^\S.*\n(?:[ \t].*\n)*", (LOCKS / f"{name}.lock").read_text(encoding="utf-8"), re.MULTILINE)


def write_blocks(name: str, kept: Iterable[str]) -> None:
    """Write a lock of these requirements."""
    (LOCKS / f"{name}.lock").write_text("".join(sorted(kept)), encoding="utf-8")


def main() -> None:
    """Write all locks; the versions of all that is developed with hold in the others."""
    project, versions = "pyproject.toml", LOCKS / "all.lock"
    write_blocks("all", {block for name in LAYERS for block in blocks(name)})  # uv keeps the versions that it finds
    compile_lock("all", project, "--extra=service", "--group=dev", "--group=build")
    same = ("-c", str(versions))
    service = (project, "--extra=service", "--group=build", "--no-emit-package=pycuda", *same)
    compile_lock("light", project, *same)
    compile_lock("run", *service)
    for extra in ("zig", "gpu", "signatures"):
        compile_lock(extra, *service, f"--extra={extra}")
    compile_lock("pycuda-build", "--group=pycuda-build", *same)
    versions.replace(LOCKS / "dev.lock")
    found = {name: blocks(name) for name in LAYERS}
    for name, before in LAYERS.items():
        had = {block for other in before for block in found[other]}
        write_blocks(name, (block for block in found[name] if block not in had))
    pinned = re.findall(r'"(pycuda==[^"]+)"', (ROOT / project).read_text(encoding="utf-8"))[0]
    compile_lock("pycuda", "-", "--no-deps", "--no-binary=pycuda", text_in=f"{pinned}\n")
    for lock in sorted(LOCKS.glob("*.lock")):
        print(f"{lock.relative_to(ROOT)}: {len(blocks(lock.stem))} packages")


if __name__ == "__main__":
    main()
