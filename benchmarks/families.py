"""Families: tables of gemm at any number of rows, their loss at sizes that nobody tuned, a trace of launches.

    python benchmarks/families.py [--part tables] [--resume] [--stop-after 240] [--out FILE]

What is measured is a list of units of a minute and a half at most. Each is written when it is done; `--resume` leaves
out those that the file has, `--stop-after` begins none after so many seconds. `--summary` prints what the file says
beside the goals. Parts:

- tables: a family tuned from nothing, and again beginning with what shipped records predict; its ranges and modules;
- rows: at eight sizes that tuning did not use, the table's configuration, the best of a search for exactly that size
  (8 s or 200 configurations; it does not begin with the table) and of the table's own, and the library, in turns;
- at_launch: a configuration with its size compiled in and with its size from the launch, in turns; of gemm, and of
  each other kernel with an open axis at one or two shapes (family_rows/launches.py; `--kernel` takes some of them);
- invariant: the table with batch_invariant beside the one without, at the sizes of both;
- trace: launches of 2,000 sizes, all met for the first time, beside torch.mm (family_rows/trace.py);
- bert: BERT-base at 200 random batches and lengths after one `accelerate`, beside itself as PyTorch runs it
  (family_rows/bert.py; needs transformers). TF32 is off.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from documents.file import now, read, write
from family_rows import exact, launches, tables, trace
from family_rows.summary import summary

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.local import open_device

GEMM = catalogue().get("gemm")
SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336), (5120, 5120), (768, 3072), (11008, 4096))
DTYPES = ("bfloat16", "float32")
LARGEST, BERT_CALLS = 8192, 200
PARTS = ("tables", "rows", "at_launch", "invariant", "trace", "bert")
RESULTS = Path(__file__).parent / "results"


class Unit(NamedTuple):
    """What is measured at one time: a member of the document, what identifies it there, and the measurement."""

    part: str
    head: Mapping[str, Any]
    measure: Callable[[], Mapping[str, Any]]


def main() -> None:
    """Measures what is missing, and says how it stands."""
    arguments = parsed()
    device = open_device(arguments.device, "nvrtc" if arguments.device.startswith("cuda") else None)
    out = arguments.out or RESULTS / device.model.slug.removeprefix("nvidia-") / "families.json"
    document = read(out) if arguments.resume or arguments.summary else {}
    document = {"device": device.model.name, **{part: document.get(part, []) for part in PARTS}}
    if not arguments.summary:
        run(device, document, out, arguments)
    print(summary(document))
    device.close()


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; may be given several times")
    parser.add_argument("--shape", action="append", metavar="NxK", help="of families, in place of the six")
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--kernel", action="append", choices=("gemm", *launches.OTHERS), help="of the part at_launch")
    parser.add_argument("--largest", type=int, default=LARGEST, help="rows")
    parser.add_argument("--seconds", type=float, default=8.0, help="of the search for one size")
    parser.add_argument("--table-seconds", type=float, default=1.0, help="of each search of a table")
    parser.add_argument("--calls", type=int, default=2000, help="of the trace")
    parser.add_argument("--accelerate-seconds", type=float, default=40.0, help="limit_s of the part bert")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--resume", action="store_true", help="leave out what the file has")
    parser.add_argument("--stop-after", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--summary", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def run(device: Device, document: dict[str, Any], out: Path, arguments: argparse.Namespace) -> None:
    """Measures unit after unit, and writes the file after each."""
    deadline = time.monotonic() + arguments.stop_after
    for unit in units(device, document, arguments):
        if any(row.items() >= unit.head.items() for row in document[unit.part]):
            continue
        if time.monotonic() > deadline:
            print("stopped by --stop-after; continue with --resume", file=sys.stderr)
            return
        begun = time.monotonic()
        command = f"python benchmarks/families.py --part {unit.part} --seed {arguments.seed}"
        facts = {"driver": device.environment.driver, "command": command, "measured_at": now()}
        row = {**unit.head, **unit.measure(), **facts}
        document[unit.part].append(row)
        write(out, document)
        words = " ".join(f"{name}={value}" for name, value in unit.head.items())
        print(f"{unit.part} {words}: {time.monotonic() - begun:.0f} s", flush=True)


def units(device: Device, document: Mapping[str, Any], arguments: argparse.Namespace) -> Iterator[Unit]:
    """All that there is to measure, in order: rows and traces use the tables that come before them."""
    parts = arguments.part or PARTS
    shapes = [tuple(map(int, one.split("x"))) for one in arguments.shape or ()] or SHAPES
    dtypes, seed = arguments.dtype or DTYPES, arguments.seed
    families = [family_of(n, k, dtype, arguments.largest) for n, k in shapes for dtype in dtypes]
    for family in families:
        if "tables" in parts:
            of_table = partial(tables.table, device, GEMM, family, arguments.table_seconds, seed)
            yield Unit("tables", tables.head(family), of_table)
        for size in tables.unseen(document, family) if "rows" in parts else ():
            head = {**tables.head(family), "m": size}
            found = partial(tables.ranges_of, document, family)
            of_row = partial(exact.row, device, GEMM, family, size, found=found, seconds=arguments.seconds, seed=seed)
            yield Unit("rows", head, of_row)
    for family in families[: len(dtypes)]:
        if "invariant" in parts:
            of_pair = partial(tables.invariant, device, GEMM, family, arguments.table_seconds, seed)
            yield Unit("invariant", tables.head(family), of_pair)
        if "trace" in parts:
            found = partial(tables.ranges_of, document, family)
            of_trace = partial(trace.trace, device, family, found, arguments.calls, seed)
            yield Unit("trace", {**tables.head(family), "calls": arguments.calls, "seed": seed}, of_trace)
    if "at_launch" in parts:
        yield from at_launch(device, families[: len(dtypes)], arguments)
    if "bert" in parts:
        from family_rows.bert import bert  # noqa: PLC0415 - needs transformers, which nothing else does

        head = {"model": "bert-base", "dtype": "float32", "calls": BERT_CALLS, "seed": seed}
        yield Unit("bert", head, partial(bert, BERT_CALLS, seed, arguments.accelerate_seconds))


def at_launch(device: Device, of_gemm: Sequence[Family], arguments: argparse.Namespace) -> Iterator[Unit]:
    """Every variant of gemm that runs on the device, then those of the other kernels."""
    kernels = arguments.kernel or ("gemm", *launches.OTHERS)
    families = [*(of_gemm if "gemm" in kernels else ()), *launches.others(kernels, arguments.dtype)]
    for family in families:
        kernel = catalogue().get(family.kernel)
        for variant in kernel.usable_variants(family.largest, device.model.limits):
            measure = partial(launches.at_launch, device, kernel, family, variant.name)
            yield Unit("at_launch", {**tables.head(family), "variant": variant.name}, measure)


def family_of(n: int, k: int, dtype: str, largest: int) -> Family:
    """Any number of rows up to `largest` of one product."""
    return Family.of(GEMM, {"m": (1, largest), "n": n, "k": k}, dtype)


if __name__ == "__main__":
    main()
