"""How many scripts of Kernel Tuner's become kernels: each script in turn.

    python benchmarks/adoption/scripts.py NAME=FOLDER …

A row says whether every call of a script was adopted, and what `tilewright kernels check --no-compile` found on the
CPU. Nothing is timed. Rows of scripts that are in the file already are replaced, but for what tuned.py has measured.
`rates` count the scripts that tune at least one kernel in CUDA without textures; a row that is not counted says why.
Packages that scripts ask for (matplotlib, SciPy, pandas, Jinja2) are installed in the Python that runs this.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "adoption.json"
TILEWRIGHT = (sys.executable, "-m", "tilewright.service.cli")
CALLS = ("tune_kernel(", "run_kernel(", "PythonKernel(", "kernel_tuner")
CALL = re.compile(r"^[^#\n]*(?:tune_kernel|run_kernel|PythonKernel)\(", re.MULTILINE)
NOT_ON_THE_CPU = {"timed_out": "the script's problem is too large for it", "which has no <": "it needs CUDA's headers"}
NO_CALL = "calls neither tune_kernel nor run_kernel"
NOT_COUNTED = {
    "it is in C;": "C that nvcc compiles: a function of the host, which launches and times its kernels itself",
    "its source is in": "no CUDA",
    NO_CALL: "it tunes nothing when it is run",
    "SyntaxError": "Python 2",
    "is of int; arrays and scalars": "an int of Python's as an argument, which Kernel Tuner refuses too",
}
"""What puts a call, or a script, out of the count, by what its refusal says."""


def main() -> None:
    """Adopts every script of the folders that mentions Kernel Tuner."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="+", metavar="NAME=FOLDER", help="a name, and a folder of scripts or a script")
    parser.add_argument("--check-limit", type=float, default=120, help="seconds that a check may take")
    parser.add_argument("--python", default=sys.executable, help="the Python that has the scripts' packages")
    parser.add_argument("--arguments", default="", help="what each script is given, as a shell would")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = json.loads(options.output.read_text())["rows"] if options.output.exists() else []
    for source in options.sources:
        name, _, folder = source.partition("=")
        path = Path(folder)
        for script in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if not any(call in script.read_text(errors="replace") for call in CALLS):
                continue
            title = f"{name}/{script.relative_to(path) if path.is_dir() else script.name}"
            row = {"source": title, **_row(script, options)}
            print(json.dumps(row), flush=True)
            before: dict[str, Any] = next((one for one in rows if one["source"] == title), {})
            row |= {name: value for name, value in before.items() if name.startswith("tuned")}
            rows = [*(one for one in rows if one["source"] != title), row]
            options.output.write_text(json.dumps(_document(rows), indent=1) + "\n")


def _document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "command": "python benchmarks/adoption/scripts.py NAME=FOLDER … --check-limit 5",
        "device": f"CPU, {platform.machine()}; of a row's `tuned`, the one it names",
        "date": datetime.now(UTC).date().isoformat(),
        "rates": {name: _rate(rows, name) for name in sorted({row["source"].rpartition("/")[0] for row in rows})},
        "rows": sorted(rows, key=lambda row: row["source"]),
    }


def _rate(rows: list[dict[str, Any]], folder: str) -> dict[str, int]:
    own = [row for row in rows if row["source"].rpartition("/")[0] == folder]
    counted = [row for row in own if row["counted"]]
    return {
        "scripts": len(own),
        "counted": len(counted),
        "adopted": sum(row["adopted"] for row in counted),
        "without_an_edit": sum(row["edits"] == 0 for row in counted),
    }


def _why_not_counted(refused: str) -> str | None:
    return next((why for sign, why in NOT_COUNTED.items() if sign in refused), None)


def _row(script: Path, options: argparse.Namespace) -> dict[str, Any]:
    """`edits` is 0 where every call was adopted and what was checked has no error; None where somebody must look."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *TILEWRIGHT,
            "kernels",
            "adopt",
            str(script),
            "--folder",
            folder,
            "--json",
            "--python",
            options.python,
        ]
        command += ["--", *shlex.split(options.arguments)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if not ran.stdout:
            reason = ran.stderr.strip().removeprefix("error ").splitlines()[-1].replace(str(script), script.name)
            tunes = any(call in script.read_text(errors="replace") for call in CALLS[:-1])
            why = _why_not_counted(reason) if tunes else NOT_COUNTED[NO_CALL]
            return {"counted": why is None, "adopted": False, "edits": None, "reason": why or reason}
        answer = json.loads(ran.stdout)
        kernels = [_kernel(call, options.check_limit) for call in answer["calls"]]
    refusals = [call["refused"] for call in answer["calls"] if call["refused"]]
    reasons = [_why_not_counted(reason) or reason for reason in refusals]
    refused = [reason for reason in refusals if _why_not_counted(reason) is None]
    if len(kernels) < len(CALL.findall(script.read_text(errors="replace"))):
        refused += [note for note in answer["notes"] if "calls may be missing" in note]
    is_counted = bool(refused) or len(refusals) < len(kernels)
    wrong = [kernel["check"] for kernel in kernels if kernel.get("check", "").startswith("error")]
    return {
        "counted": is_counted,
        "adopted": is_counted and not refused,
        "edits": None if not is_counted or refused or wrong else 0,
        "reason": "; ".join(dict.fromkeys([*reasons, *wrong, *answer["notes"]])),
        "kernels": kernels,
    }


def _kernel(call: dict[str, Any], limit_s: float) -> dict[str, Any]:
    if call["folder"] is None:
        return {"kernel": call["kernel_name"], "refused": call["refused"]}
    command = [*TILEWRIGHT, "kernels", "check", call["folder"], "--no-compile", "--configurations", "1", "--json"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        check = f"not finished in {limit_s:g} s on the CPU"
    else:
        findings = json.loads(ran.stdout)["findings"] if ran.stdout else [{"severity": "error", "message": ran.stderr}]
        errors = [finding["message"] for finding in findings if finding["severity"] == "error"]
        check = f"error: {errors[0].strip()}" if errors else "passed"
        said = " ".join(finding["message"] for finding in findings)
        impossible = next((reason for sign, reason in NOT_ON_THE_CPU.items() if sign in said), None)
        check = check if impossible is None else f"not run on the CPU: {impossible}"
    return {"kernel": Path(call["folder"]).name, "check": check, "notes": call["notes"]}


if __name__ == "__main__":
    main()
