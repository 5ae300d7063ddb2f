"""Records of our own measurements that come with the package: what is predicted from before anything is tuned here.

A file a device model. What the kernels admit no longer is left out when a file is read; what was measured with other
sources stays, since the same configuration of a changed source mostly ranks alike, and answers say so (`shipped`).
Problems without records of their own have those of the problems that they are akin to (`Kernel.akin`).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem, octaves
from tilewright.kernels.space import Configuration
from tilewright.tuner.predict.library import LibraryTime
from tilewright.tuner.predict.predictor import Record

FOLDER = Path(__file__).parent
FORMAT = "tilewright-shipped/1"
KEPT = 64
"""Series that a process keeps as records: they take some megabytes each."""

T = TypeVar("T")
Trial = tuple[Configuration, float, int]
"""A configuration, its time in ms and its registers."""

_Written = dict[str, Any]


@dataclass(frozen=True)
class ShippedSeries:
    """Records of one kernel with one dtype and the same options, on one device model."""

    device_model: str
    limits: Limits
    driver: str
    toolkit: str
    records: tuple[Record, ...]


_SERIES: dict[Hashable, tuple[ShippedSeries, ...]] = {}


def shipped_series(kernel: Kernel, like: Problem) -> tuple[ShippedSeries, ...]:
    """The series for problems like this, one a device model; none for problems with other axes."""
    if like.rules or like.sizes != like.axes:
        return ()
    hashes = tuple(kernel.source_hash(variant.name) for variant in kernel.variants)
    key = (FOLDER, kernel.name, hashes, like.dtype, like.option_items)
    if key not in _SERIES:
        if len(_SERIES) >= KEPT:
            _SERIES.clear()
        found = (_nearest_kin(document, kernel, like) for document in _documents(FOLDER))
        _SERIES[key] = tuple(series for series in found if series is not None and series.records)
    return _SERIES[key]


def shipped_models() -> dict[str, tuple[str, Limits]]:
    """Name and limits of each device model that there are records of, by its slug."""
    return {d["device_model"]: (d["name"], limits_from(d["limits"])) for d in _documents(FOLDER)}


def undisplaced(shipped: Sequence[T], own: Sequence[T], shape_of: Callable[[T], Mapping[str, int]]) -> list[T]:
    """The shipped records that are left when each own one has taken the place of the nearest."""
    left = list(shipped)
    for record in own[: len(shipped)]:
        distances = [octaves(shape_of(record), shape_of(other)) for other in left]
        del left[min(range(len(left)), key=distances.__getitem__)]
    return left


@lru_cache(maxsize=4)
def _documents(folder: Path) -> tuple[_Written, ...]:
    texts = (gzip.decompress(path.read_bytes()) for path in sorted(folder.glob("*.json.gz")))
    documents = (json.loads(text) for text in texts)
    return tuple(document for document in documents if document["format"] == FORMAT)


def _nearest_kin(document: _Written, kernel: Kernel, like: Problem) -> ShippedSeries | None:
    """The file's series of this problem, or else of the first that it is akin to."""
    for name, options in ((kernel.name, dict(like.option_items)), *kernel.akin(like)):
        of = kernel if name == kernel.name else catalogue().get(name)
        kin = of.problem(dict(like.axes), like.dtype, options)
        key = (name, kin.dtype, dict(kin.option_items), list(of.axes))
        for written in document["series"]:
            if (written["kernel"], written["dtype"], written["options"], written["axes"]) == key:
                return _read(document, written, kernel, like, of)
    return None


def _read(document: _Written, written: _Written, kernel: Kernel, like: Problem, of: Kernel) -> ShippedSeries:
    """A series, which is of the kernel `of`, as records of `kernel`: as far as that still admits it.

    What the library took for one of them stands for what its call for the other takes.
    """
    options = dict(like.option_items)
    is_own = (of.name, options) == (kernel.name, written["options"])
    limits = limits_from(document["limits"])
    rows: list[tuple[Problem, _Written, list[Trial]]] = []
    for row in written["shapes"]:
        problem = kernel.problem(dict(zip(kernel.axes, row["sizes"], strict=True)), like.dtype, options)
        trials = _trials(written["variants"], row["trials"])
        rows.append((problem, row, [trial for trial in trials if _holds(kernel, problem, limits, trial[0])]))
    words = _words(document, written, of, [(row, held) for _, row, held in rows], is_own=is_own)
    records = []
    for problem, row, held in rows:
        if not held:
            continue
        library = None if row["library"] is None else LibraryTime(*row["library"])
        times_ms, registers = {c: ms for c, ms, _ in held}, {c: count for c, _, count in held if count}
        failed = frozenset(c for c, _, _ in _trials(written["variants"], row["failed"]))
        records.append(Record(problem, times_ms, registers, failed, library=library, shipped=words))
    return ShippedSeries(document["device_model"], limits, document["driver"], document["toolkit"], tuple(records))


def _words(
    document: _Written, written: _Written, kernel: Kernel, rows: Sequence[tuple[_Written, list[Trial]]], *, is_own: bool
) -> str:
    """What the records are, and what of it no longer is as it was measured."""
    now = {variant.name: kernel.source_hash(variant.name) for variant in kernel.variants}
    used = {configuration.variant for _, held in rows for configuration, _, _ in held}
    changed = sorted(name for name in used if written["variants"][name]["source_hash"] != now[name])
    count = sum(len(trials) for row, _ in rows for trials in row["trials"].values())
    gone = count - sum(len(held) for _, held in rows)
    facts = [f"driver {document['driver']}", written["measured_on"]]
    facts += [] if is_own else [f"of {kernel.name} with {_in_words(written['options'])}"]
    facts += [f"with other sources of {', '.join(changed)}"] if changed else []
    where = "no longer in the space" if is_own else "not in the space"
    facts += [f"without {gone} of {count} trials that are {where}"] if gone else []
    return f"shipped records of an {document['name']} ({', '.join(facts)})"


def _in_words(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={str(value).lower()}" for name, value in options.items())


def limits_from(written: Mapping[str, Any]) -> Limits:
    """Limits as JSON has them."""
    return Limits(**{name: _value(value) for name, value in written.items()})


def _value(value: Any) -> Any:
    """A value of Limits: features are a set, other lists are tuples."""
    if not isinstance(value, list):
        return value
    return frozenset(value) if all(isinstance(one, str) for one in value) else tuple(value)


def _trials(variants: Mapping[str, Any], written: Mapping[str, Any]) -> list[Trial]:
    """Configurations with times in ms and registers; both 0 where they are not written."""
    trials = []
    for name, rows in written.items():
        names = variants[name]["parameters"]
        for *values, time_ms, registers in rows:
            trials.append((Configuration.of(name, dict(zip(names, values, strict=True))), time_ms, registers))
    return trials


def _holds(kernel: Kernel, problem: Problem, limits: Limits, configuration: Configuration) -> bool:
    """Whether the kernel has that variant still, and the problem's space that configuration."""
    variant = next((v for v in kernel.variants if v.name == configuration.variant), None)
    if variant is None or not (variant.runs_on(limits) and variant.admits(problem, limits)):
        return False
    space, given = variant.space(), dict(configuration.items)
    if {p.name for p in space.parameters} != given.keys() or any(
        given[p.name] not in p.values for p in space.parameters
    ):
        return False
    return space.violated(configuration.values, problem, limits) is None
