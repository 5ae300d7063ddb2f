"""Helion's own examples through `tilewright.helion.RemoteCache`: searched for by one process, found by a second.

    python benchmarks/adoption/helion_examples.py EXAMPLES [--seconds 60] [--limit 500] [--at-once 1] [--out FILE]

Needs a GPU, PyTorch, Triton and Helion; EXAMPLES is the folder of that name in Helion's repository. Each process has
empty caches of Helion's own and of Triton's, so that only what our back end kept can be found. Without TILEWRIGHT_URL
that is a folder in TILEWRIGHT_CACHE_DIR. A row has of both processes: first_s (the first call until its result is
there), searches and found (Helion's counts), error (the largest difference from PyTorch's result); and whether both ran
the same configuration.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Row = dict[str, Any]
KERNELS = {
    "add": "add",
    "softmax": "softmax_two_pass",
    "rms_norm": "rms_norm_fwd",
    "sum": "sum_kernel",
    "bmm": "bmm",
}
HELION = {
    "HELION_AUTOTUNE_CACHE": "RemoteAutotuneCache",
    "HELION_REMOTE_CACHE_BACKEND": "tilewright.helion.RemoteCache",
    "HELION_AUTOTUNE_EFFORT": "quick",
    "HELION_AUTOTUNER": "PatternSearch",  # its default needs scikit-learn
    "HELION_AUTOTUNE_PROGRESS_BAR": "0",
}


def posed(name: str) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    """The arguments of a call, of sizes that the example's own main has, and PyTorch's function."""
    import torch  # noqa: PLC0415 - in a process of its own

    def drawn(*shape: int, dtype: Any = torch.float16) -> Any:
        return torch.randn(shape, device="cuda", dtype=dtype)

    torch.manual_seed(0)
    if name == "add":
        return (drawn(1024, 1024), drawn(1024, 1024)), torch.add
    if name == "softmax":
        return (drawn(4096, 2560),), lambda x: torch.softmax(x, dim=1)
    if name == "rms_norm":
        x, weight = drawn(2048, 4096), drawn(4096)
        return (x, weight), lambda x, weight: torch.nn.functional.rms_norm(x, (4096,), weight, 1e-5)
    if name == "sum":
        return (drawn(5120, 2560, dtype=torch.float32),), lambda x: x.sum(-1)
    return (drawn(16, 512, 768), drawn(16, 768, 1024)), torch.bmm


def launch(name: str) -> Row:
    """In a process of its own: the first call of the example's kernel."""
    import torch  # noqa: PLC0415
    from helion._utils import counters  # noqa: PLC0415 - there is no public count

    module = importlib.import_module(name)
    kernel, (arguments, reference) = getattr(module, KERNELS[name]), posed(name)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    made = kernel(*arguments)
    torch.cuda.synchronize()
    first_s = time.perf_counter() - begun
    result = made[0] if isinstance(made, tuple) else made
    return {
        "first_s": first_s,
        "searches": counters["autotune"]["cache_miss"],
        "found": counters["autotune"]["cache_hit"],
        "error": float((result.float() - reference(*arguments).float()).abs().max()),
        "config": str(kernel.bind(arguments)._config),  # noqa: SLF001
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def process(name: str, examples: Path, seconds: float, limit_s: float) -> Row:
    """What a process tells whose caches are empty, or how it failed."""
    with tempfile.TemporaryDirectory() as own:
        variables = {
            name: f"{own}/{name}" for name in ("HELION_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
        }
        variables["HELION_AUTOTUNE_BUDGET_SECONDS"] = str(int(seconds))
        variables["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(examples.resolve())])
        command = [sys.executable, __file__, str(examples), "--launch", name]
        streams = {"capture_output": True, "text": True, "env": os.environ | HELION | variables}
        try:
            ran = subprocess.run(command, timeout=limit_s, check=True, **streams)
            return dict(json.loads(ran.stdout.splitlines()[-1]))
        except subprocess.CalledProcessError as error:
            return {"failed": error.stderr[-1500:]}
        except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
            return {"failed": f"{type(error).__name__}: {str(error)[-500:]}"}


def tried(name: str, examples: Path, seconds: float, limit_s: float) -> Row:
    """The row of one example."""
    row: Row = {"example": name, "kernel": KERNELS[name]}
    for which in ("first", "second"):
        row[which] = process(name, examples, seconds, limit_s)
        if "failed" in row[which]:
            return row
    return row | {"same": row["first"]["config"] == row["second"]["config"]}


def main() -> None:
    """Reads the command line and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", type=Path)
    parser.add_argument("--seconds", type=float, default=60, help="of a search")
    parser.add_argument("--limit", type=float, default=500, help="seconds of all")
    parser.add_argument("--at-once", type=int, default=1, help="examples that are searched beside each other")
    parser.add_argument("--out", type=Path, default=Path("helion.json"))
    parser.add_argument("--launch", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.launch:
        print(json.dumps(launch(arguments.launch)))
        return
    until, rows = time.monotonic() + arguments.limit, []
    head = {
        "command": shlex.join(["python", "benchmarks/adoption/helion_examples.py", *sys.argv[1:]]),
        "store": "a service" if os.environ.get("TILEWRIGHT_URL") else "a folder",
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }

    def row(name: str) -> Row:
        left_s = until - time.monotonic()
        limit_s = min(left_s, 4 * arguments.seconds)
        return tried(name, arguments.examples, arguments.seconds, limit_s) if left_s > 0 else {"example": name}

    with ThreadPoolExecutor(arguments.at_once) as examples:
        for made in as_completed([examples.submit(row, name) for name in KERNELS]):
            rows.append(made.result())
            print(json.dumps(rows[-1]), flush=True)
            found = sum(row.get("second", {}).get("found") == 1 and not row["second"]["searches"] for row in rows)
            document = head | {"found_without_search": found, "rows": rows}
            arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
