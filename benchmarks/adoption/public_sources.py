"""How many public CUDA sources become tuned kernels: forty that a seed draws from public_sources.txt.

    python benchmarks/adoption/public_sources.py FOLDER [--second] [--only NUMBER …] [--edited FOLDER] [--output FILE]

FOLDER holds a checkout of each repository, named OWNER+NAME. For each file: `kernels new` of its kernel (of several,
one drawn, or as the words in `edited/NUMBER/words` say), the declaration of `edited/NUMBER` in place of the first one
where there is such a folder (at most ten of its lines may differ), `kernels check`, and a job of four trials on the CPU
device. Nothing of the files is kept.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tilewright.tuner.cuda_source.tree import CudaSource

SEED, DRAWN, MOST_EDITED, TRIALS = 40, 40, 10, 4
LIST = Path(__file__).with_suffix(".txt")
SECOND = "# Second list"
TILEWRIGHT = (sys.executable, "-m", "tilewright.service.cli")
LIMIT_S = 300


def main() -> None:
    """Tries the drawn files, or those of them that are numbered, and prints a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of drawn files, from 1")
    parser.add_argument("--second", action="store_true", help="all of the second list")
    parser.add_argument("--edited", type=Path, help="folder of edited declarations: NUMBER/declaration.py")
    parser.add_argument("--output", type=Path, help="file for the rows, as JSON")
    options = parser.parse_args()
    rows = []
    for number, (repository, commit, path) in enumerate(second() if options.second else drawn(), 1):
        if options.only and number not in options.only:
            continue
        edited = options.edited / str(number) / "declaration.py" if options.edited else None
        row = {"number": number, "repository": repository, "commit": commit, "path": path}
        row |= verdict(options.checkouts / repository.replace("/", "+") / path, edited)
        print(json.dumps(row), flush=True)
        rows.append(row)
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")


def drawn() -> list[list[str]]:
    """Repository, commit and path of the files that are tried."""
    lines = _lines(LIST.read_text().partition(SECOND)[0])
    return [line.split(" ", 2) for line in sorted(random.Random(SEED).sample(lines, DRAWN), key=str.lower)]


def second() -> list[list[str]]:
    """The same of the second list, which was drawn already."""
    return [line.split(" ", 2) for line in _lines(LIST.read_text().partition(SECOND)[2])]


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith(("#", " ", ":"))]


def verdict(source: Path, edited: Path | None) -> dict[str, Any]:
    """How far the file came: `new`, `check` or `tuned`; what was said last; how many lines were edited."""
    kernels = [one.entry for one in CudaSource(source.read_text(errors="replace")).kernels] or [""]
    entry = random.Random(f"{SEED} {source.name}").choice(kernels)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "kernel"
        words = ["kernels", "new", str(source), "--folder", str(folder)]
        own = edited.with_name("words") if edited is not None else None
        if own is not None and own.exists():
            words += own.read_text().format(here=source.parent).splitlines()
        elif len(kernels) > 1:
            words += ["--entry", entry]
        made = _run(words)
        row: dict[str, Any] = {"entry": entry, "came_to": "new", "edited_lines": 0}
        if made.returncode:
            return row | {"said": _last(made)}
        declaration = folder / "declaration.py"
        if edited is not None and edited.exists():
            before, after = declaration.read_text(), edited.read_text()
            diff = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0))[2:]
            row["edited_lines"] = max(sum(line.startswith(sign) for line in diff) for sign in "+-")
            declaration.write_text(after)
        checked = _run(["kernels", "check", str(folder)])
        if checked.returncode:
            errors = [line for line in checked.stdout.splitlines() if line.startswith("error")]
            return row | {"came_to": "check", "said": errors or _last(checked)}
        name, dtype, shape = _example(folder)
        words = ["up", "--device", "cpu", "--once", "--tune", name, "--shape", shape, "--dtype", dtype]
        job = [*words, "--trials", str(TRIALS)]
        tuned = _run(job, TILEWRIGHT_KERNEL_FOLDERS=str(folder))
        is_tuned = tuned.returncode == 0 and row["edited_lines"] <= MOST_EDITED
        return row | {"came_to": "tuned" if is_tuned else "job", "said": _last(tuned)}


def _example(folder: Path) -> list[str]:
    """The kernel's name, its first dtype, and its example as `--shape` has it."""
    code = (
        "import sys; from pathlib import Path; from tilewright.kernels.own import own_kernel\n"
        "kernel = own_kernel(Path(sys.argv[1]), ())\n"
        "shape = ','.join(f'{axis}={size}' for axis, size in kernel.example_shape.items())\n"
        "print(kernel.name, kernel.dtypes[0], shape)"
    )
    ran = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    return ran.stdout.split()


def _run(words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, "COLUMNS": "1000", **environment}
    try:
        return subprocess.run(
            [*TILEWRIGHT, *words], capture_output=True, text=True, env=surroundings, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"no end within {LIMIT_S} s")


def _last(ran: subprocess.CompletedProcess[str]) -> str:
    lines = (ran.stderr if ran.returncode else ran.stdout).strip().splitlines()
    return lines[-1] if lines else ""


if __name__ == "__main__":
    main()
