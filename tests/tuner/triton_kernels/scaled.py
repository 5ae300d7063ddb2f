"""A small Triton kernel for these tests, whose text tests change to make it wrong."""

from dataclasses import replace

from tilewright.kernels.kernel import Kernel, Scalar, Tensor, Variant, programs, shape_of
from tilewright.kernels.space import Configuration, choice

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def scale(x, BLOCK: tl.constexpr, y, n, step, factor):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    tl.store(y + place * step, tl.load(x + place, mask=inside) * factor, mask=inside)
"""

SCALED = Kernel(
    name="scaled",
    entry="scale",
    arguments=(
        Tensor("x", "input", shape_of("n")),
        Tensor("y", "output", shape_of("n")),
        Scalar("n", lambda p: p.shape["n"], dtype="int32"),
        Scalar("step", lambda _p: 1, dtype="int64"),
        Scalar("factor", lambda _p: 2.0, dtype="float32"),
    ),
    variants=(
        Variant(
            name="blocks",
            source="scale.py",
            launch=programs(lambda c, p: (-(-p.shape["n"] // c.BLOCK),)),
            parameters=(choice("BLOCK", 32, 64, 128), choice("num_warps", 1, 2)),
            min_compute_capability=(8, 0),
        ),
    ),
    reference=lambda _problem, arrays, _scalars: arrays["x"].astype("float64") * 2.0,
    example_shape={"n": 100},
)
PROBLEM = SCALED.problem({"n": 100})
CONFIGURATION = Configuration.of("blocks", {"BLOCK": 64, "num_warps": 2})


def scaled_in(folder, source=SOURCE):
    """The kernel with that source in the folder."""
    (folder / "scale.py").write_text(source)
    return replace(SCALED, folder=folder)
