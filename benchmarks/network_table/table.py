"""The network's table as Markdown, and its place in docs/network.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- network: made by `make bench-network`, not by hand -->\n", "<!-- /network -->"

Row = Mapping[str, Any]


def table(document: Mapping[str, Any]) -> str:
    """The rows, the caption, and what the steps had no variant for."""
    if "torch" not in document:
        return table_of_cpu(document)
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


def table_of_cpu(document: Mapping[str, Any]) -> str:
    """The rows of a machine without a GPU: whole passes by the clock, and no ratio to what ran elsewhere."""
    rows = [
        f"| {row['label']} | {figure(row['pass_us'])} | {row['max_error']:.1e} | {row['accuracy']:.4f} |"
        for row in document["rows"]
    ]
    sizes = "-".join(map(str, document["sizes"]))
    notes = "; ".join(f"{row['label']}: {row['note']}" for row in document["rows"] if row.get("note"))
    words = (
        f"**CPU device**: {document['device']}, {document['environment']['compiler']} "
        f"{document['environment']['compiler_version']}. {sizes}, batch {document['batch']}, float32; "
        f"{document['cpu_cores']} cores ({notes}). {document['written_at'][:10]}, `{document['command']}`. Wall time, "
        "medians with half the 95 % interval of the median. The CUDA sources run on one thread: the rows show that the "
        "steps are right, not what they gain on a GPU."
    )
    return "\n".join(["| way | a pass (us) | error | accuracy |", "|---|---:|---:|---:|", *rows, "", words])


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
    """One row; a CPU has neither kernels nor transfers."""
    if "kernels_us" not in row:
        cells = [row["label"], "", "", "", figure(row["pass_us"]), "none needed"]
    else:
        ratio = row["times_eager"]
        cells = [
            row["label"],
            f"{row['kernels']:g}",
            figure(row["kernels_us"]),
            f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
            figure(row["pass_us"]),
            figure(row["with_transfers_us"]),
        ]
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
    notes = "; ".join(f"{row['label']}: {row['note']}" for row in document["rows"] if row.get("note"))
    return (
        f"{sizes}, batch {document['batch']}, float32. One {document['device']}, driver {environment['driver']}, CUDA "
        f"{environment['toolkit']}; PyTorch {torch['version']}, matmul precision {torch['matmul_precision']}; CPU rows "
        f"on {document['cpu']}, {document['cpu_cores']} cores ({notes}). {document['written_at'][:10]}, "
        f"`{document['command']}`. Medians over interleaved rounds with half the 95 % interval of the median; error: "
        "the worst of a probability against float64; accuracy: on the batch."
    )


def put_into(docs: Path, document: Mapping[str, Any]) -> None:
    """Replaces what stands between the markers; ValueError where they are not."""
    text = docs.read_text(encoding="utf-8")
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    docs.write_text(text[:begin] + table(document) + "\n" + text[end:], encoding="utf-8")
