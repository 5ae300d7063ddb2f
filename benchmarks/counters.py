"""The limits of the winners by the profiler's counters: ncu on the configurations that kernels.json holds.

    python benchmarks/counters.py [--file benchmarks/results/h200/kernels.json] [--entry square-4096]

Starts itself under ncu once an entry (`--launch`), profiles the last of a few launches, and prints a small table.
Clocks are left alone (--clock-control none). ncu empties the caches before the launch that it profiles.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kernel_table.suite import Entry, read_suite

from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.local import DeviceSpec, find_device

ENTRIES = ("square-4096/fp32-fma", "gemv-16384x16384")
LAUNCHES = 3  # the last one is profiled

METRICS = {
    "time": "gpu__time_duration.sum",
    "issue slots in use (%)": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "FMA pipe (%)": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "shared memory pipe (%)": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "bank conflicts, loads": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "bank conflicts, stores": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "shared wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "L2 throughput (%)": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "DRAM throughput (%)": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM read": "dram__bytes_read.sum",
    "registers a thread": "launch__registers_per_thread",
    "occupancy, theoretical (%)": "sm__maximum_warps_per_active_cycle_pct",
    "occupancy, achieved (%)": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "waves": "launch__waves_per_multiprocessor",
}


def main() -> int:
    """Reads the command line; ncu's status where it failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=Path(__file__).with_name("results") / "h200" / "kernels.json")
    parser.add_argument("--entry", action="append", help=f"instead of {', '.join(ENTRIES)}; may be repeated")
    parser.add_argument("--json", type=Path, help="also write the numbers there")
    parser.add_argument("--launch", action="store_true", help="launch the one entry in this process; for ncu")
    arguments = parser.parse_args()
    rows = {row["name"]: row for row in json.loads(arguments.file.read_text(encoding="utf-8"))["rows"]}
    names = arguments.entry or list(ENTRIES)
    missing = [name for name in names if "configuration" not in rows.get(name, {})]
    if missing:
        sys.exit(f"{arguments.file} has no configuration of {', '.join(missing)}: run make bench-kernels first")
    entries = {entry.row: entry for entry in read_suite()}
    if arguments.launch:
        launch(entries[names[0]], rows[names[0]])
        return 0
    counters = {name: profile(name, entries[name].declared.entry, arguments.file) for name in names}
    if arguments.json:
        arguments.json.write_text(json.dumps(counters, indent=1) + "\n", encoding="utf-8")
    print(table(counters, rows))
    return 0


def launch(entry: Entry, row: dict[str, Any]) -> None:
    """Launches the row's configuration a few times; ends the program where a result is wrong."""
    device = DeviceSpec(find_device("cuda:0").uuid).open()
    bench = device.bench(entry.declared, entry.problem, 1)
    executable = bench.compile(Configuration.from_json(row["configuration"]))
    for _ in range(LAUNCHES):
        verification = bench.verify(executable)
        if verification.wrong:
            sys.exit(verification.message())
    bench.close()
    device.close()


def profile(name: str, function: str, file: Path) -> dict[str, str]:
    """The metrics by their names here, with units; ends the program with ncu's message where it cannot profile."""
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base"]
    command += ["--metrics", ",".join(METRICS.values()), "--kernel-name", function, "--launch-skip", str(LAUNCHES - 1)]
    command += ["--launch-count", "1", sys.executable, __file__, "--launch", "--entry", name, "--file", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        sys.exit(f"ncu ended with status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return read_counters(done.stdout)


def read_counters(text: str) -> dict[str, str]:
    """The metrics by their names here, of ncu's raw page as CSV: names, units, values, after its own messages."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None or len(lines) < start + 3:
        sys.exit(f"ncu profiled nothing:\n{text[-2000:]}")
    names, units, values = csv.reader(lines[start : start + 3])
    by_name = {name: f"{value} {unit}".strip() for name, unit, value in zip(names, units, values, strict=True)}
    return {label: by_name.get(metric, "not there").removesuffix(" %") for label, metric in METRICS.items()}


def table(counters: dict[str, dict[str, str]], rows: dict[str, Any]) -> str:
    """A Markdown table, a column an entry."""
    lines = ["| | " + " | ".join(counters) + " |", "|---|" + "---:|" * len(counters)]
    lines.append("| variant | " + " | ".join(rows[name]["variant"] for name in counters) + " |")
    lines += [f"| {label} | " + " | ".join(numbers[label] for numbers in counters.values()) + " |" for label in METRICS]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
