"""Layers with weights of 8 bits, where a model's owner allows that: whole numbers beside the weights they are of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tilewright.tuner.pytorch.acceleration.calls import Call
from tilewright.tuner.pytorch.acceleration.shared import version_of
from tilewright.tuner.pytorch.quantised import LINEAR_QUANTIZED, int8_of

INT8, TOLERANCE = "int8", 5e-2
"""What the model's output may be off by; a layer's is by some 0.006 of its norm."""

_NAMES = ("_tilewright_w", "_tilewright_s")
"""Of buffers, so that they move with the model and a CUDA graph of torch.compile reads them where they lie. They are
not in its state."""


def quantise(layer: nn.Linear) -> None:
    """Gives the layer buffers with its weights as they are now, unless it has them."""
    if not _is_of(layer):
        for name, one in zip(_NAMES, int8_of(layer.weight), strict=True):
            layer.register_buffer(name, one, persistent=False)
        vars(layer)["_tilewright_of"] = layer.weight, version_of(layer.weight)


def forget(model: nn.Module) -> None:
    """Takes the buffers away."""
    for layer in model.modules():
        if vars(layer).pop("_tilewright_of", None) is not None:
            for name in _NAMES:
                delattr(layer, name)


def _is_of(layer: nn.Linear) -> bool:
    """Whether its buffers are of its weights, which nobody changed since."""
    weight, version = vars(layer).get("_tilewright_of", (None, 0))
    return weight is layer.weight and version == version_of(weight)


class QuantisedLinear(nn.Linear):  # type: ignore[misc]
    """`tw.linear_quantized` for some inputs, until the weights are changed."""

    def forward(self, x: Tensor) -> Any:
        """The result of PyTorch's class, or nearly."""
        found = self._tilewright.result(self, x, _call)
        return super().forward(x) if found is None else found


def _call(layer: nn.Linear, x: Tensor) -> Call | None:
    if not torch.compiler.is_compiling() and not _is_of(layer):
        return None
    w, s = (layer._buffers[name] for name in _NAMES)  # noqa: SLF001 - as in installed.py
    return Call(LINEAR_QUANTIZED, (x, w, s, INT8))
