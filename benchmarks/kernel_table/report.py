"""The rows of kernels.json as a Markdown table, and geometric means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.kernels.catalogue import catalogue

Row = dict[str, Any]


def report(document: dict[str, Any], expected: Sequence[str]) -> str:
    """Table and geometric means; `expected` names every row there should be."""
    rows: list[Row] = document["rows"]
    missing = [name for name in expected if name not in {row["name"] for row in rows}]
    lines = [table(rows), "", _bandwidth_line(document.get("bandwidth")), "", *means(rows)]
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


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


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
