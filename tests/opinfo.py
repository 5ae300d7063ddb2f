"""PyTorch's own samples of its operators (`torch.testing._internal.opinfo`), through ours, beside PyTorch's results.

`python tests/opinfo.py --device cpu` runs them all and prints a table. Needs expecttest, as PyTorch's test code does.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from small_operators import Small
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.testing._internal import common_utils, opinfo
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import noncontiguous_like
from torch.utils import _pytree as pytree

import tilewright.torch as tw
from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.pytorch.acceleration.installation.installed import install, uninstall
from tilewright.tuner.pytorch.acceleration.recognition.sites import observe
from tilewright.tuner.runtime import Runtime

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64)
CLOSE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.complex64: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""The difference that is allowed, over the largest number of the result."""

LEAST_OURS = 0.6
"""The share of contiguous samples of the dtypes that kernels have, which kernels of ours must have computed."""

# PyTorch searches the call stack for a unittest method, for each entry: seconds for nothing, as no unittest runs here.
common_utils.extract_test_fn = opinfo.core.extract_test_fn = lambda: None


class UnsayableError(Exception):
    """The operator has no argument for it: listed as refused."""


def _fresh(input, mat1, mat2):  # noqa: A002 - PyTorch's name
    return input.expand(*mat1.shape[:-1], mat2.shape[-1]).clone()


def _into(input, mat1, mat2, *, beta=1, alpha=1):  # noqa: A002
    if isinstance(alpha, complex) or isinstance(beta, complex):
        raise UnsayableError("alpha and beta of gemm_ are real numbers")
    return tw.gemm_(_fresh(input, mat1, mat2), mat1, mat2, alpha=alpha, beta=beta)


def _said(input, normalized_shape, *vectors):  # noqa: A002
    if all(one is None for one in vectors) and tuple(normalized_shape) != tuple(input.shape[-1:]):
        raise UnsayableError("a norm without a weight is over the last dimension")


def _layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):  # noqa: A002
    _said(input, normalized_shape, weight, bias)
    return tw.layer_norm(input, weight, bias, eps)


def _rms_norm(input, normalized_shape, weight=None, eps=None):  # noqa: A002
    _said(input, normalized_shape, weight)
    return tw.rms_norm(input, weight, eps)


OPERATORS: dict[str, Callable[..., Any]] = {
    "nn.functional.linear": tw.linear,
    "matmul": tw.gemm,
    "__rmatmul__": lambda a, b: tw.gemm(b, a),
    "mm": tw.gemm,
    "bmm": tw.gemm,
    "mv": tw.gemv,
    "addmm": _into,
    "baddbmm": _into,
    "nn.functional.conv2d": tw.conv2d,
    "softmax": lambda x, dim, dtype=None: tw.softmax(x if dtype is None else x.to(dtype), dim),
    "nn.functional.layer_norm": _layer_norm,
    "nn.functional.rms_norm": _rms_norm,
}
"""By the name in PyTorch's list."""

IN_PLACE: dict[str, Callable[..., Any]] = {
    "addmm": lambda c, a, b, **numbers: _fresh(c, a, b).addmm_(a, b, **numbers),
    "baddbmm": lambda c, a, b, **numbers: _fresh(c, a, b).baddbmm_(a, b, **numbers),
}
"""What PyTorch has beside `gemm_`: autocast leaves an operator that writes into an argument alone."""

ENTRIES = [one for one in op_db if one.name in OPERATORS]


class One(nn.Module):
    """A module that calls one function of PyTorch."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given, **named):
        return self.function(*given, **named)


def accelerated(function):
    """The function, with everything replaced in it that can be, whether it is faster or not."""

    def call(*given, **named):
        model = One(function).eval()
        with torch.no_grad():
            sites = observe(model, lambda: model(*given, **named))
        install(model, [one.stand() for one in sites], with_gradients=True)
        try:
            return model(*given, **named)
        finally:
            uninstall(model)

    return call


def _mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    return pytree.tree_map(lambda one: change(one) if isinstance(one, Tensor) else one, value)


def _differentiable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _like(tensor: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, dtype=torch.float32, generator=generator).to(tensor.device, tensor.dtype)


def _transposed(one: Tensor) -> Tensor:
    return one.mT.contiguous().mT if one.dim() > 1 else one


def _negated(one: Tensor) -> Tensor:
    return torch._neg_view(-one) if _differentiable(one) else one


def _conjugated(one: Tensor) -> Tensor:
    return one.conj_physical().conj() if one.is_complex() else _negated(one)


def _plainly(change: Callable[[Tensor], Tensor], call: Callable[..., Any], given: Any) -> Any:
    values, named = _mapped(change, given)
    return call(*values, **named)


def _with_out(call: Callable[..., Any], given: Any) -> Any:
    values, named = given
    out = torch.empty(0, dtype=values[0].dtype, device=values[0].device)
    call(*values, **named, out=out)
    return out


def _gradient(call: Callable[..., Any], given: Any) -> Any:
    given = _mapped(lambda one: one.detach().clone().requires_grad_(_differentiable(one)), given)
    result = call(*given[0], **given[1])
    leaves = [one for one in pytree.tree_leaves(given) if isinstance(one, Tensor) and one.requires_grad]
    return result.detach(), torch.autograd.grad(result, leaves, _like(result, 1), allow_unused=True)


def _forward(call: Callable[..., Any], given: Any) -> Any:
    with forward_ad.dual_level():
        values, named = _mapped(lambda one: forward_ad.make_dual(one, _like(one, 2)), given)
        found = forward_ad.unpack_dual(call(*values, **named))
        return found.primal, found.tangent


def _under_autocast(call: Callable[..., Any], given: Any) -> Any:
    device = next(one for one in pytree.tree_leaves(given) if isinstance(one, Tensor)).device.type
    with torch.autocast(device, torch.bfloat16):
        return call(*given[0], **given[1])


def _vmapped(call: Callable[..., Any], given: Any) -> Any:
    leaves, spec = pytree.tree_flatten(given)
    tensors = [torch.stack([one, one.flip(0) if one.dim() else one]) for one in leaves if isinstance(one, Tensor)]

    def one_of(*slices: Tensor) -> Any:
        rest = iter(slices)
        values, named = pytree.tree_unflatten([next(rest) if isinstance(x, Tensor) else x for x in leaves], spec)
        return call(*values, **named)

    return torch.vmap(one_of)(*tensors)


def _inferred(call: Callable[..., Any], given: Any) -> Any:
    with torch.inference_mode():
        return _plainly(torch.clone, call, given).clone()


WAYS: dict[str, Callable[[Callable[..., Any], Any], Any]] = {
    "plain": lambda call, given: _plainly(lambda one: one, call, given),
    "strided": lambda call, given: _plainly(noncontiguous_like, call, given),
    "transposed": lambda call, given: _plainly(_transposed, call, given),
    "lazy view": lambda call, given: _plainly(_conjugated, call, given),
    "inference": _inferred,
    "gradient": _gradient,
    "forward": _forward,
    "autocast": _under_autocast,
    "vmap": _vmapped,
    "out": _with_out,
}


class Outcome(NamedTuple):
    """`verdict`: passed, refused or failed, or "neither" where PyTorch refuses too; `is_ours`: a kernel computed it."""

    entry: str
    dtype: str
    way: str
    through: str
    verdict: str
    is_ours: bool
    reason: str = ""


@dataclass(frozen=True)
class Case:
    """A sample in one way, through an operator of ours or an accelerated module."""

    entry: Any
    dtype: torch.dtype
    number: int
    way: str
    through: str

    @property
    def name(self) -> str:
        """It says all but the numbers, which follow from it."""
        return f"{self.entry.full_name} {self.dtype} {self.number} {self.way} {self.through}"

    def outcome(self, sample: Any) -> Outcome:
        """What came of it."""
        given = ([sample.input, *sample.args], sample.kwargs)
        is_operator, theirs_by = self.through == "operator", self.entry.op
        mine_by = OPERATORS[self.entry.name] if is_operator else accelerated(theirs_by)
        theirs = _tried(self.way, IN_PLACE.get(self.entry.name, theirs_by) if is_operator else theirs_by, given)
        tw.use(_runtime(sample.input.device.type))  # forgets what was called before
        mine = _tried(self.way, mine_by, given)
        is_ours = any(one.is_ours for one in tw.status())
        verdict, reason = self._verdict(mine, theirs)
        kind = str(self.dtype).removeprefix("torch.")
        return Outcome(self.entry.full_name, kind, self.way, self.through, verdict, is_ours, reason)

    def _verdict(self, mine: Any, theirs: Any) -> tuple[str, str]:
        if isinstance(theirs, Exception):
            return ("neither", "") if isinstance(mine, Exception) else ("failed", f"only PyTorch raises: {theirs}")
        if isinstance(mine, UnsayableError):
            return "refused", str(mine)
        if isinstance(mine, Exception):
            return "failed", f"{type(mine).__name__}: {mine}"
        allowed = CLOSE[torch.bfloat16 if self.way == "autocast" else self.dtype]
        for one, other in zip(pytree.tree_leaves(mine), pytree.tree_leaves(theirs), strict=True):
            if one is None or other is None:
                if one is not other and not (one is None and other.eq(0).all()):
                    return "failed", "a derivative is missing"
                continue
            largest = other.abs().nan_to_num(0, 0, 0).max().item() if other.numel() else 0.0
            try:
                torch.testing.assert_close(one, other, rtol=allowed, atol=allowed * largest, equal_nan=True)
            except AssertionError as error:
                return "failed", str(error)
        return "passed", ""


@cache
def _runtime(device: str) -> Runtime:
    """It has a small configuration for every problem."""
    runtime = Runtime(only_tuned=True, kernels=catalogue(), shipped_records=False)
    runtime._pinned.configurations = Small(16 if device == "cuda" else 8)
    return runtime


def _tried(way: str, call: Callable[..., Any], given: Any) -> Any:
    """The result, or the exception."""
    try:
        with torch.backends.cudnn.flags(
            enabled=True, allow_tf32=False
        ):  # else PyTorch's convolutions are less accurate
            return WAYS[way](call, given)
    except Exception as error:  # noqa: BLE001 - what PyTorch raises is compared with what ours does
        return error


def outcomes(entry: Any, device: str, chosen: Callable[[str], bool] = lambda _name: True) -> Iterator[Outcome]:
    """Those of one entry's cases whose names are chosen. A case's numbers are the same in every run."""
    torch.set_num_threads(1)  # of matrices that small
    for dtype in DTYPES:
        if dtype not in entry.supported_dtypes(device):
            continue
        torch.manual_seed(zlib.crc32(f"{entry.full_name} {dtype}".encode()))
        samples = list(entry.sample_inputs(device, dtype, requires_grad=False))
        for number, sample in enumerate(samples):
            for way in WAYS:
                for through in ("operator", "accelerated"):
                    if way == "out" and (through == "operator" or not entry.supports_out):
                        continue
                    case = Case(entry, dtype, number, way, through)
                    if chosen(case.name):
                        yield case.outcome(sample)


def share_of_ours(found: list[Outcome]) -> float:
    """Of plain samples of the dtypes that kernels have, through operators: how many kernels of ours computed."""
    plain = [one for one in found if (one.way, one.through) == ("plain", "operator") and one.dtype != "complex64"]
    plain = [one for one in plain if one.verdict in {"passed", "failed"}]
    return sum(one.is_ours for one in plain) / max(len(plain), 1)


def table(found: list[Outcome]) -> str:
    """Counts by way, and why something was refused or failed."""
    verdicts = ("passed", "refused", "failed", "neither")
    lines = [f"{'':26}{''.join(f'{one:>9}' for one in verdicts)}     ours"]
    for through in ("operator", "accelerated"):
        for way in WAYS:
            those = [one for one in found if (one.way, one.through) == (way, through)]
            counts = Counter(one.verdict for one in those)
            cells = "".join(f"{counts[one]:9}" for one in verdicts)
            if those:
                lines.append(f"{through:12} {way:13}{cells}{sum(one.is_ours for one in those):9}")
    total = Counter(one.verdict for one in found)
    lines.append(f"{'all':26}{''.join(f'{total[one]:9}' for one in verdicts)}{sum(one.is_ours for one in found):9}")
    lines.append(f"kernels of ours computed {share_of_ours(found):.0%} of the plain samples through operators")
    reasons = Counter((one.verdict, one.entry, one.way, one.through, one.reason.split("\n")[0]) for one in found)
    for (verdict, *words), count in sorted(reasons.items()):
        if verdict in {"refused", "failed"}:
            lines.append(f"{verdict} {count}: {'; '.join(words)}")
    return "\n".join(lines)


def main() -> int:
    """The exit code: 1 where something failed or too little was ours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="entries whose name contains this")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    begun, found = time.monotonic(), list[Outcome]()
    for entry in ENTRIES:
        if given.only in entry.full_name:
            found += outcomes(entry, given.device)
            sys.stderr.write(f"{entry.full_name}: {len(found)} cases so far, {time.monotonic() - begun:.0f} s\n")
    where = torch.cuda.get_device_name() if given.device == "cuda" else "CPU"
    sys.stdout.write(f"torch {torch.__version__}, {where}, {time.monotonic() - begun:.0f} s\n{table(found)}\n")
    return int(any(one.verdict == "failed" for one in found) or (not given.only and share_of_ours(found) < LEAST_OURS))


if __name__ == "__main__":
    sys.exit(main())
