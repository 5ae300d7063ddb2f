"""Tunes the main job's problems through the HTTP API of a running service, and exports what the API then answers.

tilewright up                                                        # in one terminal, on the GPU host
python benchmarks/main_job.py --out benchmarks/results/h200/main_job.json
python benchmarks/main_job.py --table benchmarks/results/h200/main_job.json    # the table of docs/results.md
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from documents.file import now, put_into, write

from tilewright.service.client.http import Client
from tilewright.service.operations.requests import BudgetRequest, JobRequest

TRIALS = 200
SECONDS = 90.0

GEMM = [(1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (1023, 1025, 1027), (256, 100, 784)]
GEMV = [(4096, 8192), (4095, 8191), (16384, 16384)]


@dataclass(frozen=True)
class Entry:
    """One job of the table."""

    kernel: str
    shape: dict[str, int]
    compiler: str = "nvrtc"

    def request(self, device_model: str, trials: int) -> JobRequest:
        """The job, with the same budget as every other."""
        cuda = not device_model.startswith("cpu:")
        return JobRequest(
            kernel=self.kernel,
            shape=self.shape,
            device_model=device_model,
            budget=BudgetRequest(trials=trials, seconds=SECONDS),
            compiler=self.compiler if cuda else None,
        )


def entries() -> list[Entry]:
    """Every problem with NVRTC, then one job of each kernel with PyCUDA's own compiler (nvcc)."""
    gemm = [Entry("gemm", {"m": m, "n": n, "k": k}) for m, n, k in GEMM]
    gemv = [Entry("gemv", {"m": m, "n": n}) for m, n in GEMV]
    return [
        *gemm,
        *gemv,
        Entry(gemm[0].kernel, gemm[0].shape, "pycuda"),
        Entry(gemv[0].kernel, gemv[0].shape, "pycuda"),
    ]


def run(client: Client, entry: Entry, device_model: str, trials: int) -> dict[str, Any]:
    """One row: the finished job's result and what `best` answers for its problem."""
    begun = time.monotonic()
    job, _ = client.request_job(entry.request(device_model, trials))
    while job.state in {"queued", "running"}:
        time.sleep(0.2)
        job = client.job(job.id)
    if job.state != "done" or job.result is None:
        sys.exit(f"{entry}: the job is {job.state}: {job.error}")
    return {
        "kernel": entry.kernel,
        "shape": entry.shape,
        "dtype": "float32",
        "compiler": entry.compiler,
        "trials": job.trials_done,
        "search_s": round(job.elapsed_s, 2),
        "wall_s": round(time.monotonic() - begun, 2),
        "result": job.result,
        "best": client.best(entry.kernel, device_model, entry.shape, "float32", {}).model_dump(mode="json"),
    }


def export(client: Client, trials: int, path: Path) -> None:
    """Writes the table's data, anew after every row; the file is whole at every moment."""
    model = next((m for m in client.device_models() if m.kind == "cuda"), None) or client.device_models()[0]
    document: dict[str, Any] = {
        "written_at": now(),
        "command": f"python benchmarks/main_job.py --trials {trials} --out {path.name}",
        "device_model": model.model_dump(mode="json"),
        "rows": [],
    }
    for entry in entries():
        row = run(client, entry, model.slug, trials)
        print(line(row), file=sys.stderr, flush=True)
        document["rows"].append(row)
        document.setdefault("environment", row["best"]["environment"])
        write(path, document)


def rate(row: dict[str, Any]) -> str:
    """TFLOP/s of a gemm, TB/s of a gemv: what bounds each."""
    seconds, sizes = row["result"]["best"]["time_ms"] * 1e-3, row["shape"]
    if row["kernel"] == "gemm":
        return f"{2 * sizes['m'] * sizes['n'] * sizes['k'] / seconds / 1e12:.2f} TFLOP/s"
    return f"{4 * (sizes['m'] * sizes['n'] + sizes['m'] + sizes['n']) / seconds / 1e12:.2f} TB/s"


def roof(row: dict[str, Any]) -> str:
    """Of the answer that the API gives, where it is of this job's compiler."""
    best = row["best"]
    same = best["environment"]["compiler"] == row["compiler"] and best["roof_ratio"] is not None
    return f"{100 * best['roof_ratio']:.0f}" if same else ""


def speedup(row: dict[str, Any]) -> str:
    """Library time over ours; bold where ours is faster beyond the noise, plain where the library is."""
    library = row["result"]["library"]
    if not library:
        return "none"
    ratio = library["time_ms"] / row["result"]["best"]["time_ms"]
    return f"{ratio:.2f}" + (" (use cuBLAS)" if library["faster"] else "")


def gain(row: dict[str, Any], name: str) -> str:
    """A gain to two digits."""
    value = row["result"][name]
    return f"{value:.2f}" if value is not None else "failed"


Column = tuple[str, Callable[[dict[str, Any]], str]]

COLUMNS: list[Column] = [
    ("kernel", lambda row: row["kernel"]),
    ("shape", lambda row: ", ".join(str(size) for size in row["shape"].values())),
    ("compiler", lambda row: row["compiler"]),
    ("variant", lambda row: row["result"]["best"]["configuration"]["variant"]),
    ("time (ms)", lambda row: f"{row['result']['best']['time_ms']:.4g}"),
    ("rate", rate),
    ("% of roof", roof),
    ("cuBLAS (ms)", lambda row: f"{row['result']['library']['time_ms']:.4g}" if row["result"]["library"] else "none"),
    ("x cuBLAS", speedup),
    ("x default", lambda row: gain(row, "gain_over_default")),
    ("x slowest", lambda row: gain(row, "gain_over_slowest")),
]


def line(row: dict[str, Any]) -> str:
    """One row as a Markdown table row."""
    return "| " + " | ".join(cell(row) for _, cell in COLUMNS) + " |"


def table(document: dict[str, Any]) -> str:
    """The whole table as Markdown."""
    head = "| " + " | ".join(name for name, _ in COLUMNS) + " |"
    rule = "|---|---|---|---|" + "---:|" * (len(COLUMNS) - 4)
    return "\n".join([head, rule, *map(line, document["rows"])])


def caption(document: dict[str, Any]) -> str:
    """The caption of the figures: device, environment, library, budget, date and command."""
    environment, rows = document["environment"], document["rows"]
    libraries = sorted({r["result"]["library"]["name"].partition(" (")[0] for r in rows if r["result"]["library"]})
    name, day, trials = document["device_model"]["name"], document["written_at"][:10], rows[0]["trials"]
    return (
        f"float32 on one {name}, driver {environment['driver']}, CUDA {environment['toolkit']}, "
        f"{environment['runtime']}; "
        f"{trials} trials a problem; {day}. Times are medians of the finals: interleaved rounds with "
        f"{', '.join(libraries)} in full FP32 (TF32 off), `gemm` with warm and `gemv` with cold L2. "
        "Made by `make bench-main-job`; the data are in [main_job.json](../benchmarks/results/h200/main_job.json)."
    )


def readme_section(document: dict[str, Any]) -> str:
    """The table and its caption, between the page's markers."""
    return f"{table(document)}\n\n{caption(document)}\n"


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--readme", type=Path, help="results whose table goes into docs/results.md")
    chosen = parser.parse_args()
    if chosen.out:
        with Client(chosen.url) as client:
            export(client, chosen.trials, chosen.out)
    if chosen.readme:
        document = json.loads(chosen.readme.read_text(encoding="utf-8"))
        put_into(Path("docs/results.md"), "main_job", readme_section(document))
    shown = chosen.readme or chosen.out
    if shown:
        print(table(json.loads(shown.read_text(encoding="utf-8"))))
    else:
        parser.print_help()


if __name__ == "__main__":
    main()
