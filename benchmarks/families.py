"""Families: tables of gemm at any number of rows, their loss at sizes that nobody tuned, a trace of launches.

    python benchmarks/families.py [--part tables] [--resume] [--stop-after 240] [--out FILE]

What is measured is a list of units of a minute and a half at most. Each is written when it is done; `--resume` leaves
out those that the file has, `--stop-after` begins none after so many seconds. `--summary` prints what the file says
beside the goals. Parts:

- tables: a family tuned from nothing, and again beginning with what shipped records predict; its ranges and modules
  (of gemm; `--kernel linear` for layers);
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
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from documents.file import now, read, write
from family_rows import exact, launches, tables, trace

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.local import open_device

PRODUCTS = {name: catalogue().get(name) for name in ("gemm", "linear")}
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
    parser.add_argument(
        "--kernel",
        action="append",
        choices=(*PRODUCTS, *launches.OTHERS),
        help="of the part at_launch; gemm and linear of tables and rows too",
    )
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
        kernel = unit.head.get("kernel", "gemm")
        chosen = "" if kernel == "gemm" else f" --kernel {kernel}"
        command = f"python benchmarks/families.py --part {unit.part}{chosen} --seed {arguments.seed}"
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
    products = [name for name in arguments.kernel or ("gemm",) if name in PRODUCTS]
    families = [
        family_of(n, k, dtype, arguments.largest, PRODUCTS[name])
        for name in products
        for n, k in shapes
        for dtype in dtypes
    ]
    for family in families:
        kernel = PRODUCTS[family.kernel]
        if "tables" in parts:
            of_table = partial(tables.table, device, kernel, family, arguments.table_seconds, seed)
            yield Unit("tables", tables.head(family), of_table)
        for size in tables.unseen(document, family) if "rows" in parts else ():
            head = {**tables.head(family), "m": size}
            found = partial(tables.ranges_of, document, family)
            of_row = partial(exact.row, device, kernel, family, size, found=found, seconds=arguments.seconds, seed=seed)
            yield Unit("rows", head, of_row)
    of_gemm = [family for family in families if family.kernel == "gemm"][: len(dtypes)]
    for family in of_gemm:
        if "invariant" in parts:
            of_pair = partial(tables.invariant, device, PRODUCTS[family.kernel], family, arguments.table_seconds, seed)
            yield Unit("invariant", tables.head(family), of_pair)
        if "trace" in parts:
            found = partial(tables.ranges_of, document, family)
            of_trace = partial(trace.trace, device, family, found, arguments.calls, seed)
            yield Unit("trace", {**tables.head(family), "calls": arguments.calls, "seed": seed}, of_trace)
    if "at_launch" in parts:
        yield from at_launch(device, of_gemm, arguments)
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


def family_of(n: int, k: int, dtype: str, largest: int, kernel: Kernel = PRODUCTS["gemm"]) -> Family:
    """Any number of rows up to `largest` of one product."""
    return Family.of(kernel, {"m": (1, largest), "n": n, "k": k}, dtype)


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


if __name__ == "__main__":
    main()
