"""Layers with weights of 8 bits, where a model's owner allows that: whole numbers beside the weights they are of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tilewright.tuner.pytorch.acceleration.installation.shared import SharedLayers
from tilewright.tuner.pytorch.acceleration.judgement.trees import version_of
from tilewright.tuner.pytorch.acceleration.recognition.call import Call
from tilewright.tuner.pytorch.operators.quantised import LINEAR_QUANTIZED, int8_of

INT8, TOLERANCE = "int8", 5e-2
"""The word for `weights`, and the error allowed to the model's output; a layer's is some 0.006 of its norm."""

_NAMES = ("_tilewright_w", "_tilewright_s")
"""Of buffers, so that they move with the model and a CUDA graph of torch.compile reads them where they lie. They are
not in its state."""


def quantise(layer: nn.Linear) -> None:
    """Gives the layer buffers with its present weights in whole numbers, unless it has them.

    It keeps those that it has where they lie, since graphs and compiled code read them there.
    """
    if is_current(layer):
        return
    with torch.inference_mode(mode=False), torch.no_grad():  # so that they can be written again in any mode
        for name, one in zip(_NAMES, int8_of(layer.weight), strict=True):
            held = layer._buffers.get(name)  # noqa: SLF001 - as in installed.py
            if held is None or (held.shape, held.dtype, held.device) != (one.shape, one.dtype, one.device):
                layer.register_buffer(name, one, persistent=False)
            else:
                held.copy_(one)
    vars(layer)["_tilewright_of"] = layer.weight, version_of(layer.weight)


def forget(model: nn.Module) -> None:
    """Takes the buffers away."""
    for layer in model.modules():
        if vars(layer).pop("_tilewright_of", None) is not None:
            for name in _NAMES:
                delattr(layer, name)


def is_current(layer: nn.Linear) -> bool:
    """Whether its buffers are of its weights, which nobody changed since."""
    weight, version = vars(layer).get("_tilewright_of", (None, 0))
    return weight is layer.weight and version == version_of(weight)


def layers_with(model: nn.Module) -> list[nn.Linear]:
    """The layers that have such buffers."""
    return [one for one in model.modules() if "_tilewright_of" in vars(one)]


class QuantisedLinear(nn.Linear):  # type: ignore[misc]
    """A layer that runs `tw.linear_quantized` for accepted inputs, until the weights are changed."""

    def forward(self, input: Tensor) -> Any:  # noqa: A002 - PyTorch's name
        """The result of PyTorch's class, by 8-bit weights for accepted inputs."""
        found = self._tilewright.result(self, input, _call)
        return super().forward(input) if found is None else found

    def _load_from_state_dict(self, *given: Any) -> None:
        """Loads, and makes the whole numbers anew: code of `torch.compile` does not see that weights were changed."""
        super()._load_from_state_dict(*given)
        quantise(self)


def _call(layer: nn.Linear, x: Tensor) -> Call | None:
    if not torch.compiler.is_compiling() and not is_current(layer):
        return None
    w, s = (layer._buffers[name] for name in _NAMES)  # noqa: SLF001 - as in installed.py
    return Call(LINEAR_QUANTIZED, (x, w, s, INT8))


class QuantisedLayers(SharedLayers):
    """The joint product of such layers with one input: their whole numbers lie behind one another."""

    def pieces(self) -> list[list[Any]]:
        """The layers' whole numbers and scales."""
        return [[one._buffers[name] for one in self.layers] for name in _NAMES]  # noqa: SLF001 - as in installed.py

    def product(self, x: Tensor, *whole: Any) -> Any:
        """The product that such a layer computes."""
        return LINEAR_QUANTIZED(x, *whole, INT8)

    def _is_joined(self) -> bool:
        return all(map(is_current, self.layers)) and super()._is_joined()
