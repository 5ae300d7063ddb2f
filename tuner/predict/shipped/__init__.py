"""Records of our own measurements that come with the package: what is predicted from before anything is tuned here.

A file a device model. Configurations that the kernels no longer admit are left out when a file is read; what was
measured with other sources stays, since the same configuration of a changed source mostly ranks alike, and answers say
so (`shipped`). Problems without records of their own have those of the problems that they are akin to (`Kernel.akin`).
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel, RelatedKernel
from tilewright.kernels.problem import Limits, Problem, octaves
from tilewright.kernels.space import Configuration
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.predict.features import sizes_of
from tilewright.tuner.predict.library import LibraryTime
from tilewright.tuner.predict.record import Record

FOLDER = Path(__file__).parent
FORMAT = "tilewright-shipped/1"
KEPT = 64
"""Series that a process keeps as records: they take some megabytes each."""

MOST_GUESSED_FROM = 16
"""Shapes, the nearest: a job waits until these are read and fitted to, 1.9 s instead of 3.8 s for 60 of 200 trials, and
from 12 to 30 predictions were as good as from 60 (docs/measuring/predictions.md)."""

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
_READING = ForkSafeLock()
"""A series takes a third of a second to read; threads that read the same one would keep all others waiting."""


def shipped_series(kernel: Kernel, like: Problem) -> tuple[ShippedSeries, ...]:
    """The series for problems like this, one a device model."""
    hashes = tuple(kernel.source_hash(variant.name) for variant in kernel.variants)
    key = (FOLDER, kernel.name, hashes, like.dtype, like.option_items, len(like.sizes))
    with _READING:
        if key not in _SERIES:
            if len(_SERIES) >= KEPT:
                _SERIES.clear()
            of_models = (_nearest_kin(document, kernel, like) for document in _documents(FOLDER))
            _SERIES[key] = tuple(series for series in of_models if series is not None and series.records)
        return _SERIES[key]


def shipped_models() -> dict[str, tuple[str, Limits]]:
    """Name and limits of each device model that there are records of, by its slug."""
    return {d["device_model"]: (d["name"], limits_from(d["limits"])) for d in _documents(FOLDER)}


def likest_first(series: Sequence[ShippedSeries], slug: str, limits: Limits) -> list[ShippedSeries]:
    """The series of this compute capability: the device model's own first, then by how alike their multiprocessors
    are.
    """

    def unlike(one: ShippedSeries) -> tuple[bool, float]:
        ratio = max(one.limits.multiprocessors, 1) / max(limits.multiprocessors, 1)
        return one.device_model != slug, abs(math.log(ratio))

    return sorted((s for s in series if s.limits.compute_capability == limits.compute_capability), key=unlike)


def joined(series: Sequence[ShippedSeries], slug: str) -> list[Record]:
    """The records of all series; library times of other device models are left out."""
    every = [(one.device_model == slug, record) for one in series for record in one.records]
    return [record if is_own else replace(record, library=None) for is_own, record in every]


def nearest_of(kernel: Kernel, problem: Problem, records: Sequence[Record]) -> list[Record]:
    """The records to guess from, the nearest first."""
    sizes = sizes_of(kernel, problem)
    return sorted(records, key=lambda record: octaves(sizes, sizes_of(kernel, record.problem)))[:MOST_GUESSED_FROM]


def undisplaced(shipped: Sequence[T], own: Sequence[T], shape_of: Callable[[T], Mapping[str, int]]) -> list[T]:
    """The shipped records that remain when each own record has replaced the nearest shipped one.

    Only where both shapes have the same axes: a batch takes no place of a single product.
    """
    left = [(shape_of(record), record) for record in shipped]
    for shape in map(shape_of, own):
        alike = [place for place, (other, _) in enumerate(left) if other.keys() == shape.keys()]
        if alike:
            del left[min(alike, key=lambda place: octaves(shape, left[place][0]))]
    return [record for _, record in left]


@lru_cache(maxsize=4)
def _documents(folder: Path) -> tuple[_Written, ...]:
    texts = (gzip.decompress(path.read_bytes()) for path in sorted(folder.glob("*.json.gz")))
    documents = (json.loads(text) for text in texts)
    return tuple(document for document in documents if document["format"] == FORMAT)


def _nearest_kin(document: _Written, kernel: Kernel, like: Problem) -> ShippedSeries | None:
    """The file's records of this problem's dtype and options, or else of the first that it is akin to.

    Beside them those of what it is akin to in other axes, as a convolution to the gemm inside: of single pixels.
    """
    chosen: list[tuple[_Written, RelatedKernel]] = []
    for kin in (
        RelatedKernel(kernel.name, dict(like.option_items)),
        *(RelatedKernel(*kin) for kin in kernel.akin(like)),
    ):
        if not chosen or kin.shape_of is not RelatedKernel(kernel.name).shape_of:
            chosen += [(written, kin) for written in document["series"] if _is_of(written, kin, kernel, like)]
    if not chosen:
        return None
    limits = limits_from(document["limits"])
    records = [record for written, kin in chosen for record in _read(document, written, limits, kernel, like, kin)]
    return ShippedSeries(document["device_model"], limits, document["driver"], document["toolkit"], tuple(records))


def _is_of(written: _Written, kin: RelatedKernel, kernel: Kernel, like: Problem) -> bool:
    """Whether a series is of that kin with the problem's dtype."""
    of = kernel if kin.kernel == kernel.name else catalogue().get(kin.kernel)
    shape = dict(like.axes) if of.axes == kernel.axes else of.example_shape
    options = dict(of.problem(shape, like.dtype, kin.options).option_items)
    key = (kin.kernel, like.dtype, options)
    return (written["kernel"], written["dtype"], written["options"]) == key and _serves(written, of, like)


def _serves(written: _Written, of: Kernel, like: Problem) -> bool:
    """Whether its shapes have the kernel's axes, and of those that count besides, such as a batch, the problem's."""
    count, sizes = len(of.axes), {axis.name for axis in of.optional_axes if axis.is_size}
    more = {axis for axis in written["axes"][count:] if axis in sizes}
    return written["axes"][:count] == list(of.axes) and more <= dict(like.sizes[len(like.axes) :]).keys()


def _read(
    document: _Written, written: _Written, limits: Limits, kernel: Kernel, like: Problem, kin: RelatedKernel
) -> Iterator[Record]:
    """A series' records as the kernel's own, as far as it still admits them; they are of a related kernel.

    What the library took for one of them stands for what its call for the other takes.
    """
    options = dict(like.option_items)
    of = catalogue().get(kin.kernel) if kin.kernel != kernel.name else kernel
    is_own = (of.name, options) == (kernel.name, written["options"])
    rows: list[tuple[Problem, _Written, list[Trial]]] = []
    for row in written["shapes"]:
        shape = kin.shape_of(dict(zip(written["axes"], row["sizes"], strict=True)))
        problem = kernel.problem(shape, like.dtype, options)
        trials = _trials(written["variants"], row["trials"], kin.variants)
        rows.append((problem, row, [trial for trial in trials if _holds(kernel, problem, limits, trial[0])]))
    words = _words(document, written, of, [(row, held) for _, row, held in rows], kin.variants, is_own=is_own)
    for problem, row, held in rows:
        if not held:
            continue
        library = LibraryTime(*row["library"]) if row["library"] is not None and kin.has_library else None
        times_ms, registers = {c: ms for c, ms, _ in held}, {c: count for c, _, count in held if count}
        failed = frozenset(c for c, _, _ in _trials(written["variants"], row["failed"], kin.variants))
        yield Record(problem, times_ms, registers, failed, library=library, shipped=words)


def _words(
    document: _Written,
    written: _Written,
    kernel: Kernel,
    rows: Sequence[tuple[_Written, list[Trial]]],
    called: Mapping[str, str],
    *,
    is_own: bool,
) -> str:
    """The records in words, and what has changed since they were measured."""
    used = {configuration.variant for _, held in rows for configuration, _, _ in held}
    facts_of = {name: facts for name, facts in written["variants"].items() if called.get(name, name) in used}
    sources = {name: facts["source_hash"] for name, facts in facts_of.items()}
    other = {name: source for name, source in sources.items() if not kernel.has_source(name, source)}
    faulty = sorted(name for name, source in other.items() if kernel.was_corrected(name, source))
    changed = sorted(other.keys() - set(faulty))
    count = sum(len(trials) for row, _ in rows for trials in row["trials"].values())
    gone = count - sum(len(held) for _, held in rows)
    facts = [f"driver {document['driver']}", written["measured_on"]]
    facts += [] if is_own else [f"of {kernel.name} with {_in_words(written['options'])}"]
    facts += [f"with other sources of {', '.join(changed)}"] if changed else []
    facts += [f"with faulty sources, since corrected, of {', '.join(faulty)}"] if faulty else []
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


def _trials(variants: Mapping[str, Any], written: Mapping[str, Any], called: Mapping[str, str]) -> list[Trial]:
    """Configurations with times in ms and registers; both 0 where they are not written. `called` renames variants."""
    trials = []
    for name, rows in written.items():
        names = variants[name]["parameters"]
        for *values, time_ms, registers in rows:
            configuration = Configuration.of(called.get(name, name), dict(zip(names, values, strict=True)))
            trials.append((configuration, time_ms, registers))
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
    return space.admits(configuration.values, problem, limits)
