"""The ladder of a kernel that has none of its own: as it is declared, then each of its variants, searched."""

from __future__ import annotations

from tilewright.kernels.kernel import Kernel, Variant
from tilewright.tuner.report.ladders import LADDERS, Ladder, Step


def ladder_of(kernel: Kernel) -> Ladder:
    """The kernel's own ladder, else one of its declaration at its example's shape, in its first dtype, without a sweep.

    No sweep, since nobody but its author knows which sizes go together.
    """
    if kernel.name in LADDERS:
        return LADDERS[kernel.name]
    dtype = "float32" if "float32" in kernel.dtypes else kernel.dtypes[0]
    declared = Step(
        "declared",
        "default configuration",
        "device",
        "What is launched where nothing is known: the default variant with the values that its author declared.",
        dtype=dtype,
        is_searched=False,
        sweeps=False,
    )
    library = Step(
        "library",
        "library",
        "library",
        "The fastest of the library's calls for this problem.",
        dtype=dtype,
        sweeps=False,
    )
    return Ladder(
        kernel=kernel.name,
        formula=kernel.doc,
        steps=(declared, *(_searched(variant, dtype) for variant in kernel.variants), library),
        compared=(),
        unit="gflops" if kernel.flops(kernel.problem(kernel.example_shape, dtype)) else "gb_per_s",
        shape=kernel.example_shape,
    )


def _searched(variant: Variant, dtype: str) -> Step:
    about = " ".join(variant.doc.split())
    reason = f"{about.rstrip('.')}. The fastest configuration that is known, or that a short search found."
    return Step(
        variant.name,
        variant.name,
        "device",
        reason.lstrip(". "),
        (variant.name,),
        dtype=dtype,
        sweeps=False,
        than="declared",
    )
