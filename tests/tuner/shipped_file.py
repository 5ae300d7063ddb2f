"""A file of shipped records as the package has them, of invented times."""

import gzip
import json

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.predict.shipped import FORMAT

GEMM = catalogue().get("gemm")
SHAPES = [(256, 256, 256), (512, 256, 512), (1024, 512, 256), (1024, 1024, 1024), (2048, 512, 512), (128, 4096, 64)]
WIDTHS = (4, 8, 16, 24, 32)
BLOCKS = [(x, y) for x in (16, 32, 64) for y in (2, 4, 8)]
WORDS = "shipped records of an NVIDIA H200 (driver 580.159, 2026-11-23)"
LIMITS = {
    "compute_capability": [9, 0],
    "multiprocessors": 132,
    "memory_bytes": 141 * 10**9,
    "max_shared_bytes": 232_448,
}


def time_ms(m, n, k, width=None):
    """Faster the wider the tile; without a tile slow."""
    return m * n * k * 1e-9 * (64 / width if width else 40)


def trials(m, n, k):
    """Of one shape: of each variant rows of values, time and registers."""
    return {
        "tiled": [[width, time_ms(m, n, k, width), 40] for width in WIDTHS],
        "naive": [[x, y, time_ms(m, n, k), 30] for x, y in BLOCKS],
    }


def shape(m, n, k, library=20.0):
    """One shape; the library takes as long as a tile of 64 / `library` would."""
    ms = m * n * k * 1e-9 * library
    return {"sizes": [m, n, k], "library": ["cuBLAS 13.1", ms], "trials": trials(m, n, k), "failed": {}}


def document(**changes):
    """The file's content, with changes of its only series."""
    parameters = {"tiled": ["TILE_WIDTH"], "naive": ["BLOCK_X", "BLOCK_Y"]}
    series = {
        "kernel": "gemm",
        "dtype": "float32",
        "options": dict(GEMM.problem(dict(zip("mnk", SHAPES[0], strict=True))).option_items),
        "axes": ["m", "n", "k"],
        "measured_on": "2026-11-23",
        "variants": {
            name: {"source_hash": GEMM.source_hash(name), "parameters": names} for name, names in parameters.items()
        },
        "shapes": [shape(*sizes) for sizes in SHAPES],
    }
    facts = {"device_model": "nvidia-h200", "name": "NVIDIA H200", "driver": "580.159", "toolkit": "13.0"}
    return {"format": FORMAT, "limits": LIMITS, "series": [series | changes], **facts}


def write(folder, content):
    """Puts the file into the folder."""
    (folder / "nvidia-h200.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
