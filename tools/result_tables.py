"""Tables of docs/measuring, made from the files that benchmarks wrote.

A page says where a table belongs by `<!-- table NAME -->` and `<!-- /table -->`. Below each
table stands what it came from: device, driver, date, command and file.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
NAMES = {"nvidia-h200": "NVIDIA H200", "nvidia-h100-80gb-hbm3": "NVIDIA H100 80GB HBM3"}
FOLDERS = {"h200": "H200", "h100-80gb-hbm3": "H100"}
MARKS = ("10", "25", "50", "100", "200")
"""Numbers of evaluations after which replays are compared."""
BLOCK = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def with_tables(text: str) -> str:
    """The page with its tables as the result files say now; raises KeyError for a name that no table has."""
    return BLOCK.sub(lambda block: f"{block[1]}{TABLES[block[2]]()}\n{block[3]}", text)


def half_types() -> str:
    """Products in bfloat16 beside the library, one row a kind of shape and card."""
    rows, sources = [], []
    for folder, card in FOLDERS.items():
        document = _read(f"{folder}/kernels_half.json")
        sources.append(_source(f"{folder}/kernels_half.json", document))
        measured = [row for row in document["rows"] if row.get("speedup") and row["kernel"] == "gemm"]
        for kind in ("cubes", "at most 64 rows", "rows that no vector divides", "others"):
            chosen = [row for row in measured if _kind(row["shape"]) == kind]
            variants = sorted({f"`{row['variant']}`" for row in chosen})
            if chosen:
                rows.append([card, kind, *_gains([row["speedup"] for row in chosen]), ", ".join(variants)])
    heads = ("card", "shapes", "count", "mean", "least", "most", "fastest variants")
    return _table(heads, "llrrrrl", rows, sources)


def model_layers() -> str:
    """Layers of public models in bfloat16 by rows: the fastest of a short search beside the library's call."""
    file = "h200/day_one_linear_half.json.gz"
    document = json.loads(gzip.decompress((RESULTS / file).read_bytes()))
    rows, last = [], 0
    for most in (16, 64, 256, 4096):
        chosen = [record for record in document["records"] if last < record["shape"]["m"] <= most]
        best = [min(record["tried"], key=lambda one: one[1]) for record in chosen]
        gains = [record["library"]["time_ms"] / time_ms for record, (_, time_ms, _) in zip(chosen, best, strict=True)]
        variants = sorted({f"`{configuration['variant']}`" for configuration, *_ in best})
        rows.append([f"{last + 1} to {most}", *_gains(gains), ", ".join(variants)])
        last = most
    heads = ("m", "layers", "mean", "least", "most", "fastest variants")
    document["command"] = document["commands"]
    return _table(heads, "lrrrrl", rows, [_source(file, document)])


def quantised() -> str:
    """Quantised weights beside the library's product of 16-bit weights."""
    document = _read("h100-80gb-hbm3/kernels_half.json")
    rows = [
        [_shape(row), row["name"].partition("-")[0], f"`{row['variant']}`", *_beside_library(row)]
        for row in document["rows"]
        if row.get("speedup") and row["kernel"] == "linear_quantized"
    ]
    heads = ("m, n, k", "weights", "variant", "us", "cuBLAS, us", "times as fast")
    return _table(heads, "lllrrr", rows, [_source("h100-80gb-hbm3/kernels_half.json", document)])


def gated() -> str:
    """Gated pairs beside eager PyTorch and beside a copy of as many bytes."""
    rows, sources = [], []
    for folder, card in FOLDERS.items():
        document = _read(f"{folder}/eager.json")
        sources.append(_source(f"{folder}/eager.json", document))
        for row in document["rows"]:
            eager = f"{1e3 * row['eager_ms']:.1f}"
            rows.append(
                [
                    card,
                    _shape(row),
                    f"`{row['configuration']['variant']}`",
                    f"{1e3 * row['time_ms']:.1f}",
                    eager,
                    f"{row['speedup']:.3f}",
                    f"{row['of_copy']:.3f}",
                ]
            )
    heads = ("card", "m, n, k", "variant", "us", "PyTorch, us", "times as fast", "of a copy's speed")
    return _table(heads, "lllrrrr", rows, sources)


def first_day() -> str:
    """Choices by shipped records alone over the best known, beside the default's."""
    rows, sources = [], []
    for file, dtype in (
        ("h200/day_one.json", "float32"),
        ("h100-80gb-hbm3/day_one.json", "float32"),
        ("h100-80gb-hbm3/day_one_half.json", "bfloat16"),
    ):
        document = _read(file)
        sources.append(_source(file, document))
        for one in document["kernels"]:
            sets = one["sets"]
            chosen = sets.get("as shipped") or sets["all"]
            default = sets.get("default")
            rows.append([NAMES[one["device_model"]], one["kernel"], dtype, *_choices(chosen), *_choices(default)[1:]])
    heads = ("device", "kernel", "dtype", "shapes", "by records, mean", "least", "default, mean", "least")
    return _table(heads, "lllrrrrr", rows, sources)


def replays() -> str:
    """Fractions of the optimum: the default search, and how far it is ahead of the best strategy of Kernel Tuner."""
    document = _read("search.json")
    leads = {lead["space"]: lead["at"] for lead in document["leads"] if not lead["prior"]}
    rows = []
    for own in document["rows"]:
        if own["sampler"] == "gp" and not own["prior"]:
            ahead = leads[own["space"]]
            cells = [f"{own['fraction_at'][mark]:.3f} ({ahead[mark]['by']:+.3f})" for mark in MARKS]
            rows.append([own["space"], str(own["repeats"]), *cells])
    heads = ("recording", "repeats", *(f"@{mark}" for mark in MARKS))
    return _table(heads, "lr" + "r" * len(MARKS), rows, [_source("search.json", document, "CPU")])


def rates() -> str:
    """Configurations a second, compiled anew and with cubins in the cache."""
    document = _read("h200/rate.json")
    rows = []
    for row in document["rows"]:
        cubins = "compiled" if row["compile_ms"] else "in the cache"
        rows.append([cubins, str(row["configurations"]), str(row["verified"]), f"{row['per_second']:.1f}"])
    source = {**document, "driver": document["rows"][0]["driver"]}
    heads = ("cubins", "configurations", "verified", "a second")
    return _table(heads, "lrrr", rows, [_source("h200/rate.json", source, "NVIDIA H200")])


def service() -> str:
    """The service under load, each row with its goal."""
    document = _read("service.json")
    rows = []
    for row in document["rows"]:
        spread = f" ({row['interval'][0]:g} to {row['interval'][1]:g})" if row.get("interval") else ""
        met = {True: "met", False: "missed"}.get(row["met"], "")
        rows.append([row["name"], f"{row['value']:g}{spread}", row["unit"], row["goal"] or "", met])
    return _table(("what", "measured", "unit", "goal", ""), "lrlll", rows, [_source("service.json", document, "CPU")])


_MEAN_AND_LEAST = ("geometric_mean", "minimum")


def _read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return document


def _choices(judged: Mapping[str, Any] | None) -> list[str]:
    if judged is None:
        return ["", "", ""]
    choice = judged["predicted"]
    return [str(choice["shapes"]), *(f"{choice[key]:.3f}" for key in _MEAN_AND_LEAST)]


def _beside_library(row: Mapping[str, Any]) -> list[str]:
    return [f"{1e3 * row['time_ms']:.2f}", f"{1e3 * row['library_ms']:.2f}", f"{row['speedup']:.3f}"]


def _kind(shape: Mapping[str, int]) -> str:
    m, n, k = (shape[axis] for axis in ("m", "n", "k"))
    if n % 8 or k % 8:
        return "rows that no vector divides"
    if m <= 64:
        return "at most 64 rows"
    return "cubes" if m == n == k else "others"


def _gains(ratios: Sequence[float]) -> list[str]:
    """How many there are, their geometric mean, the least and the most."""
    return [str(len(ratios)), *(f"{one:.3f}" for one in (geometric_mean(ratios), min(ratios), max(ratios)))]


def _shape(row: Mapping[str, Any]) -> str:
    sizes = ", ".join(str(row["shape"][axis]) for axis in ("m", "n", "k"))
    return sizes + (" (trans_b)" if row.get("options", {}).get("trans_b") else "")


def _table(heads: Sequence[str], sides: str, rows: Iterable[Sequence[str]], sources: Iterable[str]) -> str:
    marks = ["---:" if side == "r" else "---" for side in sides]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, marks, *rows)]
    return "\n".join([*lines, "", *dict.fromkeys(sources)])


def _source(file: str, document: Mapping[str, Any], device: str | None = None) -> str:
    """What a table came from, as one line."""
    environment = document.get("environment", {})
    model = document.get("device_model") or document.get("kernels", [{}])[0].get("device_model", "")
    name = device or (model["name"] if isinstance(model, Mapping) else NAMES[model])
    if not environment and "kernels" in document:
        environment = document["kernels"][0]["environment"]
    driver = environment.get("driver") or document.get("driver")
    day = next(str(document[key]) for key in ("written_at", "made_at", "date", "kernels") if key in document)
    if "kernels" in document:
        day = max(str(one["written_at"]) for one in document["kernels"])
    command = document.get("command")
    commands = [command] if isinstance(command, str) else list(command or ())
    shown = (
        f", by `{_short(commands[0])}`" + (f" and {len(commands) - 1} more" if commands[1:] else "") if commands else ""
    )
    parts = [f"**{name}**" if name == "CPU" else name, *([f"driver {driver}"] if driver else []), day[:10]]
    return f"{', '.join(parts)}{shown} ([{file}](../../benchmarks/results/{file})).\n"


def _short(command: str) -> str:
    """The command; a list of `--only` is cut after the second, since the file has all of them."""
    pieces = command.split(" --only ")
    return command if len(pieces) < 4 else " --only ".join(pieces[:3]) + " …"


TABLES: dict[str, Callable[[], str]] = {
    "half-types": half_types,
    "model-layers": model_layers,
    "quantised": quantised,
    "gated": gated,
    "first-day": first_day,
    "replays": replays,
    "rates": rates,
    "service": service,
}
