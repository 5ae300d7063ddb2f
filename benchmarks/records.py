"""Measures records of this machine's GPU, from which untuned problems are answered: layers of public models.

    make records [BENCH="--minutes 20"]

Each problem of predictions/model_series.py that is not shipped yet, with the kernels' code as it is, gets a search of
some seconds that begins with the winners of the problems before it. What was measured lies in the folder --work after
every problem, so that a second run goes on. In the end the records are written to tuner/predict/shipped/DEVICE.json.gz
(or --out), in place of older ones of the same problems that this script made; the others in that file stay.
`--work FOLDER --minutes 0` only writes them, without a GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from documents.file import now
from predictions.model_series import SERIES, Series
from predictions.records import described, document_of, shipped_rows
from predictions.rows import Run, State

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop.tune import Budget
from tilewright.tuner.predict import shipped

TRIALS = 200


def main() -> int:
    """Reads the command line and measures; 0 when every series is complete."""
    begun, given = time.monotonic(), parse()
    chosen = [one for one in SERIES if not given.only or any(word in one.name for word in given.only)]
    if given.minutes:
        device = open_device(given.device)
        try:
            for one in chosen:
                measure(device, one, given.work / f"{one.name}.json", begun + 60 * given.minutes)
        finally:
            device.close()
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(given.work.glob("*.json"))]
    results = [one for one in results if one["records"]]
    if results:
        out = given.out or shipped.FOLDER / f"{results[0]['device_model']}.json.gz"
        write(out, document_of(results))
    measured = {one["series"]: len(one["records"]) for one in results}
    missing = [f"{one.name}: {one.count - measured.get(one.name, 0)}" for one in chosen]
    missing = [line for line in missing if not line.endswith(": 0")]
    for line in missing:
        print(f"not measured of {line}. Run it again.", file=sys.stderr)
    return int(bool(missing))


def measure(device: Device, series: Series, path: Path, deadline: float) -> None:
    """Adds what the series' file lacks."""
    if time.monotonic() >= deadline:
        return
    kernel = catalogue().get(series.kernel)
    state: State = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"records": []}
    if not state["records"] and not series.of:
        state["records"] = shipped_rows(kernel, series.dtype, series.options, device.model.slug)
    state |= {"series": series.name, "kernel": kernel.name, "written_at": now(), "rows": []}
    state |= {"device_model": device.model.slug, "environment": asdict(device.environment), **described(device.model)}
    state["commands"] = [shlex.join(["python", "benchmarks/records.py", *sys.argv[1:]])]
    state["source_hashes"] = {variant.name: kernel.source_hash(variant.name) for variant in kernel.variants}
    run = Run(device, kernel, state, path, deadline, dtype=series.dtype, options=series.options)
    run.survey(series.shapes(), Budget(trials=TRIALS, seconds=series.seconds))


def write(path: Path, document: dict[str, Any]) -> None:
    """The file with these series and, of those that it had, what they have no newer measurement of."""

    def key(series: dict[str, Any]) -> str:
        script = series["commands"][0].split()[1]  # another one's stay as they are
        return json.dumps([script, *(series[name] for name in ("kernel", "dtype", "options", "axes"))])

    before = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {"series": []}
    own = {(key(one), *shape["sizes"]) for one in document["series"] for shape in one["shapes"]}
    for one in before["series"]:
        one["shapes"] = [shape for shape in one["shapes"] if (key(one), *shape["sizes"]) not in own]
    document["series"] = [one for one in before["series"] if one["shapes"]] + document["series"]
    path.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), 9, mtime=0))
    print(f"{path}: {path.stat().st_size} bytes")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--minutes", type=float, default=20.0, help="then no further problem begins")
    parser.add_argument("--only", action="append", metavar="WORD", help="series with this in their name; repeatable")
    parser.add_argument(
        "--work", type=Path, default=Path("records"), help="folder that keeps the measurements from one run to the next"
    )
    parser.add_argument("--out", type=Path, help="default: the package's file of this device model")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
