"""Cubins a second of a job's pool alone and with a compile worker, in turns on this machine. Needs NVRTC, and no GPU.

    python benchmarks/installation/compile_workers.py --out compile-workers.json

Configurations of gemm `register` at 2048 cubed for an H200, drawn uniformly, each compiled once: in every pair of runs
one half by the pool alone, the other by the pool and one compile worker with as many compilers. The two stand for two
hosts: each has half of the cores, and a session of its own, so that the system gives it its part of a busy machine.
Between them is an embedded PostgreSQL in a temporary folder. On a machine with other work only the ratio tells much.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.service.operations.compiling.signatures import Trust
from tilewright.service.settings import settings
from tilewright.service.store import schema
from tilewright.service.store.embedded import EmbeddedPostgres, leave_servers
from tilewright.service.worker.compiling.job_offers import JobOffers
from tilewright.tuner.compile.compilation import Compilation, compiler_version
from tilewright.tuner.compile.pool import CompilePool

H200 = Limits((9, 0), 132, 140 << 30, max_shared_bytes=227 << 10, shared_bytes_per_multiprocessor=228 << 10)
REGISTERED_WITHIN_S = 120.0


def processor_name() -> str:
    """As Linux calls it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "an unknown processor")


def halves() -> tuple[set[int], set[int]]:
    """The cores of the job's side, and of the compile worker's."""
    cores = sorted(os.sched_getaffinity(0))
    middle = (len(cores) + 1) // 2
    return set(cores[:middle]), set(cores[middle:] or cores)


def drawn(count: int, seed: int) -> list[Compilation]:
    """Distinct compilations, uniform over the variant's whole space."""
    kernel = catalogue().get("gemm")
    problem = kernel.problem(dict.fromkeys("mnk", 2048))
    space = kernel.space(problem, H200, ["register"])
    places = np.random.default_rng(seed).choice(len(space), count, replace=False)
    return [Compilation.of(kernel, problem, space.feasible[int(place)], "sm_90", "nvrtc") for place in places]


def rate(pool: CompilePool, works: Sequence[Compilation], ahead: int) -> float:
    """Cubins a second, `ahead` of them asked for at a time, as a search asks."""
    begun, waiting = time.perf_counter(), list(works)
    pending = [pool.submit(waiting.pop(0)) for _ in range(min(ahead, len(waiting)))]
    while pending:
        pending.pop(0).result()
        if waiting:
            pending.append(pool.submit(waiting.pop(0)))
    return len(works) / (time.perf_counter() - begun)


@contextmanager
def compile_worker(folder: Path, processes: int, ours: set[int], theirs: set[int]) -> Iterator[Trust]:
    """A compile worker on an embedded database in that folder; the trust in its key.

    It has `theirs` of the cores, this process `ours` from then on.
    """
    key = Ed25519PrivateKey.generate()
    private, public = folder / "worker.key", folder / "worker.pub"
    private.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo))
    url = EmbeddedPostgres(folder / "postgres").enter()
    os.environ["TILEWRIGHT_DATABASE_URL"] = url
    settings.cache_clear()
    schema.upgrade()
    own = {"TILEWRIGHT_COMPILE_KEY": str(private), "TILEWRIGHT_CACHE_DIR": str(folder / "cache")}
    words = [sys.executable, "-m", "tilewright.service.cli", "compile-worker", "--processes", str(processes)]
    os.sched_setaffinity(0, theirs)  # inherited; PostgreSQL has been started and may use all
    process = subprocess.Popen(words, env=os.environ | own, start_new_session=True)
    os.sched_setaffinity(0, ours)
    try:
        yield Trust.of([public])
    finally:
        process.terminate()
        process.wait()
        leave_servers()


def measured(pairs: int, configurations: int, processes: int) -> list[dict[str, float]]:
    """A row for each pair of runs; which of the two comes first alternates."""
    works, rows = drawn(2 * pairs * configurations + 2 * processes, seed=1), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pool = stack.enter_context(CompilePool(processes))
        trust = stack.enter_context(compile_worker(folder, processes, *halves()))
        warm = JobOffers(pool, trust)
        deadline = time.monotonic() + REGISTERED_WITHIN_S
        with warm:
            while not pool.places_elsewhere:
                if time.monotonic() > deadline:
                    sys.exit("the compile worker has not registered")
                time.sleep(0.1)
            rate(pool, [works.pop() for _ in range(2 * processes)], 2 * processes)
        for pair in range(pairs):
            row = {}
            for how in ("alone", "helped") if pair % 2 == 0 else ("helped", "alone"):
                batch = [works.pop() for _ in range(configurations)]
                if how == "alone":
                    row[how] = rate(pool, batch, 4 * processes)
                    continue
                with JobOffers(pool, trust) as offers:
                    row[how] = rate(pool, batch, 4 * processes)
                row["from_elsewhere"] = offers.used / configurations
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    """Prints and writes the rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--configurations", type=int, default=24, help="of each run")
    parser.add_argument("--processes", type=int, default=1, help="compilers of the pool, and of the compile worker")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = f"CPU, {len(os.sched_getaffinity(0))} cores of {processor_name()}"
    rows = measured(arguments.pairs, arguments.configurations, arguments.processes)
    ratios = [row["helped"] / row["alone"] for row in rows]
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).date().isoformat(),
        "device": device,
        "nvrtc": compiler_version("nvrtc"),
        "load": os.getloadavg()[1],
        "rows": rows,
        "ratio": {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)},
    }
    print(json.dumps(result["ratio"]))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
