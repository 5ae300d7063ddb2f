"""Prints what this GPU's memory gives, in GB/s as JSON: a kernel that only reads (the best of some geometries), a copy.

    python benchmarks/bandwidth.py

A process of its own, so that the context in which it measures is gone when tuning begins.
"""

from __future__ import annotations

import functools
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tilewright.kernels.kernel import Launch
from tilewright.tuner.devices import DeviceSpec, find_device

LARGE_BYTES, SMALL_BYTES = 1 << 30, 1 << 28
"""The goal is stated at 256 MB and more; the larger read has the smaller part in starting and ending."""

SAMPLES = 7
UNROLLS, BLOCKS, PER_MULTIPROCESSOR = (4, 8, 16), (256, 512, 1024), (1, 2, 4, 8, 16)


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


def best_reads(device: Any) -> list[tuple[float, str]]:
    """GB/s and geometry of the fastest read of LARGE_BYTES, and of SMALL_BYTES."""
    buffers = {size: device.allocate(size + 16) for size in (LARGE_BYTES, SMALL_BYTES)}
    for size, buffer in buffers.items():
        device.fill(int(buffer), size + 16, 0)
    source = Path(__file__).with_name("read.cu").read_text(encoding="utf-8")
    best = [(0.0, "")] * 2
    for unroll, block, blocks in itertools.product(UNROLLS, BLOCKS, PER_MULTIPROCESSOR):
        compiled = device.compile(device.compilation(source, {"UNROLL": str(unroll)}, "read_all"))
        function = device.load(compiled.cubin, "read_all", "PQP")
        launch = Launch((blocks * device.model.limits.multiprocessors, 1, 1), (block, 1, 1))

        def read(
            buffer_bytes: int, size: int, function: Any = function, launch: Launch = launch, buffers: Any = buffers
        ) -> None:
            start = int(buffers[buffer_bytes])
            function.enqueue(launch, start, size // 16, start + buffer_bytes)

        geometry = f"{unroll} loads of 16 bytes a thread, {blocks} blocks of {block} a multiprocessor"
        for place, size in enumerate((LARGE_BYTES, SMALL_BYTES)):
            # The other buffer is read before each, so that nothing of this one is in the L2 cache.
            times = device.times_ms(
                functools.partial(read, LARGE_BYTES, size),
                SAMPLES,
                before=functools.partial(read, SMALL_BYTES, SMALL_BYTES),
            )
            best[place] = max(best[place], (size / statistics.median(times) / 1e6, geometry))
    return best


if __name__ == "__main__":
    sys.exit(main())
