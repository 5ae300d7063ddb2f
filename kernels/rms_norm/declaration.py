"""rms_norm: a normalisation of rows."""

from __future__ import annotations

from pathlib import Path

from tilewright.kernels.norm.kernel import norm_kernel

KERNEL = norm_kernel(
    "rms_norm",
    "y = x / sqrt(mean of x² + eps) w over each row of X, (m, n) row-major.",
    Path(__file__).parent,
    is_centred=False,
    has_residual=False,
)
