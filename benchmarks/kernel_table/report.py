"""The rows of kernels.json as a Markdown table, geometric means, and which goals are met."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.kernels.catalogue import catalogue

Row = dict[str, Any]

_ASKED = (
    ("gemm", "fp32-fma"),
    ("gemv", "fp32-fma"),
    ("gemm", "fp32"),
    ("linear", "fp32"),
    ("gemm", "tf32"),
    ("gemm batched", "fp32"),
    ("gemm packed", "fp32"),
    ("linear packed", "fp32"),
    ("conv2d", "fp32"),
)
_COMPARED = ("normal", "uniform", "cancelling")

LARGE_BYTES = 256_000_000
"""From here on gemv's goal is a part of the bandwidth."""


@dataclass(frozen=True)
class Goal:
    """One sentence with its verdict; `met` is None where rows that it needs are missing."""

    text: str
    outcome: str
    met: bool | None

    def __str__(self) -> str:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        return f"- {verdict}: {self.text}: {self.outcome}"


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
    """Geometric means of the speed-up by kernel and accuracy, in every state that was timed."""
    lines = []
    for kernel, accuracy in dict.fromkeys(map(family, rows)):
        mine = [row for row in rows if family(row) == (kernel, accuracy)]
        for state in ("warm", "cold"):
            speedups = [row[state]["speedup"] for row in mine if row.get(state) and row[state]["speedup"]]
            if speedups:
                count = f"{len(speedups)} of {len(mine)}"
                lines.append(
                    f"{kernel} {accuracy}, {state} L2: geometric mean x{geometric_mean(speedups):.3f} of {count}"
                )
    return lines


def family(row: Row) -> tuple[str, str]:
    """The kernel, batches of it and operands packed ahead apart, and the accuracy: rows that have a mean together."""
    apart = " batched" if _is_batched(row) else " packed" if row["options"].get("packed_b") else ""
    return row["kernel"] + apart, row["accuracy"]


def _is_batched(row: Row) -> bool:
    """Whether it has a batch of products; convolutions always have a batch of images."""
    return "batch" in row["shape"] and "batch" not in catalogue().get(row["kernel"]).axes


def goals(rows: Sequence[Row], *, complete: bool) -> list[Goal]:
    """The goals for one H200, each with its result."""
    by_kind = {key: [row for row in rows if family(row) == key] for key in _ASKED}
    fma, gemv, split, layers, tf32, batched, packed, packed_layers, convolutions = by_kind.values()
    resnet = [row for row in convolutions if row["name"].startswith("conv") and "nchw" not in row["name"]]
    return [
        _mean_goal("gemm fp32-fma", fma, 1.10, complete=complete),
        _none_slower("gemm fp32-fma: none below 0.98 and significantly slower", fma, 0.98, complete=complete),
        *(_cube_goal("gemm fp32-fma", fma, size, 1.0) for size in (4096, 8192)),
        _mean_goal("gemv", gemv, 1.15, complete=complete),
        _none_slower("gemv: none significantly slower", gemv, math.inf, complete=complete),
        _faster_than_noise(gemv, {"m": 4096, "n": 8192}),
        *(_bandwidth_goal(row) for row in gemv if row.get("bytes_moved", 0) >= LARGE_BYTES),
        _mean_goal("gemm fp32", split, 1.9, complete=complete),
        _none_slower("gemm fp32: none significantly slower", split, math.inf, complete=complete),
        *(_cube_goal("gemm fp32", split, size, 2.6) for size in (4096, 8192)),
        _mean_goal("linear", layers, 1.2, complete=complete),
        _cube_goal("gemm tf32", tf32, 4096, 0.8),
        _mean_goal("gemm fp32 batched", batched, 2.0, complete=complete),
        _none_slower("gemm fp32 batched: none significantly slower", batched, math.inf, complete=complete),
        _cube_goal("gemm fp32 packed", packed, 8192, 4.1),
        _mean_goal("linear packed", packed_layers, 3.2, complete=complete),
        *(_view_goal(batched, row) for row in batched if row["name"].partition("/")[0].endswith("-view")),
        _mean_goal("conv2d, layers of ResNet-50", resnet, 2.5, complete=complete),
        _none_slower("conv2d: none significantly slower", convolutions, math.inf, complete=complete),
        _within_bound(rows, complete=complete),
        _no_worse_than_library(split, complete=complete),
    ]


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


def _mean_goal(kernel: str, rows: Sequence[Row], least: float, *, complete: bool) -> Goal:
    text = f"{kernel}: geometric mean >= {least:.2f}"
    speedups = [row["speedup"] for row in rows if row.get("speedup")]
    if not speedups:
        return Goal(text, "no row", None)
    mean = geometric_mean(speedups)
    whole = complete and len(speedups) == len(rows)
    return Goal(text, f"{mean:.3f} of {len(speedups)} rows", mean >= least if whole else None)


def _none_slower(text: str, rows: Sequence[Row], below: float, *, complete: bool) -> Goal:
    measured = [row for row in rows if row.get("speedup")]
    slower = [f"{r['name']} {r['speedup']:.3f}" for r in measured if r["speedup"] < below and r["speedup_ci"][1] < 1]
    whole = complete and bool(rows) and len(measured) == len(rows)
    return Goal(text, ", ".join(slower) or "none", False if slower else True if whole else None)


def _cube_goal(kernel: str, rows: Sequence[Row], size: int, least: float) -> Goal:
    row = _row_at(rows, {"m": size, "n": size, "k": size})
    text = f"{kernel}: >= {least:.2f} at {size} cubed"
    if row is None:
        return Goal(text, "no row", None)
    clocks = " at sustained clocks" if row.get("sustained") else ""
    return Goal(text, speedup(row) + clocks, row["speedup"] >= least)


def _view_goal(rows: Sequence[Row], view: Row) -> Goal:
    text = f"{view['name']}: within 3 % of the time of dense matrices"
    dense = next((row for row in rows if row["name"] == view["name"].replace("-view", "")), None)
    if dense is None or not (view.get("time_ms") and dense.get("time_ms")):
        return Goal(text, "no row", None)
    ratio = view["time_ms"] / dense["time_ms"]
    return Goal(text, f"{ratio:.3f} of it", ratio <= 1.03)


def _within_bound(rows: Sequence[Row], *, complete: bool) -> Goal:
    """Over every kind of inputs, and for the library alike, but for cuDNN, whose transforms may cost digits."""
    text = "error: bound ratio <= 2 on every kind of inputs"
    named = [
        (row["name"], whose, row[f"{prefix}bound_ratio"])
        for row in rows
        for whose, prefix in (("ours", ""), ("the library", "library_"))
        if row.get(f"{prefix}bound_ratio") is not None and (not prefix or row["kernel"] != "conv2d")
    ]
    if not named:
        return Goal(text, "no row", None)
    over = [f"{name} {whose} {ratio:.2f}" for name, whose, ratio in named if not ratio <= 2]
    name, whose, worst = max(named, key=lambda one: one[2])
    return Goal(text, ", ".join(over) or f"at most {worst:.2f} ({name}, {whose})", False if over else complete or None)


def _no_worse_than_library(rows: Sequence[Row], *, complete: bool) -> Goal:
    text = f"gemm fp32: error not above the library's on {', '.join(_COMPARED)} inputs"
    pairs = [
        (row["name"], kind, row["bound_ratios"][kind], row["library_bound_ratios"][kind])
        for row in rows
        for kind in _COMPARED
        if kind in row.get("bound_ratios", {}) and kind in row.get("library_bound_ratios", {})
    ]
    if not pairs:
        return Goal(text, "no row", None)
    above = [f"{name} {kind} {ours:.3f} > {theirs:.3f}" for name, kind, ours, theirs in pairs if ours > theirs]
    return Goal(text, ", ".join(above) or f"in {len(pairs)} comparisons", False if above else complete or None)


def _faster_than_noise(rows: Sequence[Row], shape: dict[str, int]) -> Goal:
    row = _row_at(rows, shape)
    text = f"gemv: {tuple(shape.values())} faster by more than its interval"
    return Goal(text, "no row", None) if row is None else Goal(text, speedup(row), row["speedup_ci"][0] > 1.0)


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


def speedup(row: Row) -> str:
    """Median of the rounds' ratios and its 95 % interval."""
    low, high = row["speedup_ci"]
    return f"{row['speedup']:.3f} [{low:.3f}, {high:.3f}]"


def rate(row: Row) -> str:
    """Work a second: of gemv, which only memory holds up, bytes."""
    return f"{row['gflops'] / 1e3:.1f} TFLOP/s" if row["kernel"] != "gemv" else f"{row['gb_per_s'] / 1e3:.2f} TB/s"


def layout(row: Row) -> str:
    """Sizes, ahead of them the batch; flags that are set, and what else is not at its default."""
    axes = catalogue().get(row["kernel"]).axes
    flags = [name for name, value in row["options"].items() if value is True and name != "beta_zero"]
    views = [f"{axis} {size}" for axis, size in row["shape"].items() if axis not in axes and axis != "batch"]
    views += [word for name, word in row["options"].items() if name == "layout" and word != "nhwc"]
    batch = f"{row['shape']['batch']} x " if _is_batched(row) else ""
    in_brackets = f" ({', '.join(flags + views)})" if flags or views else ""
    return batch + ", ".join(str(row["shape"][axis]) for axis in axes) + in_brackets


def _library(row: Row) -> str:
    """Which call it was, without the version that all rows share."""
    if not row["library"]:
        return "none"
    return str(row["library"]).partition("(")[2].partition(",")[0]


def _other(row: Row) -> str:
    other = row["cold" if row["l2"] == "warm" else "warm"]
    return "" if other["speedup"] is None else f"{other['speedup']:.3f}"


def _error(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


COLUMNS: list[tuple[str, Callable[[Row], str]]] = [
    ("kernel", lambda row: row["kernel"] + ("" if row["dtype"] == "float32" else f" {row['dtype']}")),
    ("accuracy", lambda row: row["accuracy"]),
    ("shape", layout),
    ("variant", lambda row: row["variant"]),
    ("L2", lambda row: row["l2"]),
    ("time (ms)", lambda row: f"{row['time_ms']:.4g}"),
    ("rate", rate),
    ("% of roof", lambda row: _percent(row["percent_of_roof"])),
    ("library (ms)", lambda row: "" if row["library_ms"] is None else f"{row['library_ms']:.4g}"),
    ("which", _library),
    ("x library [95 %]", lambda row: "" if row["speedup"] is None else speedup(row)),
    ("x library, other L2", _other),
    ("error / bound", lambda row: _error(row["bound_ratio"])),
    ("library's", lambda row: _error(row.get("library_bound_ratio"))),
    ("trials", lambda row: str(row["trials"])),
]
_WORDS = {"kernel", "accuracy", "shape", "variant", "L2", "which"}


def _line(row: Row) -> str:
    if "reason" in row:
        cells = [
            row["kernel"],
            row["accuracy"],
            layout(row),
            f"failed: {row['reason']}".replace("|", "/").replace("\n", " ")[:200],
        ]
        return "| " + " | ".join(cells + [""] * (len(COLUMNS) - len(cells))) + " |"
    return "| " + " | ".join(cell(row) for _, cell in COLUMNS) + " |"
