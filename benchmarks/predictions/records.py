"""Writes measured trials as the records that come with the package (tuner/predict/shipped)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from predictions.rows import State, problem_of_row, record_of

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.tuner.devices.device import DeviceModel
from tilewright.tuner.predict.shipped import FOLDER, FORMAT

MOST_TRIALS = 100
"""Of a shape: the faster half of so many, and others at even steps. More are not fitted to (Record.sample)."""


def described(model: DeviceModel) -> State:
    """What a result says of its device model, as JSON has it."""
    limits = asdict(model.limits)
    limits = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in limits.items()}
    return {"device_name": model.name, "limits": limits}


def ship(results: Sequence[State], out: Path) -> None:
    """Writes the records of these results of one device model, the same bytes for the same results."""
    out.write_bytes(gzip.compress(json.dumps(document_of(results), separators=(",", ":")).encode(), 9, mtime=0))
    print(f"{out}: {out.stat().st_size} bytes")


def document_of(results: Sequence[State]) -> State:
    """These results of one device model as shipped records."""
    first = results[0]
    document = {
        "format": FORMAT,
        "device_model": first["device_model"],
        "name": first["device_name"],
        "driver": first["environment"]["driver"],
        "toolkit": first["environment"]["toolkit"],
        "environment": first["environment"],
        "limits": first["limits"],
        "series": [_series(result) for result in results],
    }
    if any(result["environment"] != first["environment"] or result["limits"] != first["limits"] for result in results):
        raise SystemExit("the results are of different devices or environments")
    return document


def _series(result: State) -> State:
    kernel = catalogue().get(result["kernel"])
    like = problem_of_row(kernel, result["records"][0])
    variants = {v.name: [parameter.name for parameter in v.space().parameters] for v in kernel.variants}
    return {
        "kernel": kernel.name,
        "dtype": like.dtype,
        "options": dict(like.option_items),
        "axes": list(result["records"][0]["shape"]),
        "measured_on": result["written_at"][:10],
        "commands": result["commands"],
        "variants": {
            name: {"source_hash": result["source_hashes"][name], "parameters": names}
            for name, names in variants.items()
            if name in result["source_hashes"]  # not those that were added since
        },
        "shapes": [_shape(row, kernel, variants) for row in result["records"]],
    }


def _shape(row: State, kernel: Kernel, variants: dict[str, list[str]]) -> State:
    kept = {json.dumps(c.as_json()) for c in record_of(kernel, row).sample(MOST_TRIALS)}
    trials: dict[str, list[Any]] = {}
    failed: dict[str, list[Any]] = {}
    for configuration, time_ms, registers in row["tried"]:
        if json.dumps(configuration) in kept:
            values = [configuration[name] for name in variants[configuration["variant"]]]
            trials.setdefault(configuration["variant"], []).append([*values, float(f"{time_ms:.4g}"), registers])
    for configuration in row["failed"]:
        values = [configuration[name] for name in variants[configuration["variant"]]]
        failed.setdefault(configuration["variant"], []).append([*values, 0, 0])
    library = row["library"] and [row["library"]["name"].partition(" (")[0], float(f"{row['library']['time_ms']:.4g}")]
    return {"sizes": list(row["shape"].values()), "library": library, "trials": trials, "failed": failed}


def shipped_rows(kernel: Kernel, dtype: str, options: Mapping[str, Any], device_model: str) -> list[State]:
    """The rows of benchmarks/records.py that ship for that device model, where all of their code is as it was."""
    path = FOLDER / f"{device_model}.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {"series": []}
    like = dict(kernel.problem(kernel.example_shape, dtype, options).option_items)
    return [
        _row(one, series)
        for series in document["series"]
        if (series["kernel"], series["dtype"], series["options"]) == (kernel.name, dtype, like)
        and series["commands"][0].startswith("python benchmarks/records.py")
        for one in series["shapes"]
        if all(series["variants"][name]["source_hash"] == kernel.source_hash(name) for name in one["trials"])
    ]


def _row(shape: State, series: State) -> State:
    """What `_shape` wrote."""

    def configurations(of: Mapping[str, Any]) -> Iterator[tuple[State, float, int]]:
        for variant, rows in of.items():
            for *values, time_ms, registers in rows:
                named = zip(series["variants"][variant]["parameters"], values, strict=True)
                yield {"variant": variant, **dict(named)}, time_ms, registers

    return {
        "shape": dict(zip(series["axes"], shape["sizes"], strict=True)),
        "dtype": series["dtype"],
        "options": series["options"],
        "tried": [list(one) for one in configurations(shape["trials"])],
        "failed": [one for one, _, _ in configurations(shape["failed"])],
        "library": shape["library"] and {"name": shape["library"][0], "time_ms": shape["library"][1]},
    }
