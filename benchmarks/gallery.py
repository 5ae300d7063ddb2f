"""Tunes the gallery of examples and times the winners beside NVIDIA's libraries; writes a row for each shape.

    python benchmarks/gallery.py [--only scan] [--trials 400] [--seconds 20] [--out FILE]
    python benchmarks/gallery.py --device cpu --trials 2 --out FILE

On a GPU rows go to benchmarks/results/<device>/gallery.json as they come: kernel, shape, dtype, configuration, time_ms,
library, library_ms, speedup, percent_of_roof, reason. `reason` says why a row is below GOAL of the library and of the
roof, or has no time. Libraries are called through CuPy; without it they have no times. `--device cpu` tries the script
at small shapes: such times say nothing about a GPU. Exit status 1 when a kernel could not be measured.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from documents.file import now, write
from kernel_table.cupy_libraries import NAMES, library_ms
from kernel_table.rows import Row, measure
from kernel_table.suite import Entry

from tilewright.kernels.catalogue import Catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.own import odd_shapes
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop.tune import Budget

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
GOAL = 0.9
"""Of the library's speed, or of the roof: a row that reaches neither needs a reason."""

MORE_SHAPES: dict[str, tuple[dict[str, int], ...]] = {
    "bitonic_sort": ({"m": 262144, "n": 64},),
    "fft": ({"m": 1 << 20, "n": 64},),
    "reduction": ({"n": 1_000_003},),
    "scan": ({"n": 1_000_003},),
    "spmv": ({"m": 1 << 22, "n": 1 << 22, "nnz": 5 << 22},),
    "transpose": ({"m": 4093, "n": 6151},),
}
"""Beside each example_shape: sizes that no vector divides, short rows, few elements a row."""

REASONS = {
    "bitonic_sort": "the network compares more often than a radix sort has passes; neither is limited by memory",
    "convolution2d": "reads of shared memory take issue slots, 113 beside 544 multiply-adds a filter column in the "
    "best configuration: 83 % is the most; what else it loses is not known",
    "nbody": "at least 13 instructions do the 20 operations of a pair, of which the roof does two in one: 77 % is the "
    "most; what else it loses is not known",
    "stencil2d": "what the rims of neighbouring tiles share is read and computed twice",
}
"""Of kernels whose limit is known from their sources."""

COLUMNS = (
    *("kernel", "shape", "dtype", "variant", "configuration", "time_ms"),
    *("library", "library_ms", "speedup", "percent_of_roof", "reason"),
)


@dataclass(frozen=True)
class GalleryEntry(Entry):
    """One shape of an example."""

    @property
    def declared(self) -> Kernel:
        """The example's declaration."""
        return gallery().get(self.kernel)


@cache
def gallery() -> Catalogue:
    """The examples, loaded once."""
    return Catalogue.load(sorted(path.parent for path in EXAMPLES.glob("*/declaration.py")))


def main(words: Sequence[str]) -> int:
    """Reads the command line; 1 where a row has no time."""
    arguments = parse(words)
    names = arguments.only or sorted(path.parent.name for path in EXAMPLES.glob("*/declaration.py"))
    device = open_device(arguments.device)
    out = arguments.out or ROOT / f"benchmarks/results/{device.model.slug.removeprefix('nvidia-')}/gallery.json"
    document: dict[str, Any] = facts(device, arguments) | {"rows": []}
    try:
        for entry in entries(names, is_small=arguments.device == "cpu"):
            row = row_of(device, entry, Budget(trials=arguments.trials, seconds=arguments.seconds))
            document["rows"].append(row)
            write(out, document)
            print(json.dumps(row), flush=True)
    finally:
        device.close()
    return int(any(row["time_ms"] is None for row in document["rows"]))


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted(path.parent.name for path in EXAMPLES.glob("*/declaration.py"))
    parser.add_argument("--only", action="append", choices=known, help="this example; may be repeated")
    parser.add_argument("--device", default="cuda:0", help="cpu: at small shapes, to try the script")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path, help="instead of benchmarks/results/<device>/gallery.json")
    arguments = parser.parse_args(words)
    if arguments.device == "cpu" and arguments.out is None:
        parser.error("--device cpu needs --out: its times are no results")
    return arguments


def entries(names: Sequence[str], *, is_small: bool) -> Iterator[GalleryEntry]:
    """The rows of these kernels, in the first dtype of each."""
    for name in names:
        kernel = gallery().get(name)
        shapes = odd_shapes(kernel)[:1] if is_small else [kernel.example_shape, *MORE_SHAPES.get(name, ())]
        for shape in shapes:
            yield GalleryEntry(
                name=name, kernel=name, shape=shape, options={}, origin="examples", dtype=kernel.dtypes[0]
            )


def row_of(device: Device, entry: GalleryEntry, budget: Budget) -> Row:
    """The row of one shape, tuned and timed, with its library where there is one."""
    measured = measure(device, entry, budget)
    row: Row = {name: measured.get(name) for name in COLUMNS}
    row["library"] = NAMES.get(entry.kernel)
    if row["time_ms"] is not None and not device.model.slug.startswith("cpu"):
        try:
            row["library_ms"] = library_ms(entry.declared, entry.problem)
        except Exception as error:  # noqa: BLE001 - whatever a library raises: our time is right all the same
            print(f"{entry.kernel}: {row['library']}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        row["speedup"] = row["library_ms"] and row["library_ms"] / row["time_ms"]
    row["reason"] = measured.get("reason") or reason_of(row)
    return row


def reason_of(row: Row) -> str | None:
    """Why the row is below the goal; None where it is not, or nothing is known to compare with."""
    shares = [share for share in (row["speedup"], (row["percent_of_roof"] or 0) / 100) if share]
    if not shares or max(shares) >= GOAL:
        return None
    return REASONS.get(row["kernel"], "not explained yet")


def facts(device: Device, arguments: argparse.Namespace) -> dict[str, Any]:
    """The facts of the whole run."""
    return {
        "command": shlex.join(["python", "benchmarks/gallery.py", *sys.argv[1:]]),
        "device": device.model.slug,
        "environment_hash": device.environment.hash,
        "budget": {"trials": arguments.trials, "seconds": arguments.seconds},
        "written_at": now(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
