"""Tables of ranges on disk: what a family's tuning found, one file for each family and device model."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.tuner.compile.cache import default_folder, write_whole
from tilewright.tuner.runtime.any_size.ranges import Ranges, SizeRange, SizeTime, is_sound_within
from tilewright.tuner.runtime.choice import Choice, TargetDevice

FORMAT = "tilewright-table/1"


def default_tables() -> Path:
    """The folder beside the cache of cubins, which launchers of this user read."""
    return default_folder().parent / "tables"


class TableFolder:
    """The folder; any number of processes may share it. A table is superseded as a whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ranges(
        self, kernel: Kernel, family: Family, place: TargetDevice, *, within_s: float = math.inf
    ) -> Ranges | None:
        """The ranges of that family's table; None if no usable table was stored within that time."""
        stored = self.get(family, place.slug, within_s=within_s)
        return None if stored is None else ranges_of(stored, kernel, family, place)

    def get(self, family: Family, slug: str, *, within_s: float = math.inf) -> Mapping[str, Any] | None:
        """The family's document; None if none was stored within that time."""
        path = self._path(family, slug)
        try:
            stored = json.loads(path.read_bytes())
            if time.time() - path.stat().st_mtime > within_s:
                return None
        except (OSError, ValueError):
            return None
        return stored if isinstance(stored, dict) and stored.get("format") == FORMAT else None

    def put(self, family: Family, slug: str, table: Mapping[str, Any]) -> Path:
        """Stores a table in place of the one before; raises OSError."""
        path = self._path(family, slug)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(table, indent=1).encode())
        return path

    def _path(self, family: Family, slug: str) -> Path:
        return self.folder / f"{family.hash[:32]}-{slug.replace(':', '-').replace('/', '-')}.json"


def as_table(kernel: Kernel, family: Family, ranges: Ranges) -> dict[str, Any]:
    """A table of ranges as `ranges_of` reads it; as in locks, each range tells how it matches its sizes."""
    listed, low = [], 1
    for one in ranges.ranges:
        configuration = one.choice.configuration
        values = {"variant": configuration.variant, "configuration": dict(configuration.values)}
        source_hash = kernel.source_hash(configuration.variant)
        name = one.choice.library_name
        library = {"library": {"name": name, "faster": True, "launched": True}} if name else {}
        stated = {"low": low, "high": one.high, **values, "match": one.choice.match, "source_hash": source_hash}
        listed.append(stated | library)
        low = one.high + 1
    measured = [one._asdict() for one in ranges.times]
    return {"format": FORMAT, **family.as_json(), "family_hash": family.hash, "ranges": listed, "measured": measured}


def ranges_of(
    stored: Mapping[str, Any],
    kernel: Kernel,
    family: Family,
    place: TargetDevice,
    loaded: Callable[[Choice, Mapping[str, Any]], Choice] = lambda choice, _facts: choice,
) -> Ranges | None:
    """The ranges of a table; None if its version or sources are others, or it is not sound on that device.

    `loaded`: the choice of a range with the machine code that the range names.
    """
    try:
        if stored["format"] != FORMAT or stored["family_hash"] != family.hash:
            return None
        ranges, low = list[SizeRange](), 1
        for one in stored["ranges"]:
            choice = loaded(Choice.from_facts({"match": "range", **one}, "table"), one)
            anywhere = replace(place, most_workspace_bytes=None)  # `within_limit` looks at that
            is_ours = kernel.has_source(choice.configuration.variant, str(one["source_hash"]))
            high = int(one["high"])
            if not is_ours or not is_sound_within(kernel, family, anywhere, choice, low, high):
                return None
            if not family.admits(kernel, choice.configuration):
                return None
            ranges.append(SizeRange(high, choice))
            low = high + 1
        times = [_time_of(one) for one in stored.get("measured", ())]
    except (KeyError, TypeError, ValueError, LookupError):
        return None
    found = Ranges(ranges, times=times) if ranges else None
    return None if found is None or (family.batch_invariant and len(found) > 1) else found


def called_ms(stated: Mapping[str, Any]) -> float | None:
    """The time at a measured size of the library's call for any size, if one is made, else of its fastest call."""
    library_ms = stated.get("own_choice_ms") or stated["library_ms"]
    return None if library_ms is None else float(library_ms)


def _time_of(stated: Mapping[str, Any]) -> SizeTime:
    return SizeTime(int(stated["size"]), float(stated["time_ms"]), called_ms(stated))
