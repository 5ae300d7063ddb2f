"""What becomes of a configuration that is wrong, that crashes, or that hangs: tuned here, and by `triton.autotune`.

    python benchmarks/adoption/triton_faults.py [--limit 15] [--out FILE]

Needs a GPU, PyTorch and Triton. A kernel copies a vector; the value of its parameter FAULT is what is wrong with it.
The rows, one for each fault, go to benchmarks/results/<device>/triton_faults.json: `ours`, the outcome of that trial
among all four configurations and whether the right one was found, and `triton`, how a process ended that had
`triton.autotune` choose between the right and the faulty one, within so many seconds.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tilewright.kernels.own import own_kernel
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.devices.isolated.device import Deadlines
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop.tune import Budget, Hooks, tune

ROOT = Path(__file__).parents[2]
FAULTS = {"wrong": 1, "crashes": 2, "hangs": 3}

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    value = tl.load(x + place, mask=inside)
    if FAULT == 1:
        value += 1
    if FAULT == 2:
        place += 1 << 40
    if FAULT == 3:
        turns = 0
        while tl.load(x, volatile=True) < 1e30:
            turns += 1
        value += turns
    tl.store(y + place, value, mask=inside)
"""

DECLARATION = """
from tilewright.kernels.kernel import Kernel, Scalar, Tensor, Variant, programs, shape_of
from tilewright.kernels.space import choice

KERNEL = Kernel(
    name="triton_faults",
    entry="copy",
    arguments=(
        Tensor("x", "input", shape_of("n")),
        Tensor("y", "output", shape_of("n")),
        Scalar("n", lambda p: p.shape["n"], dtype="int32"),
    ),
    variants=(
        Variant(
            name="blocks",
            source="copying.py",
            launch=programs(lambda c, p: (-(-p.shape["n"] // c.BLOCK),)),
            parameters=(choice("BLOCK", 1024), choice("FAULT", 0, 1, 2, 3), choice("num_warps", 4)),
            min_compute_capability=(8, 0),
        ),
    ),
    reference=lambda _problem, arrays, _scalars: arrays["x"],
    example_shape={"n": 1 << 24},
)
"""

APPLICATION = """
import sys

import torch
import triton
from copying import copy

n, fault = 1 << 24, int(sys.argv[1])
x, y = torch.randn(n, device="cuda"), torch.full((n,), float("nan"), device="cuda")
tuned = triton.autotune([triton.Config({"BLOCK": 1024, "FAULT": f}) for f in (0, fault)], key=["n"])(copy)
tuned[(n // 1024,)](x, y, n)
torch.cuda.synchronize()
print(f"launched FAULT={tuned.best_config.kwargs['FAULT']}, {int((x != y).sum())} of {n} results are wrong")
"""


def ours(folder: Path) -> dict[str, Any]:
    """How each fault's trial ended, and the best."""
    kernel, device = own_kernel(folder), open_device("cuda:0", deadlines=Deadlines(verify=2, sample=2))
    problem, ended = kernel.problem(kernel.example_shape), {}

    def note(progress: Any) -> None:
        trial = progress.trial
        ended[trial.configuration.as_json()["FAULT"]] = trial.evaluation.outcome.value

    begun = time.monotonic()
    try:
        space = kernel.space(problem, device.model.limits)
        result = tune(device.bench(kernel, problem, 1), kernel, space, Budget(trials=4), seed=1, hooks=Hooks(note))
    finally:
        device.close()
    best = result.best.configuration.as_json()["FAULT"] if result.best else None
    return {"outcomes": ended, "best": best, "seconds": time.monotonic() - begun}


def by_triton(folder: Path, fault: int, limit_s: float) -> str:
    """How the process of `triton.autotune` ended, and the last that it said."""
    command = [sys.executable, str(folder / "application.py"), str(fault)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"not ended after {limit_s:g} s"
    lines = (ran.stdout if ran.returncode == 0 else ran.stderr).strip().splitlines() or ["nothing was said"]
    return f"status {ran.returncode}: {lines[-1] if ran.returncode == 0 else last_error(lines)}"


def last_error(lines: list[str]) -> str:
    """The line that names an error, the last of several."""
    return next((line for line in reversed(lines) if re.match(r"[\w.]*Error\b", line)), lines[-1])


def main() -> None:
    """Reads the command line and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=15.0, help="seconds for each process of Triton's")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    gpu = nvml.gpus()[0]
    name = gpu.name.lower().removeprefix("nvidia ").replace(" ", "-")
    out = arguments.out or ROOT / "benchmarks" / "results" / name / "triton_faults.json"
    document: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/adoption/triton_faults.py", *sys.argv[1:]]),
        "device": gpu.name,
        "driver": nvml.driver_version(),
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "triton_faults"
        folder.mkdir()
        for file, text in {"copying": SOURCE, "declaration": DECLARATION, "application": APPLICATION}.items():
            (folder / f"{file}.py").write_text(text)
        with ThreadPoolExecutor(len(FAULTS)) as beside:  # nothing is timed
            ends = [beside.submit(by_triton, folder, value, arguments.limit) for value in FAULTS.values()]
            found = ours(folder)
        document |= {"ours_s": found["seconds"], "ours_best": found["best"]}
        document["rows"] = [
            {"fault": fault, "ours": found["outcomes"].get(value), "triton": end.result()}
            for (fault, value), end in zip(FAULTS.items(), ends, strict=True)
        ]
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
