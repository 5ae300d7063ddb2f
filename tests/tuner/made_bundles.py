"""Bundles for a device that nobody has, written by hand as docs/exchange.md describes them."""

import base64
import hashlib
import json

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.tuner.runtime.choice import TargetDevice

GEMM = catalogue().get("gemm")
SHAPE = {"m": 64, "n": 48, "k": 80}
PROBLEM = GEMM.problem(SHAPE)
OTHER = GEMM.problem({"m": 32, "n": 32, "k": 32})
PLACE = TargetDevice("test-gpu", Limits(compute_capability=(8, 0), multiprocessors=132, memory_bytes=1 << 33))
CUBIN = b"\x7fELF a cubin"


def result(width=8, problem=PROBLEM, **changes):
    """A result as docs/exchange.md describes it."""
    found = {
        **problem.as_json(),
        "variant": "tiled",
        "configuration": {"TILE_WIDTH": width},
        "source": GEMM.source_hash("tiled"),
        "time_ms": 0.5,
        "library": {"name": "cuBLAS", "time_ms": 0.25, "faster": True},
        "cubin": hashlib.sha256(CUBIN).hexdigest(),
    }
    return found | changes


def bundle_file(folder, *results, **changes):
    """A folder of one bundle with right sums."""
    document = {
        "format": "tilewright-bundle/1",
        "device_model": {"slug": PLACE.slug},
        "results": list(results),
        "cubins": {hashlib.sha256(CUBIN).hexdigest(): base64.b64encode(CUBIN).decode()},
    } | changes
    folder.mkdir(exist_ok=True)
    (folder / "test-gpu.json").write_text(json.dumps(document))
    sums(folder)
    return folder


def sums(folder):
    digest = hashlib.sha256((folder / "test-gpu.json").read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest}  test-gpu.json\n")


def choose(runtime, problem=PROBLEM, place=PLACE):
    return runtime.choose(GEMM, problem, place)
