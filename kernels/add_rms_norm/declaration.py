"""add_rms_norm: a normalisation of rows, of a sum that is stored too."""

from __future__ import annotations

from pathlib import Path

from tilewright.kernels.norm.kernel import norm_kernel

KERNEL = norm_kernel(
    "add_rms_norm",
    "S = X + R, the new residual, and Y its rows divided by their root mean square, times w.",
    Path(__file__).parent,
    is_centred=False,
    has_residual=True,
)
