"""How good predicted answers are: tunes some shapes, predicts for others, and times these predictions beside tuning.

    python benchmarks/predict.py [--kernel gemm] [--tuned 60] [--unseen 20] [--trials 200] [--seconds 60] [--out FILE]

Sizes are log-uniform, from a seed; `--batch 512 --largest 512` draws batches, `--kernel conv2d` layers such as networks
have. Each of the tuned shapes gets a search of so many trials (and seconds, at most), without finals, which starts with
what was best for the nearest shapes tuned before it, as a job's does; then each tries what was best for the nearest of
all, as the next job of a schedule would first. Each unseen one gets the configuration that is predicted from these,
then a job of so many trials with finals; its winner, the prediction and the nearest shape's best are verified, then
timed in rounds, by turns. The ratio is the winner's time over the prediction's: 1 is as good as tuned, less is worse,
and 0 is one that failed.

State, all trials included, is written beside FILE after every shape, as FILE.state; `--resume` goes on from it,
`--stop-after` begins no further shape after so many seconds. The table comes last.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from documents.file import now, write
from predictions.rows import Run, State, geometric_mean
from predictions.shapes import LARGEST, SEED, SMALLEST, random_shapes

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop.tune import Budget

TUNED, UNSEEN = 60, 20
SECONDS, TRIALS = 60.0, 200
RESULTS = Path(__file__).with_name("results")


def main() -> int:
    """Reads the command line; 0 when every unseen shape has its row."""
    arguments = parse(sys.argv[1:])
    kernel, device = catalogue().get(arguments.kernel), open_device(arguments.device)
    path = arguments.out or RESULTS / device.model.slug.removeprefix("nvidia-") / "predict.json"
    kept = path.with_name(path.name + ".state")
    state = read_state(kept) if arguments.resume else {"records": [], "rows": []}
    state |= facts(device, kernel, arguments)
    run = Run(device, kernel, state, kept, time.monotonic() + arguments.stop_after)
    passed_over = arguments.tuned + arguments.skip
    shapes = random_shapes(kernel, passed_over + arguments.unseen, arguments.largest, most_products=arguments.batch)
    unseen = shapes[passed_over:]
    try:
        run.survey(shapes[: arguments.tuned], Budget(trials=arguments.trials, seconds=arguments.seconds))
        run.share()
        run.compare(unseen, arguments.trials)
    finally:
        device.close()
    if len(state["rows"]) < len(unseen):
        print("stopped by --stop-after; continue with --resume", file=sys.stderr)
        return 1
    counted = ("tried", "failed")
    records = [record | {name: len(record[name]) for name in counted} for record in state["records"]]
    state |= {"summary": summary(state["rows"]), "records": records}
    write(path, state)
    print(table(state))
    return 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="gemm")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tuned", type=int, default=TUNED)
    parser.add_argument("--unseen", type=int, default=UNSEEN)
    parser.add_argument("--skip", type=int, default=0, help="number of unseen shapes to skip")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for a tuned shape's search, at most")
    parser.add_argument("--trials", type=int, default=TRIALS, help="of each search, also of the jobs to compare with")
    parser.add_argument("--largest", type=int, default=LARGEST, help="size of an axis")
    parser.add_argument("--batch", type=int, default=1, help="products of a batch at most; 1: no batches")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--stop-after", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--out", type=Path, help="instead of benchmarks/results/<device>/predict.json")
    return parser.parse_args(words)


def facts(device: Device, kernel: Kernel, arguments: argparse.Namespace) -> State:
    """What holds for the run as a whole."""
    return {
        "written_at": now(),
        "command": shlex.join(["python", *sys.argv]),
        "device_model": device.model.slug,
        "environment": asdict(device.environment),
        "kernel": kernel.name,
        "seed": SEED,
        "sizes": [SMALLEST, arguments.largest],
        "batch": arguments.batch,
        "tuned": arguments.tuned,
        "passed_over": arguments.skip,
        "seconds": arguments.seconds,
        "trials": arguments.trials,
    }


def summary(rows: Sequence[State]) -> State:
    """The figures that the goal is about, for predictions and for the nearest shape's best."""
    totals: State = {}
    for name, key in (("predicted", "ratio"), ("nearest", "nearest_ratio")):
        ratios = [row[key] for row in rows]
        totals[name] = {"geometric_mean": geometric_mean(ratios), "minimum": min(ratios)}
    losses = [row["expected_loss"] for row in rows if row["expected_loss"] is not None]
    totals["expected"] = geometric_mean([1 / (1 + loss) for loss in losses]) if losses else None
    return totals


def line(row: State) -> str:
    """One row of the table."""
    sizes = "x".join(str(size) for size in row["shape"].values())
    expected = "" if row["expected_loss"] is None else f"{1 / (1 + row['expected_loss']):.3f}"
    times = " | ".join(f"{row['times_ms'].get(name, float('nan')):.4g}" for name in ("tuned", "predicted", "nearest"))
    return f"| {sizes} | {times} | {row['ratio']:.3f} | {row['nearest_ratio']:.3f} | {expected} |"


def table(state: State) -> str:
    """All rows and what they come to."""
    head = "| shape | tuned, ms | predicted, ms | nearest's best, ms | predicted | nearest | expected |"
    totals = state["summary"]
    means = " ".join(
        f"{name}: geometric mean {totals[name]['geometric_mean']:.3f}, minimum {totals[name]['minimum']:.3f};"
        for name in ("predicted", "nearest")
    )
    lines = [head, "|---|" + "---:|" * 6, *(line(row) for row in state["rows"]), "", means.rstrip(";")]
    return "\n".join(lines)


def read_state(path: Path) -> State:
    """What a run that was stopped has left; nothing where there is no file."""
    if not path.exists():
        return {"records": [], "rows": []}
    state: State = json.loads(path.read_text(encoding="utf-8"))
    return state


if __name__ == "__main__":
    sys.exit(main())
