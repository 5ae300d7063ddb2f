"""Executables of a GPU's bench, with the scratch memory and graphs that belong to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.kernels.fields.arguments import Tensor
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cuda.checks import CHECK_LAUNCH, GUARD_BYTES, POISON, CheckKernels
from tilewright.tuner.devices.cuda.graph import LaunchGraph
from tilewright.tuner.outcome import Resources

if TYPE_CHECKING:
    from tilewright.tuner.devices.cuda.context import CudaContext


class Workspace:
    """Device memory, zero at first, between guard bands; freed with the object."""

    def __init__(self, device: CudaContext, checks: CheckKernels, size_bytes: int) -> None:
        self._device, self._checks, self._size = device, checks, (size_bytes + 15) // 16 * 16
        self._memory: Any = device.allocate(self._size + 2 * GUARD_BYTES + 8)
        self.address = int(self._memory) + GUARD_BYTES
        self._bands = int(self._memory), self.address + self._size
        self._answer = self._bands[1] + GUARD_BYTES
        self.reset()

    def reset(self) -> None:
        """Puts the arrays back as before the first launch, and poisons the bands around them."""
        self._device.fill(self.address, self._size, 0)
        for band in self._bands:
            self._device.fill(band, GUARD_BYTES, POISON)

    def trespasses(self) -> list[str]:
        """The writes outside of the workspace, in words; empty where there were none."""
        words = np.zeros(1, np.uint64)
        self._device.fill(self._answer, 8, 0)
        for band in self._bands:
            self._checks.count_damage.enqueue(CHECK_LAUNCH, band, GUARD_BYTES // 4, self._answer)
        self._device.download(self._answer, words)
        return [f"{int(words[0])} words of 4 bytes beside the workspace were written"] if words[0] else []


@dataclass(eq=False)
class CudaExecutable:
    """A loaded configuration, or the library's call; `enqueue` launches it once on the device's stream.

    `batch` launches make one warm sample, by `graph` where they are several, for an estimated `launch_ms`.
    `is_loaded`: it was launched before. `fill` copies inputs to its constant memory. `pack` makes what is `kept` of an
    input that launches find packed. `is_comparable`: see `LibraryCall`. `enqueue_with` launches it with other scalars,
    and one array for two.
    """

    enqueue: Callable[[], None] = field(repr=False)
    resources: Resources
    compile_ms: float
    configuration: Configuration | None = None
    launch_ms: float = 0.0
    is_loaded: bool = False
    batch: int = 0
    graph: LaunchGraph | None = field(default=None, repr=False)
    workspace: Workspace | None = field(default=None, repr=False)
    kept: Any = field(default=None, repr=False)
    pack: Callable[[], None] | None = field(default=None, repr=False)
    fill: Callable[[], None] = field(default=lambda: None, repr=False)
    is_comparable: bool = True
    enqueue_with: Callable[[Mapping[str, float], tuple[Tensor, Tensor] | None], None] | None = field(
        default=None, repr=False
    )

    def close(self) -> None:
        """Frees the graph, the workspace and other kept memory; it must not be launched any more."""
        self.workspace = self.kept = None
        self.close_graph()

    def close_graph(self) -> None:
        """Frees the graph."""
        if self.graph is not None:
            self.graph.close()
            self.graph = None
