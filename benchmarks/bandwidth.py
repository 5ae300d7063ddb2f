"""Prints this GPU's memory bandwidth in GB/s as JSON: a kernel that only reads (the best of some geometries), a copy.

    python benchmarks/bandwidth.py

A process of its own, so that the context in which it measures is gone when tuning begins.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tilewright.tuner.devices.cuda.read_bandwidth import LARGE_BYTES, best_reads
from tilewright.tuner.devices.local import DeviceSpec, find_device


def measured() -> dict[str, Any]:
    """The answer of this program, run in a new process."""
    done = subprocess.run([sys.executable, __file__], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def main() -> int:
    """Measures and prints."""
    device: Any = DeviceSpec(find_device("cuda:0").uuid).open()
    large, small = best_reads(device)
    answer = {
        "read_gb_per_s": large[0],
        "read_bytes": LARGE_BYTES,
        "read_geometry": large[1],
        "read_256mib_gb_per_s": small[0],
        "copy_gb_per_s": device.model.measured_gb_per_s,
        "datasheet_gb_per_s": device.model.datasheet_gb_per_s,
    }
    device.close()
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
