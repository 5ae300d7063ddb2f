"""A report whose numbers are made up and easy to check, as if from a GPU."""

from __future__ import annotations

from tilewright.tuner.report.rows import Bandwidth, LadderReport, Moves, StepRow, SweepRow, Time, Work

SIZES = (2, 16, 128, 1024)
STEPS = {  # by key: place, title, ms at the largest size, by how much a size of an eighth is faster
    "cpu_loop": ("loop", "CPU, one-thread loop", 2000.0, 8.0**3),
    "cpu_blas": ("blas", "CPU, <BLAS> & more", 40.0, 8.0**3),
    "naive": ("device", "naive", 0.5, 4.0),
    "tiled": ("device", "tiled", 0.25, 4.0),
    "library": ("library", "library", 0.0625, 4.0),
}


def time_of(median_ms: float) -> Time:
    return Time(median_ms, median_ms * 0.99, median_ms * 1.01, 11)


def work_of(size: int) -> Work:
    return Work(flops=2 * size**3, bytes_moved=12 * size**2)


def moves_of(size: int) -> Moves:
    return Moves(allocate_ms=0.2, to_device_ms=1e-6 * 8 * size**2, to_host_ms=1e-6 * 4 * size**2 + 0.01)


def made_report(**changes: object) -> LadderReport:
    steps, sweep = [], []
    for key, (place, title, largest_ms, factor) in STEPS.items():
        on_device = place in {"device", "library"}
        steps.append(
            StepRow(
                key=key,
                title=title,
                place=place,
                dtype="float32",
                shape={"m": 1024, "n": 1024, "k": 1024},
                work=work_of(1024),
                reason="One sentence. And another.",
                time=time_of(largest_ms),
                bound_ratio=0.5,
                configuration=f"{key} TILE_WIDTH=16" if place == "device" else "",
                chosen="as declared" if place == "device" else "",
                peak_gflops=60000.0 if on_device else None,
                tile={"naive": (1, 1), "tiled": (16, 16)}.get(key),
                moves=moves_of(1024) if on_device else None,
            )
        )
        for place_in_row, size in enumerate(reversed(SIZES)):
            time = time_of(largest_ms / factor**place_in_row)
            sweep.append(SweepRow(size, key, work_of(size), time, 0.5, "", moves_of(size) if on_device else None))
    left_out = StepRow(
        "tensor",
        "tensor",
        "device",
        "float32",
        {"m": 1},
        work_of(1),
        "One. Two.",
        left_out="needs ptx",
        peak_gflops=9e4,
    )
    whole = {
        "kernel": "gemm",
        "formula": "C = A B",
        "kind": "cuda",
        "device": "NVIDIA Made-up",
        "l2": "warm",
        "unit": "gflops",
        "swept": ("m", "n", "k"),
        "facts": {"device": "NVIDIA Made-up", "driver": "1.2", "command": "tilewright report gemm"},
        "bandwidth": Bandwidth(4800.0, 4500.0, "a made-up kernel"),
        "peaks": {"float32": 60000.0},
        "steps": (*steps, left_out),
        "sweep": tuple(sweep),
        "compared": (("naive", "tiled"), ("tiled", "library")),
        "notes": ("A note.",),
    }
    return LadderReport(**(whole | changes))
