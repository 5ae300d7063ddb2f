"""layer_norm: a normalisation of rows."""

from __future__ import annotations

from pathlib import Path

from tilewright.kernels.norm.kernel import norm_kernel

KERNEL = norm_kernel(
    "layer_norm",
    "y = (x - mean) / sqrt(mean of (x - mean)² + eps) w + b over each row of X, (m, n) row-major.",
    Path(__file__).parent,
    is_centred=True,
    has_residual=False,
)
