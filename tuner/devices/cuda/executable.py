"""Executables of a GPU's bench, with the memory and graphs that belong to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.kernels.arguments import Tensor
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cuda.graph import LaunchGraph
from tilewright.tuner.devices.cuda.workspace import Workspace
from tilewright.tuner.outcome import Resources


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
        """Frees graph, workspace and what is kept; not to be launched any more."""
        self.workspace = self.kept = None
        self.close_graph()

    def close_graph(self) -> None:
        """Frees the graph."""
        if self.graph is not None:
            self.graph.close()
            self.graph = None
