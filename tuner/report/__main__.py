"""python -m tilewright.tuner.report gemm --device cuda:0 --out DIR: a report without the service's packages.

`python -m tilewright.tuner.report render gemm.json --out DIR` makes the pages again from a report's JSON.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from tilewright.tuner.devices.local import DeviceSpec, find_device
from tilewright.tuner.errors import TunerError
from tilewright.tuner.report.choices import read_known
from tilewright.tuner.report.ladders import LADDERS
from tilewright.tuner.report.measuring import LadderRun
from tilewright.tuner.report.pages import write
from tilewright.tuner.report.rows import from_json
from tilewright.tuner.report.scales import scale_of


def main(words: Sequence[str]) -> int:
    """Measures, writes, and prints the paths; 1 with one line on stderr where that fails."""
    arguments = _parse(words)
    try:
        if arguments.what == "render":
            report = from_json(json.loads(arguments.file.read_text(encoding="utf-8")))
        else:
            device = DeviceSpec(find_device(arguments.device).uuid if arguments.device != "cpu" else "cpu").open()
            try:
                ladder = LADDERS[arguments.what]
                run = LadderRun(
                    device,
                    ladder,
                    scale_of(ladder, device.model.kind, quick=arguments.quick, seconds=arguments.seconds),
                    known=[one for path in arguments.known for one in read_known(path)],
                    counters=not arguments.no_counters,
                    command=shlex.join(["python", "-m", "tilewright.tuner.report", *words]),
                    on_progress=lambda share, what: _say(f"{share:4.0%} {what}"),
                )
                report = run.report()
            finally:
                device.close()
    except (TunerError, OSError, ValueError, KeyError, TypeError) as error:
        _say(f"error {type(error).__name__}: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    for path in write(report, arguments.out):
        sys.stdout.write(f"{path}\n")
    return 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tilewright.tuner.report", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    for name in LADDERS:
        one = commands.add_parser(name)
        one.add_argument("--device", default="cpu", help="cpu, cuda:0, or a GPU's UUID")
        one.add_argument("--known", type=Path, action="append", default=[], help="a bundle; repeatable")
        one.add_argument("--seconds", type=float, help="start no further size after this many seconds")
        one.add_argument("--quick", action="store_true", help="small sizes, configurations as declared")
        one.add_argument("--no-counters", action="store_true", help="do not run ncu")
        one.add_argument("--out", type=Path, required=True)
    again = commands.add_parser("render")
    again.add_argument("file", type=Path)
    again.add_argument("--out", type=Path, required=True)
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
