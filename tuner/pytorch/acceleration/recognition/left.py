"""Modules that are left as they are, each with a reason that its owner can act on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.utils import parametrize

from tilewright.tuner.pytorch.acceleration.recognition.calls import MODULES
from tilewright.tuner.pytorch.operator import PLAIN

RECURRENT = "PyTorch's own computes all of its steps in one call, each of which waits for the one before it"
ATTENTION = (
    "PyTorch's own is one operator in inference; attention that is written with nn.Linear and "
    "F.scaled_dot_product_attention can be replaced"
)

MADE = "a {} makes its weight in every call; torch.nn.utils.{} makes it a plain layer"
QUANTISED = "its weight is not of plain numbers; the library that made it so has kernels for it"
QUANTISED_BY = ("torch.ao.nn.", "torch.nn.quantized", "bitsandbytes.", "torchao.", "quanto.")
"""Modules of classes whose layers have packed weights."""


def left_alone(model: nn.Module) -> dict[str, str]:
    """Why modules stay as they are, by class, with the name of the first."""
    found: dict[str, tuple[str, str]] = {}
    for name, module in model.named_modules():
        reason = _reason(module)
        if reason:
            found.setdefault(type(module).__name__, (name or "the model", reason))
    return {f"{kind} ({name})": reason for kind, (name, reason) in found.items()}


def _reason(module: nn.Module) -> str:
    if isinstance(module, nn.RNNBase):
        return RECURRENT
    if isinstance(module, nn.MultiheadAttention):
        return ATTENTION
    if parametrize.is_parametrized(module):
        return MADE.format("parametrization", "parametrize.remove_parametrizations")
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or not (isinstance(module, nn.Linear) or type(module) in MODULES):
        return QUANTISED if type(module).__module__.startswith(QUANTISED_BY) else ""
    if "weight" not in module._parameters:  # noqa: SLF001 - as in installed.py
        return MADE.format("hook", "remove_weight_norm")
    return QUANTISED if type(weight) not in PLAIN or not weight.is_floating_point() else ""


def tied(parameters: Iterable[Tensor]) -> set[int]:
    """Identities of parameters that share memory with another one, and so are not moved."""
    given = list({id(one): one for one in parameters}.values())
    owners = Counter(one.untyped_storage().data_ptr() for one in given)
    return {id(one) for one in given if owners[one.untyped_storage().data_ptr()] > 1}
