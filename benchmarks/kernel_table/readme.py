"""The tables of kernels.json in README.md and docs/results.md: what each arithmetic comes to, and some rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from documents.file import put_into
from kernel_table.report import Row, family, geometric_mean, layout, rate, speedup

PICKED = (
    "square-512",
    "square-1024",
    "square-4096",
    "square-8192",
    "odd-1023x1025x1027",
    "llama-gate-16",
    "llama-gate-2048",
    "resnet-conv5-3x3",
    "deep-32x32x65536",
    "gemv-4096x8192",
    "gemv-16384x16384",
    "gemv-4095x8191",
    "linear-llama-gate-16",
    "linear-llama-gate-2048",
    "batch-512x64x64x64",
    "batch-32x512x512x128",
    "conv2-3x3-32",
    "conv4-reduce-32",
    "conv4-3x3-8-nchw",
)
"""Entries of the suite whose rows are shown, in every arithmetic that they were measured in."""


def readme_sections(document: dict[str, Any]) -> dict[str, str]:
    """The text between the markers: in README.md the summary with the caption, in docs/results.md the rows."""
    rows = [row for row in document["rows"] if row.get("speedup")]
    summary = [*_summary(rows), "", caption(document), ""]
    return {"kernels": "\n".join(summary), "kernel rows": "\n".join([*_picked(rows), ""])}


def caption(document: dict[str, Any]) -> str:
    """The caption of the figures: device, environment, library, budget, date and command."""
    environment = document["environment"]
    libraries = sorted({str(r["library"]).partition(" (")[0] for r in document["rows"] if r.get("library")})
    return (
        f"One {document['device_model']['name']}, driver {environment['driver']}, CUDA {environment['toolkit']}; "
        f"{_search_seconds(document)} s of search a row (more where a launch takes long); "
        f"{_days(document)}. Speed-ups are medians of paired, "
        f"interleaved rounds with the fastest call of {', '.join(libraries)} (TF32 off, but for accuracy tf32), with "
        "warm L2, but cold L2 for `gemv`; `linear` is held against the library's product followed by "
        "one kernel for bias and activation. Made by `make bench-kernels`; every row is in "
        "[kernels.json](benchmarks/results/h200/kernels.json)."
    )


def _days(document: dict[str, Any]) -> str:
    """When the rows were measured: a day, or the first and the last."""
    days = sorted({str(row["measured_at"])[:10] for row in document["rows"] if "measured_at" in row})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _search_seconds(document: dict[str, Any]) -> str:
    """What was asked for: of all rows in one run, or the least of several runs and this document's own."""
    own = float(document["budget"]["seconds"])
    least = min((float(row["budget"]["seconds"]) for row in document["rows"] if "budget" in row), default=own)
    return f"{least:g} to {own:g}" if least < own else f"{own:g}"


def put_sections(page: Path, document: dict[str, Any]) -> None:
    """Renews each section that the page has; raises ValueError where it has none."""
    text = page.read_text(encoding="utf-8")
    sections = {name: made for name, made in readme_sections(document).items() if f"<!-- {name}:" in text}
    if not sections:
        raise ValueError(f"{page} has no section of kernels.json")
    for name, section in sections.items():
        put_into(page, name, section)


def _summary(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| kernel | accuracy | shapes | x library, geometric mean | lowest | highest |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for kernel, accuracy in dict.fromkeys(map(family, rows)):
        speedups = [row["speedup"] for row in rows if family(row) == (kernel, accuracy)]
        numbers = f"{geometric_mean(speedups):.2f} | {min(speedups):.2f} | {max(speedups):.2f}"
        lines.append(f"| {kernel} | {accuracy} | {len(speedups)} | {numbers} |")
    return lines


def _picked(rows: Sequence[Row]) -> list[str]:
    names = (
        "kernel",
        "shape",
        "accuracy",
        "variant",
        "time (ms)",
        "rate",
        "x library [95 %]",
        "error / bound",
        "library's",
    )
    lines = ["| " + " | ".join(names) + " |", "|---|---|---|---|" + "---:|" * 5]
    for name in PICKED:
        lines += [_line(row) for row in rows if row["name"].partition("/")[0] == name]
    return lines


def _line(row: Row) -> str:
    theirs = row.get("library_bound_ratio")
    cells = (
        *(
            row["kernel"],
            layout(row),
            row["accuracy"],
            row["variant"],
            f"{row['time_ms']:.4g}",
            rate(row),
            speedup(row),
        ),
        *(f"{row['bound_ratio']:.2f}", "" if theirs is None else f"{theirs:.2f}"),
    )
    return "| " + " | ".join(cells) + " |"
