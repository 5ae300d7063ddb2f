"""Builds the sdist and the wheel, installs each in a bare environment and runs it: `make package`.

The environment of `make test` builds; the bare ones get the locked requirements of an application, then of the service.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = {"LICENSE", "PKG-INFO", "README.md", "CHANGELOG.md", "pyproject.toml", "tilewright", ".gitignore"}
"""The parts of an sdist: what builds the wheel, and nothing that cannot run there."""


def main() -> None:
    """Both artifacts, in dist/; exits where one is wrong."""
    dist = ROOT / "dist"
    run(sys.executable, "-m", "hatchling", "build", "-d", str(dist))
    sdist, wheel = (newest(dist, pattern) for pattern in ("*.tar.gz", "*.whl"))
    with tarfile.open(sdist) as files:
        parts = {Path(name).parts[1] for name in files.getnames() if len(Path(name).parts) > 1}
        links = [one.name for one in files if one.issym()]
    if parts - NEEDED or links:
        sys.exit(f"{sdist.name} holds {', '.join(sorted(parts - NEEDED)) or 'links: ' + ', '.join(links)}")
    for artifact in (wheel, sdist):
        with tempfile.TemporaryDirectory(prefix="tilewright-package-") as folder:
            check(artifact, Path(folder))
        print(f"{artifact.name}: installed alone, and with the service; both run")


def newest(folder: Path, pattern: str) -> Path:
    """The file that was built last."""
    return max(folder.glob(pattern), key=lambda path: path.stat().st_mtime)


def check(artifact: Path, folder: Path) -> None:
    """Installs it as an application has it, then with the service on top, and runs both."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder / "fresh"))
    python = folder / "fresh" / "bin" / "python"
    built = artifact
    if artifact.suffix == ".gz":
        run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(artifact))
        built = newest(folder, "*.whl")
    locked = ["install", "--no-deps", "--require-hashes", "-r"]
    run(*PIP, "--python", str(python), *locked, str(ROOT / "requirements" / "light.lock"))
    run(*PIP, "--python", str(python), "install", "--no-deps", "--no-index", str(built))
    run(str(python), "-I", str(ROOT / "tools" / "check_light.py"), cwd=folder)
    run(*PIP, "--python", str(python), *locked, str(ROOT / "requirements" / "run.lock"))
    run(str(python), "-I", str(ROOT / "tools" / "check_wheel.py"), str(ROOT), cwd=folder)
    run(str(python.with_name("tilewright")), "--version", cwd=folder)


PIP = (sys.executable, "-m", "pip", "-q")


def run(*command: str, cwd: Path = ROOT) -> None:
    """Runs the command, and ends with its status where it fails."""
    done = subprocess.run(command, cwd=cwd, check=False)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
