"""Tables of families: how long they take to tune, from nothing and from shipped records, and what they consist of."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.tuner.compile.cache import CubinCache
from tilewright.tuner.devices.device import Device
from tilewright.tuner.families.limits import FamilyBudget
from tilewright.tuner.families.proposals import shipped_records
from tilewright.tuner.families.table import Table
from tilewright.tuner.families.tune import tune_family
from tilewright.tuner.runtime.any_size.ranges import Ranges, SizeRange
from tilewright.tuner.runtime.choice import Choice

UNSEEN = 8
"""Sizes of each family that tuning did not use."""

WARM_SIZES = 12
"""That are measured at first where nothing is searched."""


def head(family: Family) -> dict[str, Any]:
    """What identifies the family in the document: the axes and options beside the open one, and its largest size."""
    largest = family.largest
    sizes = {axis: size for axis, size in largest.stated_shape.items() if axis != family.axis}
    plain = catalogue().get(family.kernel).problem(largest.stated_shape, family.dtype)
    chosen = {name: value for name, value in largest.option_items if plain.options[name] != value}
    return {"kernel": family.kernel, **sizes, **chosen, "dtype": family.dtype, "largest": family.high}


def table(device: Device, kernel: Kernel, family: Family, seconds: float, seed: int) -> dict[str, Any]:
    """The family tuned twice, with nothing compiled before; the table that is kept is the one from nothing."""
    with nothing_compiled(device):
        cold = tune_family(device, kernel, family, FamilyBudget(seconds=seconds), seed=seed)
    row = {"seconds": cold.seconds, **_facts(kernel, cold)}
    records = shipped_records(kernel, family, device.model)
    if records:
        budget = FamilyBudget(seconds=0.0, sizes=WARM_SIZES)
        with nothing_compiled(device):
            warm = tune_family(device, kernel, family, budget, seed=seed, records=records)
        row["from_shipped"] = {"records": len(records), "seconds": warm.seconds, **_facts(kernel, warm)}
        row["from_shipped"]["of_best"] = _beside(warm, cold)
    return row


@contextmanager
def nothing_compiled(device: Device) -> Iterator[None]:
    """Configurations are compiled anew, where the device compiles in a pool: its cache is an empty one meanwhile."""
    pool = getattr(device, "pool", None)
    if pool is None:
        yield
        return
    usual = pool.cache
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        pool.cache = CubinCache(Path(folder))
        yield
    pool.cache = usual


def invariant(device: Device, kernel: Kernel, family: Family, seconds: float, seed: int) -> dict[str, Any]:
    """At each size that both were measured at, the time without over that with the option."""
    free, same = (
        tune_family(device, kernel, replace(family, batch_invariant=asked), FamilyBudget(seconds=seconds), seed=seed)
        for asked in (False, True)
    )
    ratios = {str(size): free.time_ms(size) / same.time_ms(size) for size in free.sizes if size in set(same.sizes)}
    return {"ratios": ratios, "configuration": str(same.spans[0].configuration), "seconds": same.seconds}


def unseen(document: Mapping[str, Any], family: Family) -> list[int]:
    """Sizes of the family that its table was not tuned at; the same ones each time."""
    found = _row(document, family)
    if found is None:
        return []
    generator, taken, sizes = random.Random(found["n"] * 31 + found["k"]), set(found["sizes"]), list[int]()
    while len(sizes) < min(UNSEEN, family.high // 2):
        size = max(1, min(family.high, round(family.high ** generator.random())))
        if size not in taken:
            taken.add(size)
            sizes.append(size)
    return sorted(sizes)


def ranges_of(document: Mapping[str, Any], family: Family) -> Ranges | None:
    """The ranges of the family's table; None where it was not tuned."""
    found = _row(document, family)
    if found is None:
        return None
    choices = [Choice.from_facts({"match": "range", **one}, "table") for one in found["ranges"]]
    return Ranges([SizeRange(one["high"], choice) for one, choice in zip(found["ranges"], choices, strict=True)])


def _row(document: Mapping[str, Any], family: Family) -> Mapping[str, Any] | None:
    wanted = head(family).items()
    return next((row for row in document["tables"] if row.items() >= wanted), None)


def _facts(kernel: Kernel, made: Table) -> dict[str, Any]:
    ranges = [
        {
            "low": span.low,
            "high": span.high,
            "variant": span.configuration.variant,
            "configuration": dict(span.configuration.values),
            "library": {"name": made.own_choice, "faster": True, "launched": True} if span.is_library else None,
        }
        for span in made.spans
    ]
    configurations = {span.configuration for span in made.spans}
    shared = {c.variant for c in configurations if any(one.is_shared for one in kernel.variant(c.variant).before)}
    document = made.as_json(kernel)
    return {
        "sizes": made.sizes,
        "configurations": len(configurations),
        "modules": len(configurations) + len(shared),
        "loss": document["loss"],
        "trials": made.trials,
        "compilations": made.compilations,
        "ranges": ranges,
    }


def _beside(warm: Table, cold: Table) -> dict[str, float]:
    """By size, the time of the table from nothing over that of the other, where both were measured."""
    return {str(size): cold.time_ms(size) / warm.time_ms(size) for size in warm.sizes if size in set(cold.sizes)}
