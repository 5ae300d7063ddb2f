"""Records which operators a program calls, with shapes, layouts, counts and times, and what tuning could gain."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.tuner.pytorch.recording import report as record_report
from tilewright.tuner.pytorch.recording.operators import REFUSALS, is_recorded, problem_of
from tilewright.tuner.pytorch.recording.report import Recorded, RecordedCalls
from tilewright.tuner.pytorch.tuned_call import layout_key


class Recording(RecordedCalls):
    """The record of calls, and what the service says of them."""

    def report(self) -> str:
        """A table: what ran, its share of the time, and what tuning could gain by what the service predicts."""
        return record_report.report(self)

    def demand(self) -> int:
        """Tells the service what ran and is not tuned, weighted by calls; returns how many problems it was told of."""
        return record_report.send_demand(self)


class record(TorchDispatchMode):  # type: ignore[misc] # noqa: N801 - used as `with record() as seen:`
    """A context that records what its thread, and the backward passes that it starts, call."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Recording()
        self._begun_s = 0.0

    def __enter__(self) -> Recording:
        """The recording, which fills while the context lasts."""
        super().__enter__()
        self._begun_s = time.perf_counter()
        return self.seen

    def __exit__(self, *error: object) -> None:
        """Ends the record, and waits for the GPU."""
        super().__exit__(*error)
        self.stop()

    def stop(self) -> None:
        """Reads what is left, and the clock."""
        self.seen.settle()
        self.seen.total_ms += (time.perf_counter() - self._begun_s) * 1e3

    def __torch_dispatch__(self, function: Any, _types: Any, arguments: Sequence[Any] = (), named: Any = None) -> Any:
        """The operator's result; the call and its time are recorded."""
        named = named or {}
        if not is_recorded(function):
            return function(*arguments, **named)
        first = next((one for one in arguments if isinstance(one, Tensor)), None)
        if first is None or not first.is_cuda:
            begun_s = time.perf_counter()
            result = function(*arguments, **named)
            elapsed_ms = (time.perf_counter() - begun_s) * 1e3
            self._entry(function, arguments, named, result).time_ms += elapsed_ms
            return result
        if torch.cuda.is_current_stream_capturing():  # events of a graph have no time
            result = function(*arguments, **named)
            self._entry(function, arguments, named, result)
            return result
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        result = function(*arguments, **named)
        ended.record()
        self.seen.note(self._entry(function, arguments, named, result), begun, ended)
        return result

    def _entry(self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any], result: Any) -> Recorded:
        numbers = tuple(sorted(named.items(), key=lambda item: item[0]))
        given = [*arguments, *(one for pair in numbers for one in pair)]
        key = str(function), *layout_key(given)
        return self.seen.add(key, lambda: _recorded(function, arguments, named, result))


def _recorded(function: Any, arguments: Sequence[Any], named: Mapping[str, Any], result: Any) -> Recorded:
    tensors = [one for one in arguments if isinstance(one, Tensor)]
    device = str(tensors[0].device) if tensors else "meta"
    problem, reason = None, f"kernels run on CUDA GPUs and on the CPU, not on {device}"
    if device.partition(":")[0] in {"cpu", "cuda"}:
        try:
            problem, reason = problem_of(function, arguments, named, result), ""
        except REFUSALS as error:
            reason = str(error)
    words = [_words(one) for one in tensors]
    dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
    name = f"{function.namespace}::{function.overloadpacket.__name__}"
    return Recorded(name, f"{', '.join(words)} {dtype}", device, problem, reason)


def _words(tensor: Tensor) -> str:
    """Shape and layout: `7x6`, with its strides where it is not row-major."""
    shape = "x".join(map(str, tensor.shape)) or "1"
    if tensor.is_contiguous():
        return shape
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return f"{shape} channels last"
    return (
        f"{shape} transposed"
        if tensor.dim() == 2 and tensor.mT.is_contiguous()
        else f"{shape} strides {tensor.stride()}"
    )
