"""What the document of families says beside the goals."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

OPTIONS = ("weights", "layout", "depthwise", "trans_a")


def summary(document: Mapping[str, Any]) -> str:
    """A line a goal, of what has been measured."""
    return "\n".join([document["device"], *_lines(document)])


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    if tables := document["tables"]:
        most = max(row["configurations"] for row in tables), max(row["modules"] for row in tables)
        yield f"{len(tables)} families: at most {most[0]} configurations (goal 8), {most[1]} modules (goal 9)"
        yield f"  tuned from nothing in {_span(row['seconds'] for row in tables)} s (goal 60)"
        warm = [row["from_shipped"]["seconds"] for row in tables if "from_shipped" in row]
        yield f"  beginning with shipped records in {_span(warm)} s (goal 10)" if warm else "  nothing was predicted"
    for dtype in dict.fromkeys(row["dtype"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["dtype"] == dtype]
        beside = [row["library_ms"] / row.get("launched_ms", row["time_ms"]) for row in rows if row["library_ms"]]
        words = f", {_mean(beside)} times as fast as the library" if beside else ""
        ours = _mean(row["ratio"] for row in rows)
        yield f"{dtype}: {ours} of exact at {len(rows)} sizes (goal 0.98 and 0.93){words}"
    for row in document["at_launch"]:
        if row["mean"] is not None:
            words = f"{row['mean']:.3f}, least {row['least']:.3f}"
            yield f"{row['kernel']} {row['variant']} {_words(row)}: size at launch {words} (goal 0.99 and 0.97)"
    for row in document["invariant"]:
        yield f"batch_invariant {row['dtype']} {row['n']}x{row['k']}: {_mean(row['ratios'].values())} (goal 0.85)"
    for row in document["trace"]:
        ratio, taken = row["first_trace_ratio"], row["memory_mb"]
        words = f"{ratio:.2f} times torch.mm, prepare {row['prepare_s']:.1f} s, {taken:.0f} MB"
        first = f"first call {row['first_call_us']:.0f} us, warm {row['warm_call_us']:.0f} us (goal: 20 us apart)"
        goal = "goal 2.2 and 160 MB" if row["dtype"] == "float32" else "goal 0.99"
        yield f"trace {row['dtype']} of {row['sizes']} sizes: {words} ({goal}); {first}"
    for row in document["bert"]:
        words = f"{row['gpu_ratio']:.2f} in the GPU's time, {row['first_total_ratio']:.2f} in total"
        host = row["first_host_ms"]
        yield f"{row['model']} through {row['calls']} sizes, times eager: {words} (goal 2 and 1.6)"
        yield f"  the host takes {host['ours']:.2f} ms a call, eager {host['eager']:.2f} (goal: no more)"


def _words(row: Mapping[str, Any]) -> str:
    """The dtype, behind the options that tell the row from others of its kernel."""
    chosen = [name if row[name] is True else row[name] for name in OPTIONS if row.get(name)]
    return " ".join([*chosen, row["dtype"]])


def _mean(ratios: Iterable[float]) -> str:
    known = list(ratios)
    return f"{statistics.geometric_mean(known):.3f}, least {min(known):.3f}"


def _span(values: Iterable[float]) -> str:
    known = list(values)
    return f"{min(known):.1f} to {max(known):.1f}"
