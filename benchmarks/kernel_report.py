"""The rows of kernels.json as a Markdown table, geometric means, and which goals are met."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

LARGE_BYTES = 256_000_000
"""From here on gemv's goal is a part of the bandwidth."""


@dataclass(frozen=True)
class Goal:
    """One sentence with its verdict; `met` is None where rows that it needs are missing."""

    text: str
    found: str
    met: bool | None

    def __str__(self) -> str:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        return f"- {verdict}: {self.text}: {self.found}"


def report(document: dict[str, Any], expected: Sequence[str]) -> str:
    """Table, geometric means and goals; `expected` names every row there should be."""
    rows: list[Row] = document["rows"]
    missing = [name for name in expected if name not in {row["name"] for row in rows}]
    lines = [table(rows), "", _bandwidth_line(document.get("bandwidth")), "", *means(rows), ""]
    lines += [str(goal) for goal in goals(rows, complete=not missing)]
    return "\n".join([*lines, *([f"Rows missing: {', '.join(missing)}"] if missing else [])])


def table(rows: Sequence[Row]) -> str:
    """A Markdown table; a failure's row holds its reason."""
    head = "| " + " | ".join(name for name, _ in COLUMNS) + " |"
    rule = "|" + "".join("---|" if name in _WORDS else "---:|" for name, _ in COLUMNS)
    return "\n".join([head, rule, *(_line(row) for row in rows)])


def means(rows: Sequence[Row]) -> list[str]:
    """Geometric means of the speed-up by kernel and dtype, in both L2 states."""
    lines = []
    for kernel, dtype in sorted({(row["kernel"], row["dtype"]) for row in rows}):
        mine = [row for row in rows if (row["kernel"], row["dtype"]) == (kernel, dtype)]
        for l2 in ("warm", "cold"):
            speedups = [row[l2]["speedup"] for row in mine if row.get(l2) and row[l2]["speedup"]]
            if speedups:
                mean = geometric_mean(speedups)
                lines.append(f"{kernel} {dtype}, {l2} L2: geometric mean x{mean:.3f} of {len(speedups)} of {len(mine)}")
    return lines


def goals(rows: Sequence[Row], *, complete: bool) -> list[Goal]:
    """What was asked of float32 on one H200, each with what was found."""
    gemm = [row for row in rows if row["kernel"] == "gemm" and row["dtype"] == "float32"]
    gemv = [row for row in rows if row["kernel"] == "gemv" and row["dtype"] == "float32"]
    return [
        _mean_goal("gemm", gemm, 1.10, complete=complete),
        _none_slower("gemm: none below 0.98 and significantly slower", gemm, 0.98, complete=complete),
        *(_at_least_level(gemm, size) for size in (4096, 8192)),
        _mean_goal("gemv", gemv, 1.15, complete=complete),
        _none_slower("gemv: none significantly slower", gemv, math.inf, complete=complete),
        _faster_than_noise(gemv, {"m": 4096, "n": 8192}),
        *(_bandwidth_goal(row) for row in gemv if row.get("bytes_moved", 0) >= LARGE_BYTES),
    ]


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


def _mean_goal(kernel: str, rows: Sequence[Row], wanted: float, *, complete: bool) -> Goal:
    text = f"{kernel}: geometric mean >= {wanted:.2f}"
    speedups = [row["speedup"] for row in rows if row.get("speedup")]
    if not speedups:
        return Goal(text, "no row", None)
    mean = geometric_mean(speedups)
    whole = complete and len(speedups) == len(rows)
    return Goal(text, f"{mean:.3f} of {len(speedups)} rows", mean >= wanted if whole else None)


def _none_slower(text: str, rows: Sequence[Row], below: float, *, complete: bool) -> Goal:
    measured = [row for row in rows if row.get("speedup")]
    slower = [f"{r['name']} {r['speedup']:.3f}" for r in measured if r["speedup"] < below and r["speedup_ci"][1] < 1]
    whole = complete and bool(rows) and len(measured) == len(rows)
    return Goal(text, ", ".join(slower) or "none", False if slower else True if whole else None)


def _at_least_level(rows: Sequence[Row], size: int) -> Goal:
    row = _row_at(rows, {"m": size, "n": size, "k": size})
    text = f"gemm: >= 1.00 at {size} cubed"
    return Goal(text, "no row", None) if row is None else Goal(text, _speedup(row), row["speedup"] >= 1.0)


def _faster_than_noise(rows: Sequence[Row], shape: dict[str, int]) -> Goal:
    row = _row_at(rows, shape)
    text = f"gemv: {tuple(shape.values())} faster by more than its interval"
    return Goal(text, "no row", None) if row is None else Goal(text, _speedup(row), row["speedup_ci"][0] > 1.0)


def _bandwidth_goal(row: Row) -> Goal:
    text = f"gemv: {tuple(row['shape'].values())} >= 95 % of the read bandwidth of the same run"
    bandwidth = row.get("bandwidth")
    if not bandwidth:
        return Goal(text, "the bandwidth was not measured", None)
    part = row["gb_per_s"] / bandwidth["read_gb_per_s"]
    sheet = row["gb_per_s"] / bandwidth["datasheet_gb_per_s"]
    found = (
        f"{row['gb_per_s']:.0f} GB/s, {part:.1%} of {bandwidth['read_gb_per_s']:.0f}, {sheet:.1%} of the data sheet's"
    )
    return Goal(text, found, part >= 0.95)


def _row_at(rows: Sequence[Row], shape: dict[str, int]) -> Row | None:
    plain = (row for row in rows if row["shape"] == shape and row.get("speedup"))
    return next(plain, None)


def _bandwidth_line(bandwidth: dict[str, Any] | None) -> str:
    if not bandwidth:
        return "Bandwidth was not measured."
    return (
        f"Memory in the same run: reading {bandwidth['read_gb_per_s']:.0f} GB/s (1 GiB; 256 MiB: "
        f"{bandwidth['read_256mib_gb_per_s']:.0f}), copying {bandwidth['copy_gb_per_s']:.0f} GB/s (read and written "
        f"bytes counted); the data sheet says {bandwidth['datasheet_gb_per_s']:.0f}."
    )


def _speedup(row: Row) -> str:
    low, high = row["speedup_ci"]
    return f"{row['speedup']:.3f} [{low:.3f}, {high:.3f}]"


def _rate(row: Row) -> str:
    return f"{row['gflops'] / 1e3:.1f} TFLOP/s" if row["kernel"] == "gemm" else f"{row['gb_per_s'] / 1e3:.2f} TB/s"


def _layout(row: Row) -> str:
    flags = [name for name, value in row["options"].items() if value is True and name != "beta_zero"]
    return ", ".join(str(size) for size in row["shape"].values()) + (f" ({', '.join(flags)})" if flags else "")


def _library(row: Row) -> str:
    """Which call it was, without the version that all rows share."""
    if not row["library"]:
        return "none"
    return str(row["library"]).partition("(")[2].partition(",")[0]


def _other(row: Row) -> str:
    other = row["cold" if row["l2"] == "warm" else "warm"]
    return "" if other["speedup"] is None else f"{other['speedup']:.3f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


COLUMNS: list[tuple[str, Callable[[Row], str]]] = [
    ("kernel", lambda row: row["kernel"] + ("" if row["dtype"] == "float32" else f" {row['dtype']}")),
    ("shape", _layout),
    ("variant", lambda row: row["variant"]),
    ("L2", lambda row: row["l2"]),
    ("time (ms)", lambda row: f"{row['time_ms']:.4g}"),
    ("rate", _rate),
    ("% of roof", lambda row: _percent(row["percent_of_roof"])),
    ("library (ms)", lambda row: "" if row["library_ms"] is None else f"{row['library_ms']:.4g}"),
    ("which", _library),
    ("x library [95 %]", lambda row: "" if row["speedup"] is None else _speedup(row)),
    ("x library, other L2", _other),
    ("error / bound", lambda row: f"{row['bound_ratio']:.2f}"),
    ("trials", lambda row: str(row["trials"])),
]
_WORDS = {"kernel", "shape", "variant", "L2", "which"}


def _line(row: Row) -> str:
    if "reason" in row:
        cells = [row["kernel"], _layout(row), f"failed: {row['reason']}".replace("|", "/").replace("\n", " ")[:200]]
        return "| " + " | ".join(cells + [""] * (len(COLUMNS) - len(cells))) + " |"
    return "| " + " | ".join(cell(row) for _, cell in COLUMNS) + " |"
