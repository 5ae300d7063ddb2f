"""A variant of a kernel: one source with its geometry, requirements and part of the search space."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Parameter, Values, VariantSpace

WORKSPACE_SHARE = 64
"""A workspace is at most this part of the device's memory: the executables kept at one time each have their own."""


@dataclass(frozen=True)
class Launch:
    """Grid and block, (x, y, z) each, and the bytes of dynamic shared memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return self.block[0] * self.block[1] * self.block[2]


def _no_workspace(_values: Values, _problem: Problem) -> int:
    return 0


@dataclass(frozen=True)
class Preparation:
    """A launch ahead of a variant's own: the function `<kernel>_<name>` of its source, with the same parameters."""

    name: str
    launch: Callable[[Values, Problem], Launch]


@dataclass(frozen=True)
class Variant:
    """One source among several of a kernel, with the part of the search space that belongs to it.

    `launch(values, problem)` gives the geometry; `static_shared_bytes` what the source declares itself.
    `before` are launches that go ahead of it each time, on the same stream, and leave what they found in the workspace.
    What a trial reports of registers and shared memory is the last launch's.
    `requires` names device features (`ptx`); such a device's compute capability is within min and max. `has_room` says
    whether the device has the memory and the grid that even the smallest configuration for the problem takes.
    Where `workspace_bytes` is not 0, the kernel has one more parameter, the last: `unsigned char* __restrict__
    workspace`, aligned to 16 bytes, zero before the first launch and from then on as the launch before left it. A
    kernel that counts in it leaves its counters at zero.
    """

    name: str
    source: str
    launch: Callable[[Values, Problem], Launch]
    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    static_shared_bytes: Callable[[Values, Problem], int] = lambda _values, _problem: 0
    workspace_bytes: Callable[[Values, Problem], int] = _no_workspace
    min_compute_capability: tuple[int, int] = (7, 5)
    max_compute_capability: tuple[int, int] | None = None
    architecture_suffix: str = ""  # "a": instructions of one architecture only, compiled for sm_90a
    requires: frozenset[str] = frozenset()
    supports: Callable[[Problem], bool] = lambda _problem: True
    has_room: Callable[[Problem, Limits], bool] = lambda _problem, _limits: True
    before: tuple[Preparation, ...] = ()
    doc: str = ""

    def runs_on(self, limits: Limits) -> bool:
        """Whether the device has what it requires; a compute capability only counts where PTX runs."""
        if not self.requires <= limits.features:
            return False
        newest = self.max_compute_capability or limits.compute_capability
        return "ptx" not in limits.features or self.min_compute_capability <= limits.compute_capability <= newest

    def admits(self, problem: Problem, limits: Limits) -> bool:
        """Whether a device that it runs on has a configuration of it for the problem."""
        return self.supports(problem) and self.has_room(problem, limits)

    def launches(self, entry: str, values: Values, problem: Problem) -> list[tuple[str, Launch]]:
        """Functions and geometries in order, the last of them `entry` itself."""
        ahead = [(f"{entry}_{one.name}", one.launch(values, problem)) for one in self.before]
        return [*ahead, (entry, self.launch(values, problem))]

    def shared_bytes(self, values: Values, problem: Problem) -> int:
        """Static and dynamic shared memory of one block, in bytes."""
        return self.static_shared_bytes(values, problem) + self.launch(values, problem).shared_bytes

    def space(self) -> VariantSpace:
        """Its parameters and constraints; the device's own limits come first."""
        return self._own_space

    @cached_property
    def _own_space(self) -> VariantSpace:
        return VariantSpace(self.name, self.parameters, (*self._device_constraints(), *self.constraints))

    def _device_constraints(self) -> Iterable[Constraint]:
        def block_fits(c: Values, p: Problem, d: Limits) -> bool:
            return 1 <= self.launch(c, p).threads <= d.max_threads_per_block

        def grid_fits(c: Values, p: Problem, d: Limits) -> bool:
            grids = [launch.grid for _, launch in self.launches("", c, p)]
            return all(size <= limit for grid in grids for size, limit in zip(grid, d.max_grid, strict=True))

        def shared_fits(c: Values, p: Problem, d: Limits) -> bool:
            static = self.static_shared_bytes(c, p)
            # Static shared memory is limited to 48 KiB on every device; more must be dynamic (CUDA guide, 5.0+).
            return static <= 48 * 1024 and self.shared_bytes(c, p) <= d.max_shared_bytes

        yield Constraint("block fits the device", block_fits)
        yield Constraint("grid fits the device", grid_fits)
        yield Constraint("shared memory fits the device", shared_fits)
        if self.workspace_bytes is not _no_workspace:
            yield Constraint(
                "the workspace takes a small part of the memory",
                lambda c, p, d: self.workspace_bytes(c, p) <= d.memory_bytes // WORKSPACE_SHARE,
            )
