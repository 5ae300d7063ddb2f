"""Tuned kernels in PyTorch programs: `import tilewright.torch as tw`. See docs/pytorch.md."""

import importlib

from tilewright.tuner.pytorch.operators.attention import scaled_dot_product_attention
from tilewright.tuner.pytorch.operators.convolution import conv2d
from tilewright.tuner.pytorch.operators.gated import linear_gated
from tilewright.tuner.pytorch.operators.norms import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from tilewright.tuner.pytorch.plans import Decision, FallbackWarning, off, on, prepare, status, use
from tilewright.tuner.pytorch.operators.products import gemm, gemm_, gemv, linear
from tilewright.tuner.pytorch.operators.quantised import linear_quantized
from tilewright.tuner.pytorch.operators.softmax import softmax


_LATER = {
    "release": "tilewright.tuner.runtime.memory.scratch",
    "record": "tilewright.tuner.pytorch.recording.recorder",
    "accelerate": "tilewright.tuner.pytorch.acceleration.accelerate",
    "export_metrics": "tilewright.tuner.pytorch.metrics",
    "warm": "tilewright.tuner.pytorch.warm_up",
    "Acceleration": "tilewright.tuner.pytorch.acceleration.result",
    "AccelerationWarning": "tilewright.tuner.pytorch.acceleration.result",
}
"""What needs the launcher: a program that uses none of it does not wait for that."""


def __getattr__(name: str) -> object:
    """What is imported when it is asked for."""
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Acceleration",
    "AccelerationWarning",
    "Decision",
    "FallbackWarning",
    "accelerate",
    "add_layer_norm",
    "add_rms_norm",
    "conv2d",
    "export_metrics",
    "gemm",
    "gemm_",
    "gemv",
    "layer_norm",
    "linear",
    "linear_gated",
    "linear_quantized",
    "off",
    "on",
    "prepare",
    "record",
    "release",
    "rms_norm",
    "scaled_dot_product_attention",
    "softmax",
    "status",
    "use",
    "warm",
]
