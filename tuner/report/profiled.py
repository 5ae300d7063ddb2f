"""Launches configurations once each, for ncu to watch: python -m tilewright.tuner.report.profiled FILE.

Its argument is a JSON file: a device's UUID and a list of {problem, configurations, library}. Only the launches that
count lie between the profiler's start and stop; the library's come last.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.local import DeviceSpec
from tilewright.tuner.report.choices import SEED


@contextmanager
def watched(device: Any) -> Iterator[None]:
    """Launches inside this context are profiled."""
    driver = ctypes.CDLL("libcuda.so.1")
    device.synchronize()
    driver.cuProfilerStart()
    yield
    device.synchronize()
    driver.cuProfilerStop()


def main(path: str) -> int:
    """Launches what the file names; a failure ends the program."""
    what = json.loads(Path(path).read_text(encoding="utf-8"))
    device: Any = DeviceSpec(what["device"]).open()
    for each in what["launches"]:
        problem_json = each["problem"]
        kernel = catalogue().get(problem_json["kernel"])
        problem = kernel.problem(problem_json["shape"], problem_json["dtype"], problem_json["options"])
        bench = device.bench(kernel, problem, SEED)
        executables = [bench.compile(Configuration.from_json(one)) for one in each["configurations"]]
        library = bench.library() if each["library"] else None
        for executable in [*executables, *([library] if library is not None else [])]:
            executable.enqueue()  # a first launch may load code
            with watched(device):
                executable.enqueue()
        bench.close()
    device.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
