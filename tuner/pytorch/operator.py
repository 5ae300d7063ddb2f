"""An operator of PyTorch that launches a tuned kernel: one declaration, from which everything is registered.

One rule holds for all of them: a call that an operator has no rule for is PyTorch's own composition, with PyTorch's
derivatives, transformations and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tilewright.tuner.pytorch.operator_plans import Plans
from tilewright.tuner.pytorch.tuned_call import Posed
from tilewright.tuner.turns.turns import held

LIBRARY = torch.library.Library("tilewright", "DEF")
OPERATORS: dict[str, Operator] = {}
"""Every declared operator by its name."""


class RefusedError(RuntimeError):
    """The operator has no rule for these arguments; PyTorch may have one."""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator `torch.ops.tilewright.NAME`; making one registers it.

    `schema` is what follows the name. `result`, `pose` and `pytorch` are those of `Plans`; `result` says the shape and
    layout to tracing too, so that it must do with fake tensors, and raises RefusedError. `setup` and `backward` are
    autograd's (`torch.library.register_autograd`); without them gradients are those of `pytorch`.
    `autocast`: PyTorch's operator whose rule is taken, and the precision that this one computes in where it has a rule:
    the lower one, or float32; of several operators with different rules a part ("partly"), so that `pytorch` runs where
    an argument is of another dtype. None: autocast leaves the arguments as they are.
    `in_tf32`: whether PyTorch's own computes float32 on a GPU in TF32 now; None where it never does.
    """

    name: str
    schema: str
    kernel: str
    result: Callable[..., Any]
    pose: Callable[..., Posed]
    pytorch: Callable[..., Any]
    setup: Callable[..., None] | None = None
    backward: Callable[..., Any] | None = None
    autocast: tuple[str, Literal["lower", "float32", "partly"]] | None = None
    in_tf32: Callable[[], bool] | None = None
    op: Any = field(init=False)  # the overload
    plans: Plans = field(init=False)

    def __post_init__(self) -> None:
        """Registers the operator with PyTorch."""
        LIBRARY.define(self.name + self.schema, tags=(torch.Tag.pt2_compliant_tag,))
        object.__setattr__(self, "op", getattr(torch.ops.tilewright, self.name).default)
        plans = Plans(self.name, self.kernel, self.result, self.pose, self.pytorch, self.in_tf32)
        object.__setattr__(self, "plans", plans)
        name = f"tilewright::{self.name}"
        LIBRARY.impl(self.name, self._called(self._launched), "CompositeExplicitAutograd")
        torch.library.register_fake(name, self._called(self.result), lib=LIBRARY)
        if self._writes:
            LIBRARY.impl(self.name, self._written, "Autograd", with_keyset=True)
        else:
            setup, backward = (self._setup, self._backward) if self.backward is None else (self.setup, self.backward)
            torch.library.register_autograd(name, backward, setup_context=setup, lib=LIBRARY)
        for device_type, key in (("cuda", "AutocastCUDA"), ("cpu", "AutocastCPU")):
            if self._is_cast(device_type):
                LIBRARY.impl(self.name, partial(self._autocast, device_type, key), key)
        OPERATORS[self.name] = self

    def __call__(self, *arguments: Any) -> Any:
        """The result, of all arguments; past PyTorch's dispatcher where that has nothing to add.

        It has, where gradients are recorded, dtypes are chosen by autocast, or somebody traces or watches.
        """
        try:
            if is_watched():
                return self._dispatched(arguments)
            records = torch.is_grad_enabled()
            for one in arguments:  # a call of `all` takes as long as the rest of this
                if isinstance(one, Tensor) and (type(one) not in PLAIN or (records and one.requires_grad)):
                    return self._dispatched(arguments)
            return self.plans.run(*arguments)
        except RefusedError as refused:
            try:
                return self.pytorch(*arguments)
            except Exception as error:
                raise refused from error

    @property
    def _writes(self) -> bool:
        """Whether the operator writes into an argument and returns nothing."""
        return self.schema.endswith("-> ()")

    def _dispatched(self, arguments: Sequence[Any]) -> Any:
        if torch.compiler.is_compiling():
            self.result(*arguments)  # what is refused is refused here, where it can be caught
            return self.op(*arguments)
        is_ours = not is_transformed() and all(is_known(one) for one in arguments if isinstance(one, Tensor))
        return self.op(*arguments) if is_ours else self.pytorch(*arguments)

    def _called(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as the dispatcher calls it: without arguments that are at their defaults."""
        declared = self.op._schema.arguments  # noqa: SLF001 - no public name says the defaults
        defaults = [argument.default_value for argument in declared]

        def call(*given: Any) -> Any:
            result = function(*given, *defaults[len(given) :])
            return None if self._writes else result

        return call

    def _launched(self, *arguments: Any) -> Any:
        """The result for `torch.ops`; only `__call__` has PyTorch's own derivatives at hand."""
        if forward_ad._current_level >= 0 and any(has_tangent(one) for one in arguments):  # noqa: SLF001 - no public name asks
            raise NotImplementedError(f"tilewright::{self.name} has no forward derivative; call tilewright.torch's")
        with held():  # gradients may be recorded, or a compiler or a mode is at work
            return self.plans.run(*arguments)

    def _written(self, keys: Any, *arguments: Any) -> None:
        """PyTorch's own result where gradients are recorded: it derives, or refuses in its own way."""
        c = torch._C  # noqa: SLF001 - torch.library's own autograd kernels do it so
        if torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in arguments):
            self._called(self.pytorch)(*arguments)
            return
        with c._AutoDispatchBelowAutograd():  # noqa: SLF001
            self.op.redispatch(keys & c._after_autograd_keyset, *arguments)  # noqa: SLF001

    @staticmethod
    def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004 - autograd names it
        ctx.given = [None if isinstance(one, Tensor) else one for one in inputs]
        ctx.places = [place for place, one in enumerate(inputs) if isinstance(one, Tensor)]
        ctx.save_for_backward(*[inputs[place] for place in ctx.places])

    def _backward(self, ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """The gradients of PyTorch's own operator, which runs once more."""
        given, saved = list(ctx.given), dict(zip(ctx.places, ctx.saved_tensors, strict=True))
        wanted = [place for place in ctx.places if ctx.needs_input_grad[place]]

        def forward(*tensors: Tensor) -> Any:
            now = saved | dict(zip(wanted, tensors, strict=True))
            return self.pytorch(*[now.get(place, one) for place, one in enumerate(given)])

        _, pulled_back = torch.func.vjp(forward, *[saved[place] for place in wanted])
        found = dict(zip(wanted, pulled_back(gradients if gradients[1:] else gradients[0]), strict=True))
        return tuple(found.get(place) for place in range(len(given)))

    def _is_cast(self, device_type: str) -> bool:
        """Whether autocast has a rule on this kind of device in the PyTorch that is installed."""
        key = {"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}[device_type]
        has = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001 - no public name asks
        return self.autocast is not None and bool(has(f"aten::{self.autocast[0]}", key))

    def _autocast(self, device_type: str, key: str, *arguments: Any) -> Any:
        """The operator on arguments of autocast's precision."""
        given = self.cast(device_type, arguments)
        if (self.autocast or ("", ""))[1] == "partly" and any(
            a is not b for a, b in zip(given, arguments, strict=True)
        ):
            return self.pytorch(*arguments)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))):  # noqa: SLF001 - PyTorch's own register_autocast does it so, but for one fixed dtype
            return self.op(*given)

    def cast(self, device_type: str, arguments: Sequence[Any]) -> Sequence[Any]:
        """The arguments cast as autocast casts them for this kind of device."""
        if self.autocast is None or not self._is_cast(device_type):
            return arguments
        dtype = torch.get_autocast_dtype(device_type) if self.autocast[1] == "lower" else torch.float32

        def cast(one: Any) -> Any:
            is_eligible = isinstance(one, Tensor) and one.is_floating_point() and one.dtype != torch.float64
            return one.to(dtype) if is_eligible and one.device.type == device_type else one

        return [cast(one) for one in arguments]


PLAIN = frozenset({Tensor, torch.nn.Parameter})
"""The classes of tensors that have data of their own, and nothing that wants to hear of operators."""


def is_known(tensor: Tensor) -> bool:
    """Whether our rules hold for the tensor: it has strides, and no class with rules of its own.

    Tensors of a dispatch mode, which traces, are known.
    """
    if type(tensor) in PLAIN or torch.compiler.is_compiling():
        return type(tensor) in PLAIN and tensor.layout is torch.strided
    return tensor.layout is torch.strided and bool(torch._C._len_torch_dispatch_stack())  # noqa: SLF001 - no public name asks


def is_watched() -> bool:
    """Whether a compiler, a mode, a transformation, a tracer or autocast would see the call."""
    return torch.compiler.is_compiling() or is_watched_in_eager_mode()


# No public names ask these, and to look them up each time took longer than to ask.
_modes, _autocasts = torch._C._len_torch_dispatch_stack, torch._C._is_any_autocast_enabled  # noqa: SLF001
_transformation, _tracer = torch._C._functorch.peek_interpreter_stack, torch._C._get_tracing_state  # noqa: SLF001


def is_watched_in_eager_mode() -> bool:
    """Whether a mode, a transformation, a tracer or autocast would see the call, where no compiler is at work."""
    return bool(
        _modes()
        or _autocasts()
        or _transformation() is not None  # `is_transformed`, a call sooner
        or forward_ad._current_level >= 0  # noqa: SLF001 - as above
        or _tracer() is not None
    )


def is_transformed() -> bool:
    """Whether the call is inside of `torch.func`, or of a level of forward derivatives."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0  # noqa: SLF001


def has_tangent(argument: Any) -> bool:
    """Whether a forward derivative goes with it."""
    return isinstance(argument, Tensor) and forward_ad.unpack_dual(argument).tangent is not None


def check(holds: Any, operator: str, message: Callable[[], str]) -> None:
    """Raises RefusedError, as PyTorch's operators do for shapes that do not fit together."""
    if not holds:
        raise RefusedError(f"tilewright::{operator}: {message()}")
