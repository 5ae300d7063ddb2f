"""A variant of a kernel: one source with its geometry, requirements and part of the search space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Parameter, Start, Values, VariantSpace, no_start

WORKSPACE_SHARE = 64
"""A workspace is at most this part of the device's memory: the executables kept at one time each have their own. One
that holds whole operands (`workspace_share`) may be larger: its arrays are large too, so that few are kept."""


SHARED_COUNTER_BYTES = 1 << 16
"""Bytes for counters at the start of a workspace that all sizes of an axis share (common/at_launch.cuh)."""


KEPT_SUMMARY_BYTES = 256
"""The first bytes that are kept of an input that is packed ahead; they are zero before it is packed."""


@dataclass(frozen=True)
class Launch:
    """Grid and block, (x, y, z) each, and the bytes of dynamic shared memory.

    `overlaps`: it may begin while the launch before it runs, for which it waits itself (programmatic dependent launch;
    from compute capability 9.0, and of no account on older devices).
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    overlaps: bool = False

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return self.block[0] * self.block[1] * self.block[2]


def ceil_div(extent: int, size: int) -> int:
    """How many pieces of `size` cover `extent`."""
    return -(-extent // size)


def covering(*axes: str, block: Sequence[str], items: Sequence[str] = ()) -> Callable[[Values, Problem], Launch]:
    """A launch that covers these axes, the first along x: grid = axis / (block * items), rounded up.

    `block` and `items` (elements of one thread) name a parameter for each axis; an axis without `items` has one.
    """

    def launch(values: Values, problem: Problem) -> Launch:
        counts = [values[name] for name in items] + [1] * (len(block) - len(items))
        covered = zip(axes, block, counts, strict=True)
        grid = [ceil_div(problem.shape[axis], values[name] * count) for axis, name, count in covered]
        (x, y, z, *_), (i, j, k, *_) = (*grid, 1, 1), (*(values[name] for name in block), 1, 1)
        return Launch((x, y, z), (i, j, k))

    return launch


def no_workspace(_values: Values, _problem: Problem) -> int:
    """The bytes of a variant without a workspace: 0."""
    return 0


@dataclass(frozen=True)
class Preparation:
    """A launch ahead of a variant's own: a function of its source, with the same parameters.

    `entry`: the function's name; `<kernel>_<name>` where it says none. `is_shared`: its code is the same for every
    configuration of a problem, and so is compiled once for all of them, in a module of its own. It reads no constants.
    """

    name: str
    launch: Callable[[Values, Problem], Launch]
    entry: str = ""
    is_shared: bool = False

    def function(self, kernel: str) -> str:
        """The function's name, where the variant's own is called `kernel`."""
        return self.entry or f"{kernel}_{self.name}"


@dataclass(frozen=True)
class TensorMap:
    """An argument that a source reaches box by box, through a map that the host encodes (compute capability 9.0).

    `box`: elements along each axis, in the order of the tensor's shape, which gets axes of 1 in front where the box has
    more. Along the last axis it is as long as `swizzle_bytes`, 128, 64 or 32, which say how 16 bytes change places in
    shared memory. The part of a box outside of the tensor is read as zero and not written.
    """

    tensor: str
    box: tuple[int, ...]
    swizzle_bytes: int = 128


def always(_values: Values, _problem: Problem) -> bool:
    """True, for a variant of which this holds with any parameters, such as computing each row by itself."""
    return True


def rows_at_launch(problem: Problem) -> bool:
    """Whether m comes with the launch: for a variant that computes each row by itself."""
    return problem.at_launch == "m"


def no_constexprs(_values: Values, _problem: Problem) -> Mapping[str, object]:
    """No constexprs: the variant's function has parameters and sizes alone."""
    return {}


def no_tensor_maps(_values: Values, _problem: Problem) -> tuple[TensorMap, ...]:
    """No tensor maps: the variant's source has pointers alone."""
    return ()


@dataclass(frozen=True)
class Variant:
    """One source among several of a kernel, with the part of the search space that belongs to it.

    `launch(values, problem)` gives the geometry; `static_shared_bytes` what the source declares itself.
    `before` are launches that go ahead of it each time, on the same stream, and leave what they found in the workspace.
    Where `kept_bytes(problem)` is not 0, launches find there what those of `packing`, with the same parameters, have
    made of an input that stays the same: it is the last parameter, behind the workspace, aligned to 256 bytes, and its
    first 256 bytes are zero before `packing`.
    A trial reports the last launch's registers and shared memory.
    `requires` names device features (`ptx`); such a device's compute capability is within min and max. `has_room` says
    whether the device has the memory and the grid that even the smallest configuration for the problem takes.
    Where `workspace_bytes` is not 0, the kernel has one more parameter, the last: `unsigned char* __restrict__
    workspace`, aligned to 16 bytes, zero before the first launch and from then on as the launch before left it. A
    kernel that counts in it leaves its counters at zero.
    `start(problem, limits)` has values to begin with that suit the problem better than their defaults.
    `takes_size(problem)`: whether the source takes the size of the problem's axis `at_launch` as a parameter, behind
    the declared ones. `is_sound_at_launch` then must hold at every size, as constraints do that are not of thrift.
    Their workspaces begin with SHARED_COUNTER_BYTES, which are zero between launches and hold counters alone, whatever
    the size: all sizes share one workspace.
    `is_batch_invariant`: whether a row's result depends neither on how many rows there are nor on what others hold.
    `tensor_maps`: behind all other parameters the source has one for each, `const __grid_constant__ TensorMap`
    (ptx/tensor_map.cuh). Rows of these tensors, and matrices of a batch, begin at multiples of 16 bytes.
    `constexprs`: what else a Triton function is compiled with, by name: truth values, words, None, numbers that follow
    from values and problem, and types and functions as `Named`. A name of a parameter that is no tl.constexpr may be
    among them; it is then none of the kernel's arguments.
    """

    name: str
    source: str
    launch: Callable[[Values, Problem], Launch]
    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    start: Start = no_start
    starts_search: bool = True  # a simple variant, which may take a hundred times as long, is left to the search
    static_shared_bytes: Callable[[Values, Problem], int] = lambda _values, _problem: 0
    workspace_bytes: Callable[[Values, Problem], int] = no_workspace
    workspace_share: int = WORKSPACE_SHARE
    tensor_maps: Callable[[Values, Problem], tuple[TensorMap, ...]] = no_tensor_maps
    min_compute_capability: tuple[int, int] = (7, 5)
    max_compute_capability: tuple[int, int] | None = None
    architecture_suffix: str = ""  # "a": instructions of one architecture only, compiled for sm_90a
    requires: frozenset[str] = frozenset()
    supports: Callable[[Problem], bool] = lambda _problem: True
    has_room: Callable[[Problem, Limits], bool] = lambda _problem, _limits: True
    before: tuple[Preparation, ...] = ()
    packing: tuple[Preparation, ...] = ()
    kept_bytes: Callable[[Problem], int] = lambda _problem: 0
    takes_size: Callable[[Problem], bool] = lambda _problem: False
    is_batch_invariant: Callable[[Values, Problem], bool] = lambda _values, _problem: False
    constexprs: Callable[[Values, Problem], Mapping[str, object]] = no_constexprs
    most_at_once: int = 0  # of an axis at launch, which is otherwise cut into panels: its workspace would grow with it
    is_sound_at_launch: Callable[[Values, Problem, Limits], bool] = lambda _values, _problem, _limits: True
    doc: str = ""

    def workspace_at_once(self, values: Values, problem: Problem) -> int:
        """Bytes of the workspace that launches of the problem take: that of the largest panel where it is cut."""
        if problem.at_launch and 0 < self.most_at_once < problem.shape[problem.at_launch]:
            problem = problem.with_size(problem.at_launch, self.most_at_once)
        return self.workspace_bytes(values, problem)

    def runs_on(self, limits: Limits) -> bool:
        """Whether the device has what it requires; a compute capability only counts where PTX runs."""
        if not self.requires <= limits.features:
            return False
        newest = self.max_compute_capability or limits.compute_capability
        return "ptx" not in limits.features or self.min_compute_capability <= limits.compute_capability <= newest

    def admits(self, problem: Problem, limits: Limits) -> bool:
        """Whether a device that the variant runs on has a configuration of it for the problem."""
        takes = not problem.at_launch or self.takes_size(problem)
        return takes and self.supports(problem) and self.has_room(problem, limits)

    def is_sound(self, values: Values, problem: Problem, limits: Limits) -> bool:
        """Whether these values give right results for the problem on that device, whatever they are worth."""
        kept = all(c.is_thrift or c.holds(values, problem, limits) for c in self.space().constraints)
        return kept and (not problem.at_launch or self.is_sound_at_launch(values, problem, limits))

    def launches(self, entry: str, values: Values, problem: Problem) -> list[tuple[str, Launch]]:
        """Functions and geometries in order, the last of them `entry` itself."""
        ahead = [(one.function(entry), one.launch(values, problem)) for one in self.before]
        return [*ahead, (entry, self.launch(values, problem))]

    def packing_launches(self, entry: str, values: Values, problem: Problem) -> list[tuple[str, Launch]]:
        """The launches, in order, that pack the input which stays the same; none where it is not packed."""
        packing = self.packing if self.kept_bytes(problem) else ()
        return [(one.function(entry), one.launch(values, problem)) for one in packing]

    def entries(self, entry: str, *, is_shared: bool) -> list[str]:
        """The functions of the module that all configurations of a problem share, or of each configuration's own."""
        ahead = [one.function(entry) for one in (*self.before, *self.packing) if one.is_shared is is_shared]
        return ahead if is_shared else [*ahead, entry]

    def shared_bytes(self, values: Values, problem: Problem) -> int:
        """Static and dynamic shared memory of one block, in bytes."""
        return self.static_shared_bytes(values, problem) + self.launch(values, problem).shared_bytes

    def as_json(self) -> dict[str, object]:
        """The variant as the kernel's declaration shows it, plain JSON."""
        return {
            "name": self.name,
            "doc": self.doc,
            "source": self.source,
            "min_compute_capability": _dotted(self.min_compute_capability),
            "max_compute_capability": self.max_compute_capability and _dotted(self.max_compute_capability),
            "requires": sorted(self.requires),
            "parameters": [
                {"name": p.name, "values": list(p.values), "default": p.default, "doc": p.doc} for p in self.parameters
            ],
            "constraints": [c.name for c in self.space().constraints],
        }

    def space(self) -> VariantSpace:
        """The variant's parameters and constraints; the device's own limits come first."""
        return self._own_space

    def space_at_launch(self) -> VariantSpace:
        """The parameters, and the constraints that hold at every size of an axis whose size comes with the launch."""
        return self._space_at_launch

    @cached_property
    def _space_at_launch(self) -> VariantSpace:
        sound = Constraint("counters and steps have room at launch", self.is_sound_at_launch)
        return replace(self.space(), constraints=(*self.space().constraints, sound))

    @cached_property
    def _own_space(self) -> VariantSpace:
        constraints = (*self._device_constraints(), *self.constraints)
        return VariantSpace(self.name, self.parameters, constraints, self.start, self.starts_search)

    def _device_constraints(self) -> Iterable[Constraint]:
        last: list[tuple[Values, Problem, list[Launch]]] = []

        def launches(c: Values, p: Problem) -> list[Launch]:
            """The launches of a configuration; the last result is cached, as three constraints ask for it in turn."""
            held = last[0] if last else None  # another thread may replace it
            if held is not None and held[0] is c and held[1] is p:
                return held[2]
            made = [launch for _, launch in self.launches("", c, p)]
            if type(c) is Values:  # others, of the enumeration, may change
                last[:] = [(c, p, made)]
            return made

        def block_fits(c: Values, p: Problem, d: Limits) -> bool:
            return all(1 <= step.threads <= d.max_threads_per_block for step in launches(c, p))

        def grid_fits(c: Values, p: Problem, d: Limits) -> bool:
            grids = [launch.grid for launch in launches(c, p)]
            return all(size <= limit for grid in grids for size, limit in zip(grid, d.max_grid, strict=True))

        def shared_fits(c: Values, p: Problem, d: Limits) -> bool:
            static = self.static_shared_bytes(c, p)
            # Static shared memory is limited to 48 KiB on every device; more must be dynamic (CUDA guide, 5.0+).
            dynamic = [step.shared_bytes for step in launches(c, p)]
            return static <= 48 * 1024 and all(static + size <= d.max_shared_bytes for size in dynamic)

        yield Constraint("block fits the device", block_fits, is_costly=True)
        yield Constraint("grid fits the device", grid_fits, is_costly=True)
        yield Constraint("shared memory fits the device", shared_fits, is_costly=True)
        if self.workspace_bytes is not no_workspace:
            yield Constraint(
                "the workspace takes a small part of the memory",
                lambda c, p, d: self.workspace_bytes(c, p) <= d.memory_bytes // self.workspace_share,
            )


hopper_variant = partial(
    Variant,
    min_compute_capability=(9, 0),
    max_compute_capability=(9, 0),
    architecture_suffix="a",
    requires=frozenset({"ptx"}),
)
"""A variant with instructions that compute capability 9.0 alone has, such as wgmma."""


def _dotted(compute_capability: tuple[int, int]) -> str:
    return "{}.{}".format(*compute_capability)
