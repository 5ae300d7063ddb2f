"""row_sum: a tiny kernel with one right variant and many wrong ones; kernels whose results have rows."""

from pathlib import Path

import numpy as np

from tilewright.kernels.kernel import Kernel, Launch, Reference, Tensor, Variant
from tilewright.kernels.space import Configuration, powers_of_two

FOLDER = Path(__file__).parents[1] / "tuner" / "bug_kernels"


def _reference(problem, arrays, scalars):
    x = arrays["x"].astype(np.float64)
    return Reference(x.sum(axis=1), np.abs(x).sum(axis=1), problem.shape["n"])


def _variant(path):
    is_dynamic = path.stem == "shuffled"
    return Variant(
        name=path.stem,
        source=path.name,
        launch=lambda c, p: Launch(
            (p.shape["m"], 1, 1), (c.THREADS, 1, 1), c.THREADS // 32 * p.item_bytes * is_dynamic
        ),
        parameters=(powers_of_two("THREADS", 64, 1024, default=128),),
        static_shared_bytes=lambda c, p: 0 if is_dynamic else c.THREADS * p.item_bytes,
    )


ROW_SUM = Kernel(
    name="row_sum",
    doc="y[m] = sum over n of x[m][n].",
    folder=FOLDER,
    axes=("m", "n"),
    dtypes=("float32", "float64"),
    options=(),
    arguments=(
        Tensor("x", "input", lambda p: (p.shape["m"], p.shape["n"])),
        Tensor("y", "output", lambda p: (p.shape["m"],)),
    ),
    variants=tuple(_variant(path) for path in sorted(FOLDER.glob("*.cu"))),
    flops=lambda p: p.shape["m"] * p.shape["n"],
    bytes_moved=lambda p: p.shape["m"] * (p.shape["n"] + 1) * p.item_bytes,
    reference=_reference,
    default_variant="good",
    example_shape={"m": 37, "n": 300},
)

PROBLEM = ROW_SUM.problem({"m": 37, "n": 300})


def configuration(variant, threads=128):
    return Configuration.of(variant, {"THREADS": threads})


ROW_KERNELS = {
    "softmax": ("online", {"BLOCK": 32, "UNROLL": 1, "VECTOR_WIDTH": 1}, {"m": 50, "n": 21}, "float32", {}),
    "add_layer_norm": ("walk", {"BLOCK": 32, "VECTOR_WIDTH": 1}, {"m": 50, "n": 21}, "float32", {}),
    "attention": (
        "tiled",
        {"LANES": 8, "TILE_K": 32, "TILE_Q": 16},
        {"batch": 3, "heads": 4, "queries": 40, "keys": 48, "depth": 32, "kv_heads": 2},
        "float32",
        {"mask": "causal"},
    ),
    "linear_gated": ("tiled", {"TILE_WIDTH": 8}, {"m": 20, "n": 24, "k": 32}, "bfloat16", {}),
    "conv2d": (
        "direct",
        {"THREADS": 256},
        {"batch": 3, "height": 9, "width": 8, "channels": 4, "filters": 4, "kernel_h": 3, "kernel_w": 3, "padding": 1},
        "float32",
        {},
    ),
}
