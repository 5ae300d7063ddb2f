"""Strikes a running service in random cycles and says what broke: `make chaos CYCLES=200 SEED=1`.

PYTHONPATH=tests python -m chaos --cycles 200 --seed 1 --out benchmarks/results/chaos.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from chaos.plan import SETTINGS
from chaos.run import Report, chaos
from tilewright.service.store.embedded_identity import POSTGRES_MAJOR
from tilewright.tuner.devices.cpu.device import cpu_name


def environment() -> dict[str, object]:
    """What the figures depend on."""
    return {
        "device": f"CPU ({cpu_name()})",
        "cores": os.cpu_count(),
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "postgresql": POSTGRES_MAJOR,
        "settings": SETTINGS,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def say(line: str) -> None:
    """Prints the line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def show(report: Report) -> None:
    """Prints what was done, what it came to, and every breach."""
    kinds = report.numbers["by_kind"]
    say(f"\n{'fault':<36}{'times':>6}")
    for kind, count in sorted(kinds.items()):
        say(f"{kind:<36}{count:>6}")
    for name, value in report.numbers.items():
        if name != "by_kind":
            say(f"{name:<36}{value}")
    for sentence in report.violations:
        say(f"VIOLATION {sentence}")
    say(f"{len(report.violations)} violations")


def main() -> int:
    """0 where everything held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further cycle after so many")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", action="store_true", help="leave the folder with the logs")
    arguments = parser.parse_args()
    about = environment()
    folder = Path(tempfile.mkdtemp(prefix="tilewright-chaos-"))
    os.environ["TILEWRIGHT_DATA_DIR"] = str(folder / "data")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # all that was started is stopped
    begun = time.monotonic()
    report = chaos(folder, arguments.seed, arguments.cycles, seconds=arguments.seconds, say=say)
    report.numbers["wall_s"] = round(time.monotonic() - begun, 1)
    show(report)
    if arguments.out:
        document = {
            "command": f"make chaos CYCLES={arguments.cycles} SEED={arguments.seed}",
            "environment": about,
            "seed": arguments.seed,
            **report.numbers,
            "violations": report.violations,
        }
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if arguments.keep or report.violations:
        say(f"logs: {folder}")
    else:
        shutil.rmtree(folder)
    return int(bool(report.violations))


if __name__ == "__main__":
    sys.exit(main())
