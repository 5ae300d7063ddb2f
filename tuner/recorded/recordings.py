"""Recorded trials: Kernel Tuner's cache files and T4 files, read into one form."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.kernels.problem import OptionValue
from tilewright.kernels.space import Configuration, Parameter
from tilewright.tuner.errors import TunerError
from tilewright.tuner.outcome import Outcome

ONLY_VARIANT = "recorded"
"""The variant's name where a foreign file knows no variants."""

INVALIDITY = {
    Outcome.MEASURED: "correct",
    Outcome.CONSTRAINT_VIOLATED: "constraints",
    Outcome.COMPILE_FAILED: "compile",
    Outcome.LAUNCH_FAILED: "runtime",
    Outcome.DEVICE_LOST: "runtime",
    Outcome.INTERRUPTED: "runtime",
    Outcome.WRONG_RESULT: "correctness",
    Outcome.TIMED_OUT: "timeout",
}
"""T4's word for each outcome."""

# Kernel Tuner writes the kind of failure in place of the time; T4 has a field of its own for it.
_FOREIGN_OUTCOMES = {
    "CompilationFailedConfig": Outcome.COMPILE_FAILED,
    "RuntimeFailedConfig": Outcome.LAUNCH_FAILED,
    "InvalidConfig": Outcome.CONSTRAINT_VIOLATED,
    "compile": Outcome.COMPILE_FAILED,
    "runtime": Outcome.LAUNCH_FAILED,
    "correctness": Outcome.WRONG_RESULT,
    "constraints": Outcome.CONSTRAINT_VIOLATED,
    "timeout": Outcome.TIMED_OUT,
}


def foreign_outcome(word: str) -> Outcome | None:
    """The outcome for a word of Kernel Tuner or T4; None for an unknown word."""
    return Outcome.MEASURED if word == "correct" else _FOREIGN_OUTCOMES.get(word)


class UnreadableRecordingError(TunerError):
    """The file is not a recording in a known format."""


@dataclass(frozen=True)
class Entry:
    """The outcome of one recorded configuration: samples in ms by L2 state (empty unless measured)."""

    outcome: Outcome
    samples_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    compile_ms: float = 0.0
    log: str = ""


@dataclass(frozen=True)
class Recording:
    """Every recorded configuration of one problem on one device; parameters by variant."""

    kernel: str
    device_name: str
    shape: Mapping[str, int]
    entries: Mapping[Configuration, Entry]
    parameters: Mapping[str, tuple[Parameter, ...]]
    dtype: str = "float32"
    options: Mapping[str, OptionValue] = field(default_factory=dict)


def read_recording(path: Path) -> Recording:
    """The recording in a JSON file, gzipped or not; raises UnreadableRecordingError naming what is missing."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            data = _parse(file.read())
        return _kernel_tuner(data) if "cache" in data else _t4(data, path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableRecordingError(f"{path}: {type(error).__name__}: {error}") from error


def _parse(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        # Kernel Tuner appends to its cache and closes the two braces at the end of a run only.
        data = json.loads(text.rstrip().rstrip(",") + "}}")
    if not isinstance(data, dict):
        raise TypeError("the file does not hold a JSON object")
    return data


def _kernel_tuner(data: Mapping[str, Any]) -> Recording:
    names = list(data["tune_params_keys"])
    values = {name: tuple(_whole(name, value) for value in data["tune_params"][name]) for name in names}
    parameters = tuple(Parameter(name, values[name], values[name][0]) for name in names)
    entries = {}
    for row in data["cache"].values():
        configuration = Configuration.of(ONLY_VARIANT, {name: _whole(name, row[name]) for name in names})
        failed = _FOREIGN_OUTCOMES.get(row["time"]) if isinstance(row["time"], str) else None
        entries[configuration] = _entry(failed, row.get("times") or [row["time"]], row.get("compile_time", 0.0))
    # Kernel Tuner takes a number for a problem of one axis.
    sizes = data["problem_size"] if isinstance(data["problem_size"], list) else [data["problem_size"]]
    shape = {f"size_{i}": int(size) for i, size in enumerate(sizes)}
    return Recording(data["kernel_name"], data["device_name"], shape, entries, {ONLY_VARIANT: parameters})


def _t4(data: Mapping[str, Any], path: Path) -> Recording:
    entries = {}
    for row in data["results"]:
        named = {"variant": ONLY_VARIANT, **row["configuration"]}
        configuration = Configuration.of(
            named["variant"], {name: _whole(name, value) for name, value in named.items() if name != "variant"}
        )
        failed = None if row["invalidity"] == "correct" else _FOREIGN_OUTCOMES[row["invalidity"]]
        entries[configuration] = _entry(failed, row["times"].get("runtimes", ()), row["times"].get("compilation", 0.0))
    # T4 itself names neither kernel nor device: the file's name usually does, and our own metadata.
    name = path.name.removesuffix(".gz").removesuffix(".json").lower()
    of = {"kernel": name, "shape": {}, "dtype": "float32", "options": {}, **data.get("metadata", {}).get("problem", {})}
    device_name = data.get("metadata", {}).get("device_name", name)
    parameters = _parameters_of(entries)
    return Recording(of["kernel"], device_name, of["shape"], entries, parameters, of["dtype"], of["options"])


def _whole(name: str, value: Any) -> int:
    """A parameter's value; a switch counts as 0 and 1."""
    if not isinstance(value, int | float) or value % 1:  # infinity and NaN leave NaN
        raise TypeError(f"{name} has the value {value!r}; parameters must be whole numbers")
    return int(value)


def _entry(failed: Outcome | None, times: Sequence[float], compile_ms: float) -> Entry:
    if failed is not None:
        return Entry(failed, compile_ms=float(compile_ms), log=f"recorded as {failed}")
    return Entry(Outcome.MEASURED, {"warm": tuple(map(float, times))}, float(compile_ms))


def _parameters_of(entries: Iterable[Configuration]) -> dict[str, tuple[Parameter, ...]]:
    """The parameters of each variant with every value that occurs, in order; the least is the default."""
    values: dict[str, dict[str, set[int]]] = {}
    for configuration in entries:
        of_variant = values.setdefault(configuration.variant, {})
        for name, value in configuration.items:
            of_variant.setdefault(name, set()).add(value)
    return {
        variant: tuple(Parameter(name, tuple(sorted(seen)), min(seen)) for name, seen in names.items())
        for variant, names in values.items()
    }
