"""Tunes shapes for the records that are shipped, and answers unseen shapes from them, as on a first day.

python benchmarks/day_one.py --kernel gemm --tuned 60 --seconds 1.4 --unseen 20 --unseen-seconds 1.8 --out FILE

Each tuned shape gets a search of so many seconds that begins with the winners of the shapes before it. Then predictions
are made for the unseen ones: from all records, and from those of two thirds of the shapes beside 5 or 20 of the last
third; and from the records that the package comes with (with `--tuned 0 --skip 60` from these alone, at the same unseen
shapes). They are verified and timed by turns, beside the fastest two configurations of a search and the library.

`--ship FILE … --out RECORDS` writes the records of such files as they come with the
package; `--judge FILE … --out TABLE` sums up what predictions are worth by the number of own shapes, among the
configurations that were measured at the unseen ones. Neither needs a GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from documents.file import now, write
from predictions.first_day import FirstDay, summary
from predictions.records import described, ship
from predictions.rows import Run, State
from predictions.shapes import LARGEST, SEED, SMALLEST, Shape, model_layers, random_layers, random_shapes

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop.tune import Budget

TRIALS, SETS = 200, 5


def main() -> int:
    """Reads the command line and measures; 0 when every shape has its row."""
    begun, arguments = time.monotonic(), parse(sys.argv[1:])
    if arguments.ship:
        ship([read(path) for path in arguments.ship], arguments.out)
        return 0
    if arguments.judge:
        judged = [summary(read(path)) for path in arguments.judge]
        write(arguments.out, {"command": shlex.join(["python", *sys.argv]), "kernels": judged})
        return 0
    with ProcessPoolExecutor(SETS, multiprocessing.get_context("spawn")) as executor:
        executor.map(abs, range(SETS))  # starts them, while the device is opened
        state = measured(arguments, executor, begun)
    return int(len(state["rows"]) < arguments.unseen)


def measured(arguments: argparse.Namespace, executor: Executor, begun: float) -> State:
    """The state of the run, which is also in its file."""
    kernel, device = catalogue().get(arguments.kernel), open_device(arguments.device)
    state: State = {
        "records": [],
        "rows": [],
        "written_at": now(),
        "commands": [shlex.join(["python", *sys.argv])],
        "device_model": device.model.slug,
        "environment": asdict(device.environment),
        "kernel": kernel.name,
        "seed": SEED,
        "sizes": [SMALLEST, arguments.largest],
        "tuned": arguments.tuned,
        "trials": TRIALS,
        "source_hashes": {variant.name: kernel.source_hash(variant.name) for variant in kernel.variants},
        **described(device.model),
    }
    shapes = shapes_of(kernel, arguments)
    run = Run(device, kernel, state, arguments.out, begun + arguments.survey_until, dtype=arguments.dtype)
    first_day = FirstDay(run, shapes[arguments.tuned + arguments.skip :])
    try:
        run.survey(shapes[: arguments.tuned], Budget(trials=TRIALS, seconds=arguments.seconds))
        print(f"records after {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
        if arguments.unseen:
            first_day.predict(executor)
        print(f"predicted after {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
        budget = Budget(trials=TRIALS, seconds=arguments.unseen_seconds)
        first_day.compare(budget, begun + arguments.until)
    finally:
        device.close()
        write(arguments.out, state)
    return state


def shapes_of(kernel: Kernel, arguments: argparse.Namespace) -> list[Shape]:
    """The tuned shapes, those that are skipped and the unseen ones."""
    count = arguments.tuned + arguments.skip + arguments.unseen
    if arguments.models:
        return model_layers(count)
    return (
        random_layers(count, arguments.largest) if arguments.layers else random_shapes(kernel, count, arguments.largest)
    )


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="gemm")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tuned", type=int, default=60)
    parser.add_argument("--unseen", type=int, default=20)
    parser.add_argument("--skip", type=int, default=0, help="shapes to skip, as those of shipped records")
    parser.add_argument("--seconds", type=float, default=1.4, help="of a tuned shape's search")
    parser.add_argument("--unseen-seconds", type=float, default=1.8, help="of an unseen shape's search")
    parser.add_argument("--largest", type=int, default=LARGEST, help="size of an axis")
    parser.add_argument("--layers", action="store_true", help="shapes of language models' layers")
    parser.add_argument("--models", action="store_true", help="shapes of public models' layers, at 1 to 4096 rows")
    parser.add_argument("--survey-until", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--until", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--ship", type=Path, nargs="+", default=[], metavar="FILE", help="results to make records of")
    parser.add_argument(
        "--judge", type=Path, nargs="+", default=[], metavar="FILE", help="results to sum up, without a GPU"
    )
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(words)


def read(path: Path) -> State:
    """A result's content, compressed or not."""
    data = path.read_bytes()
    content: State = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return content


if __name__ == "__main__":
    sys.exit(main())
