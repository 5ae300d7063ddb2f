"""Checks an installed wheel against the source tree: every file is there, every module can be imported.

Run with the Python of an environment that holds the wheel, from outside of the source tree:
python -I tools/check_wheel.py /path/to/source/tree
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

PACKAGES = ("kernels", "tuner", "service", "migrations")
NEEDS_PYCUDA = {
    "tilewright.tuner.compile.nvcc",
    "tilewright.tuner.devices.cuda.context",
    "tilewright.tuner.devices.cuda.device",
}
NEEDS_TORCH = "tilewright.tuner.pytorch."
NEEDS_AUTHLIB = {"tilewright.service.api.openid"}
NEEDS_HELION = {"tilewright.tuner.autotune.helion"}
SCRIPTS = {"tilewright.migrations.env"}  # run by Alembic: importing it migrates


def main(source: Path) -> None:
    """Print the checks; exit 1 with the names of missing files."""
    installed = Path(str(importlib.import_module("tilewright").__file__)).parent
    if installed.is_relative_to(source):
        sys.exit(f"check_wheel: {installed} is the source tree itself, not an installed wheel")
    files = [
        path.relative_to(source)
        for package in PACKAGES
        for path in sorted((source / package).rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    ]
    missing = [str(file) for file in files if not (installed / file).is_file()]
    if missing:
        sys.exit(f"check_wheel: not in the wheel: {', '.join(missing)}")
    modules = [
        ".".join(("tilewright", *file.with_suffix("").parts)).removesuffix(".__init__")
        for file in files
        if file.suffix == ".py"
    ]
    imported = [name for name in modules if imports(name)]
    left_out = sorted(set(modules) - set(imported))
    print(f"check_wheel: {len(files)} files there, {len(imported)} modules imported; left out: {', '.join(left_out)}")


def imports(name: str) -> bool:
    """Whether the module was imported; scripts are left out, and what uses a package of an extra that is missing."""
    if name in SCRIPTS or name.endswith(".__main__"):
        return False
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        needs = {
            "pycuda": name in NEEDS_PYCUDA,
            "authlib": name in NEEDS_AUTHLIB,
            "helion": name in NEEDS_HELION,
            "torch": name.startswith(NEEDS_TORCH),
        }
        if needs.get(package):
            return False
        raise
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
