"""The network's table as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def table(document: Mapping[str, Any]) -> str:
    """The rows, the caption, and what the steps had no variant for."""
    lines = [
        "| way | kernels | sum of kernels (us) | over eager | a pass (us) | with transfers (us) | error | accuracy |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(line(row) for row in document["rows"]),
        "",
        *verdict(document["rows"]),
        caption(document),
    ]
    for row in document["rows"]:
        if row.get("absent"):
            lines += ["", f"{row['label']}: no such variant for {', '.join(row['absent'])}, where the tuned one runs."]
    return "\n".join(lines)


def verdict(rows: Sequence[Row]) -> list[str]:
    """How the tuned way compares with each of PyTorch's, by medians: sums of kernels, and whole passes."""
    by_name = {row["name"]: row for row in rows}
    tuned = by_name.get("tuned")
    others = [row for row in rows if row["name"].startswith("torch_")]
    if tuned is None or not others:
        return []
    parts = []
    for row in others:
        kernels, passed = (row[key]["median"] / tuned[key]["median"] for key in ("kernels_us", "pass_us"))
        parts.append(f"{row['label'].removeprefix('PyTorch, ')} {kernels:.2f} ({passed:.2f})")
    return [f"Times as long as the tuned way, by the sum of kernels (by a pass): {'; '.join(parts)}.", ""]


def line(row: Row) -> str:
    """One row."""
    ratio = row["times_eager"]
    cells = (
        row["label"],
        f"{row['kernels']:g}",
        figure(row["kernels_us"]),
        f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
        figure(row["pass_us"]),
        figure(row["with_transfers_us"]),
    )
    return "| " + " | ".join([*cells, f"{row['max_error']:.1e}", f"{row['accuracy']:.4f}"]) + " |"


def figure(times: Mapping[str, float]) -> str:
    """A median with half its 95 % interval."""
    return f"{number(times['median'])} ± {(times['high'] - times['low']) / 2:.2g}"


def number(value: float) -> str:
    """Four digits, no exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def caption(document: Mapping[str, Any]) -> str:
    """Device, versions, date and command."""
    environment, torch = document["environment"], document["torch"]
    sizes = "-".join(map(str, document["sizes"]))
    return (
        f"{sizes}, batch {document['batch']}, float32. One {document['device']}, driver {environment['driver']}, CUDA "
        f"{environment['toolkit']}; PyTorch {torch['version']}, matmul precision {torch['matmul_precision']}. "
        f"{document['written_at'][:10]}, `{document['command']}`. Medians over "
        "interleaved rounds with half the 95 % interval of the median; error: "
        "the worst of a probability against float64; accuracy: on the batch."
    )
