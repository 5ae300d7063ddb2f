"""add_layer_norm: a normalisation of rows, of a sum that is stored too."""

from __future__ import annotations

from pathlib import Path

from tilewright.kernels.norm.kernel import norm_kernel

KERNEL = norm_kernel(
    "add_layer_norm",
    "S = X + R, the new residual, and Y its rows less their mean over their deviation, times w, plus b.",
    Path(__file__).parent,
    is_centred=True,
    has_residual=True,
)
