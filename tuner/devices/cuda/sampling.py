"""Times of launches on one GPU: with a warm L2 cache in batches that are long enough to be timed, else one by one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tilewright.tuner.devices.cuda.checks import CHECK_LAUNCH, CheckKernels
from tilewright.tuner.devices.cuda.executable import CudaExecutable

if TYPE_CHECKING:
    from tilewright.tuner.devices.cuda.context import CudaContext

SAMPLE_MS = 0.2
"""A warm sample lasts at least this long: events resolve half a microsecond, and recording one takes as much again."""

_MAX_BATCH = 256
_ENOUGH = 0.75  # of SAMPLE_MS: a sample that turns out shorter was of too few launches
_LONG_ENOUGH_MS = 1.5 * SAMPLE_MS  # in the verifying launch: one makes a sample, and none is spent to find that out
_LONG_MS = 1.0  # the few microseconds that Python takes to launch are below 1 % of a sample from here on


def flushed_bytes(l2_bytes: int) -> int:
    """Bytes that are read to empty an L2 cache of that size: twice as many, in whole vectors."""
    return 2 * l2_bytes // 16 * 16


class Sampler:
    """Samples of a bench's executables. Its memory is read to empty the L2 cache, and freed with it."""

    def __init__(self, device: CudaContext, checks: CheckKernels, flush_bytes: int) -> None:
        self._device, self._checks, self._bytes = device, checks, flush_bytes
        self._memory: Any = device.allocate(flush_bytes + 16)
        device.fill(int(self._memory), flush_bytes + 16, 0)

    def cold_ms(self, executable: CudaExecutable, count: int) -> list[float]:
        """Times of launches, each after the L2 cache was emptied."""
        return self._device.times_ms(executable.enqueue, count, before=self._flush)

    def warm_ms(self, executable: CudaExecutable, count: int) -> list[float]:
        """Times of one launch in batches that last SAMPLE_MS; their size is settled at the first call."""
        if not executable.batch:
            self._choose_batch(executable)
        while True:
            samples = self._batches(executable, count)
            executable.launch_ms = min(samples)
            if executable.batch == _MAX_BATCH or min(samples) * executable.batch >= _ENOUGH * SAMPLE_MS:
                return samples
            self._set_batch(executable, min(samples))  # more than before

    def _choose_batch(self, executable: CudaExecutable) -> None:
        """Settles how many launches make a sample at first."""
        if not executable.is_loaded:  # a first launch may load code
            executable.enqueue()
        if executable.launch_ms >= _LONG_ENOUGH_MS:  # else Python stood still in the verifying launch: samples tell
            executable.batch = 1
            return
        # While the cache is being flushed, launch and events are enqueued: Python's time is no part of the launch's.
        self._set_batch(executable, self._device.times_ms(executable.enqueue, 1, before=self._flush)[0])

    def _set_batch(self, executable: CudaExecutable, launch_ms: float) -> None:
        executable.close_graph()
        executable.launch_ms = launch_ms
        executable.batch = max(1, min(_MAX_BATCH, math.ceil(SAMPLE_MS / max(launch_ms, 1e-4))))
        if executable.batch > 1:
            executable.graph = self._device.graph(executable.enqueue, executable.batch)

    def _batches(self, executable: CudaExecutable, count: int) -> list[float]:
        """The mean launch of each of `count` batches, in ms."""
        step = executable.graph.replay if executable.graph else executable.enqueue
        if executable.launch_ms < _LONG_MS:
            step()  # keeps the GPU busy while the first sample is being enqueued
        return [time_ms / executable.batch for time_ms in self._device.times_ms(step, count)]

    def _flush(self) -> None:
        start = int(self._memory)
        words = self._bytes // 16
        self._checks.read_through.enqueue(CHECK_LAUNCH, start, words, start + self._bytes)
