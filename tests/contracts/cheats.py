"""row_sum by kernels that cheat: what they return is right as long as nobody looks, and their times are not theirs."""

from pathlib import Path

import numpy as np

from tilewright.kernels.kernel import Kernel, Launch, Reference, Tensor, Variant
from tilewright.kernels.space import Configuration, Parameter

FOLDER = Path(__file__).parents[1] / "tuner" / "cheats"
HONEST = "honest"
ON_HOSTS = (
    "after_the_timing",
    "by_arguments",
    "from_the_parent",
    "in_a_file",
    "in_a_thread",
    "own_answers",
    "own_clock",
)
"""They call the C library, which a GPU does not have."""

EVERYWHERE = tuple(sorted({path.stem for path in FOLDER.glob("*.cu")} - {HONEST, *ON_HOSTS}))


def _reference(problem, arrays, scalars):
    x = arrays["x"].astype(np.float64)
    return Reference(x.sum(axis=1), np.abs(x).sum(axis=1), problem.shape["n"])


def _variant(name):
    return Variant(
        name=name,
        source=f"{name}.cu",
        launch=lambda c, p: Launch((p.shape["m"], 1, 1), (1, 1, 1), 0),
        parameters=(Parameter("TURN", (0, 1, 2), 0),),
    )


CHEATS = Kernel(
    name="row_sum",
    doc="y[m] = sum over n of x[m][n].",
    folder=FOLDER,
    axes=("m", "n"),
    dtypes=("float32",),
    options=(),
    arguments=(
        Tensor("x", "input", lambda p: (p.shape["m"], p.shape["n"])),
        Tensor("y", "output", lambda p: (p.shape["m"],)),
    ),
    variants=tuple(_variant(name) for name in (HONEST, *EVERYWHERE, *ON_HOSTS)),
    flops=lambda p: p.shape["m"] * p.shape["n"],
    bytes_moved=lambda p: p.shape["m"] * (p.shape["n"] + 1) * p.item_bytes,
    reference=_reference,
    default_variant=HONEST,
    example_shape={"m": 64, "n": 4096},
)

PROBLEM = CHEATS.problem({"m": 64, "n": 1024})


def configuration(variant):
    return Configuration.of(variant, {"TURN": 0})
