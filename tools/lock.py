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
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
FORMAT = ("--universal", "--python-version=3.11", "--generate-hashes", "--no-header")


def compile_lock(name: str, *choice: str, text_in: str = "") -> None:
    """Write one lock; `choice` says what of pyproject.toml goes in."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        sys.exit("lock: uv is not installed (pip install uv), or set UV=/path/to/uv")
    upgrade = ("--upgrade",) if os.environ.get("UPGRADE") and name == "dev" else ()
    command = [uv, "pip", "compile", "-q", *FORMAT, "--no-annotate", *upgrade, *choice, "-o", LOCKS / f"{name}.lock"]
    subprocess.run(command, cwd=ROOT, input=text_in, text=True, check=True, stdout=subprocess.DEVNULL)


def blocks(name: str) -> list[str]:
    """The requirements of a lock, each with its hashes."""
    return re.findall(r"^\S.*\n(?:[ \t].*\n)*", (LOCKS / f"{name}.lock").read_text(encoding="utf-8"), re.MULTILINE)


def keep_additions(name: str, *, to: str) -> None:
    """Take out of a lock what another lock, always installed before it, has already."""
    had = set(blocks(to))
    added = [block for block in blocks(name) if block not in had]
    (LOCKS / f"{name}.lock").write_text("".join(added), encoding="utf-8")


def main() -> None:
    """Write all locks; the versions of the widest one hold in the others."""
    project = "pyproject.toml"
    same = ("-c", "requirements/dev.lock")
    compile_lock("dev", project, "--extra=service", "--group=dev", "--group=build")
    compile_lock("light", project, *same)
    compile_lock("run", project, "--extra=service", "--group=build", *same)
    for extra in ("zig", "gpu", "oidc", "signatures"):
        extras = ("--extra=service", f"--extra={extra}")
        compile_lock(extra, project, "--group=build", *extras, "--no-emit-package=pycuda", *same)
        keep_additions(extra, to="run")
    compile_lock("pycuda-build", "--group=pycuda-build", *same)
    keep_additions("pycuda-build", to="run")
    pinned = re.findall(r'"(pycuda==[^"]+)"', (ROOT / project).read_text(encoding="utf-8"))[0]
    compile_lock("pycuda", "-", "--no-deps", "--no-binary=pycuda", text_in=f"{pinned}\n")
    for lock in sorted(LOCKS.glob("*.lock")):
        print(f"{lock.relative_to(ROOT)}: {len(blocks(lock.stem))} packages")


if __name__ == "__main__":
    main()
