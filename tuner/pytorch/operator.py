"""An operator of PyTorch that launches a tuned kernel: one declaration, from which everything is registered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from tilewright.tuner.pytorch.plans import Plans, Posed

LIBRARY = torch.library.Library("tilewright", "DEF")
OPERATORS: dict[str, Operator] = {}
"""Every declared operator by its name."""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator `torch.ops.tilewright.NAME`; making one registers it.

    `schema` is what follows the name. `result`, `pose` and `pytorch` are those of `Plans`; `result` says the shape and
    layout to tracing too, so that it must do with fake tensors. `setup` and `backward` are autograd's
    (`torch.library.register_autograd`); an operator that writes into an argument has none. `autocast` says in which
    precision PyTorch would compute under autocast: the lower one, or float32.
    """

    name: str
    schema: str
    kernel: str
    result: Callable[..., Any]
    pose: Callable[..., Posed]
    pytorch: Callable[..., Any]
    setup: Callable[..., None] | None = None
    backward: Callable[..., Any] | None = None
    autocast: Literal["lower", "float32"] = "lower"
    op: Any = field(init=False)  # the overload
    plans: Plans = field(init=False)

    def __post_init__(self) -> None:
        """Registers it."""
        LIBRARY.define(self.name + self.schema, tags=(torch.Tag.pt2_compliant_tag,))
        object.__setattr__(self, "op", getattr(torch.ops.tilewright, self.name).default)
        plans = Plans(self.name, self.kernel, self.result, self.pose, self.pytorch)
        object.__setattr__(self, "plans", plans)
        LIBRARY.impl(self.name, self._called(plans.run), "CompositeExplicitAutograd")
        torch.library.register_fake(f"tilewright::{self.name}", self._called(self.result), lib=LIBRARY)
        if self.backward is not None:
            torch.library.register_autograd(
                f"tilewright::{self.name}", self.backward, setup_context=self.setup, lib=LIBRARY
            )
        for device_type, key in (("cuda", "AutocastCUDA"), ("cpu", "AutocastCPU")):
            LIBRARY.impl(self.name, partial(self._autocast, device_type, key), key)
        OPERATORS[self.name] = self

    def __call__(self, *arguments: Any) -> Any:
        """The result, of all arguments; past PyTorch's dispatcher where that has nothing to add.

        It has, where gradients are recorded, dtypes are chosen by autocast, or somebody traces or watches.
        """
        if is_watched():
            return self.op(*arguments)
        records = torch.is_grad_enabled()
        for one in arguments:  # a call of `all` takes as long as the rest of this
            if isinstance(one, Tensor) and (type(one) not in PLAIN or (records and one.requires_grad)):
                return self.op(*arguments)
        return self.plans.run(*arguments)

    def _called(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as the dispatcher calls it: without arguments that are at their defaults."""
        declared = self.op._schema.arguments  # noqa: SLF001 - no public name says the defaults
        defaults, count = [argument.default_value for argument in declared], len(declared)
        has_result = not self.schema.endswith("-> ()")

        def call(*given: Any) -> Any:
            arguments = given if len(given) == count else (*given, *defaults[len(given) :])
            result = function(*arguments)
            return result if has_result else None

        return call

    def _autocast(self, device_type: str, key: str, *arguments: Any) -> Any:
        """The operator on arguments of autocast's precision."""
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))):  # noqa: SLF001 - PyTorch's own register_autocast does it so, but for one fixed dtype
            return self.op(*self.cast(device_type, arguments))

    def cast(self, device_type: str, arguments: Sequence[Any]) -> Sequence[Any]:
        """The arguments as autocast has them, of this kind of device."""
        dtype = torch.float32 if self.autocast == "float32" else torch.get_autocast_dtype(device_type)

        def cast(one: Any) -> Any:
            is_eligible = isinstance(one, Tensor) and one.is_floating_point() and one.dtype != torch.float64
            return one.to(dtype) if is_eligible and one.device.type == device_type else one

        return [cast(one) for one in arguments]


PLAIN = frozenset({Tensor, torch.nn.Parameter})
"""The classes of tensors that have data of their own, and nothing that wants to hear of operators."""


def is_watched() -> bool:
    """Whether a compiler, a mode, a transformation, a tracer or autocast would see the call."""
    c = torch._C  # noqa: SLF001 - no public names ask these
    return bool(
        torch.compiler.is_compiling()
        or c._len_torch_dispatch_stack()  # noqa: SLF001
        or c._is_any_autocast_enabled()  # noqa: SLF001
        or c._functorch.peek_interpreter_stack() is not None  # noqa: SLF001
        or c._get_tracing_state() is not None  # noqa: SLF001
    )


def check(holds: Any, operator: str, message: Callable[[], str]) -> None:
    """Raises RuntimeError, as PyTorch's operators do for shapes that do not go together."""
    torch._check(holds, lambda: f"tilewright::{operator}: {message()}")  # noqa: SLF001 - public but for its name
