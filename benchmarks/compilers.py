"""Times the winners of both compilers under both, interleaved in one process, to see whose a difference is.

    python benchmarks/compilers.py --results benchmarks/results/h200/main_job.json [--out FILE]

Run it on the GPU alone: stop the worker first.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner import statistics
from tilewright.tuner.device import L2, Device
from tilewright.tuner.devices import DeviceSpec, find_device

ROUNDS = 21
WARM_UP_ROUNDS = 2


def compare(devices: dict[str, Device], rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per winner: its time under each compiler, and the ratio nvcc over NVRTC with its interval."""
    first = next(iter(rows.values()))
    kernel = catalogue().get(first["kernel"])
    problem = kernel.problem(first["shape"], first["dtype"])
    l2: L2 = "cold" if kernel.ranking_l2 == "cold" else "warm"
    benches = {name: device.bench(kernel, problem, seed=1) for name, device in devices.items()}
    winners = {name: Configuration.from_json(row["result"]["best"]["configuration"]) for name, row in rows.items()}
    runs = {
        (winner, compiler): (bench, bench.compile(configuration))
        for winner, configuration in winners.items()
        for compiler, bench in benches.items()
    }
    times: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        for key, (bench, executable) in runs.items():
            sample = statistics.median(bench.sample(executable, l2, 3))
            if number >= WARM_UP_ROUNDS:
                times[key].append(sample)
    for bench in benches.values():
        bench.close()
    found = []
    for winner, configuration in winners.items():
        nvrtc, pycuda = times[winner, "nvrtc"], times[winner, "pycuda"]
        ratio, interval = statistics.ratio_interval(pycuda, nvrtc)
        found.append(
            {
                "problem": str(problem),
                "winner_of": winner,
                "configuration": configuration.as_json(),
                "nvrtc_ms": statistics.median(nvrtc),
                "pycuda_ms": statistics.median(pycuda),
                "pycuda_over_nvrtc": ratio,
                "ci": [interval.low, interval.high],
                "registers": {name: runs[winner, name][1].resources.registers for name in devices},
            }
        )
    return found


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    by_problem: dict[str, dict[str, dict[str, Any]]] = {}
    for row in json.loads(chosen.results.read_text(encoding="utf-8"))["rows"]:
        by_problem.setdefault(f"{row['kernel']} {row['shape']}", {})[row["compiler"]] = row
    uuid = find_device("cuda:0").uuid
    devices = {"nvrtc": DeviceSpec(uuid, "nvrtc").open(), "pycuda": DeviceSpec(uuid, "pycuda").open()}
    rows = [row for rows in by_problem.values() if len(rows) == len(devices) for row in compare(devices, rows)]
    for device in devices.values():
        device.close()
    print("| problem | winner of | NVRTC (ms) | nvcc (ms) | nvcc / NVRTC | 95 % interval | registers |")
    print("|---|---|---:|---:|---:|---|---|")
    for row in rows:
        print(
            f"| {row['problem']} | {row['winner_of']} | {row['nvrtc_ms']:.4g} | {row['pycuda_ms']:.4g} "
            f"| {row['pycuda_over_nvrtc']:.3f} | {row['ci'][0]:.3f} to {row['ci'][1]:.3f} "
            f"| {row['registers']['nvrtc']}, {row['registers']['pycuda']} |"
        )
    if chosen.out:
        chosen.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
