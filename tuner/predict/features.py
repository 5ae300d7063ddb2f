"""A configuration on a problem as features from which its time is predicted; registers, reported or estimated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.occupancy import blocks_per_multiprocessor
from tilewright.tuner.predict.model import Smooth
from tilewright.tuner.predict.tiles import Tiles

FEWEST_TOLD = 16
"""Compiled configurations below which nothing is estimated."""

MOST_TOLD = 2000
"""Compiled configurations that an estimate rests on."""


@dataclass(frozen=True)
class RegisterEstimate:
    """The logarithm of registers by parameters, and the least and the most that a compiler reported."""

    function: Smooth
    least: int
    most: int


@dataclass(frozen=True)
class Registers:
    """Registers by configuration: `known` from the compiler; `parameters` gives a configuration's as numbers.

    Without an estimate one that nobody compiled would seem to leave room for as many blocks as there are threads
    (docs/measuring/predictions.md).
    """

    known: Mapping[Configuration, int]
    parameters: Callable[[Configuration], list[float]]
    given: RegisterEstimate | None = None  # of an earlier time with the same registers

    def of(self, configurations: Sequence[Configuration]) -> list[int]:
        """Registers per thread of each configuration; 0 where too few were compiled for an estimate."""
        registers = {c: self.known[c] for c in configurations if self.known.get(c)}
        unknown = [c for c in configurations if c not in registers]
        if unknown and self.estimate is not None:
            values = self.estimate.function.values(np.array([self.parameters(c) for c in unknown]))
            estimates = np.clip(np.exp(values), self.estimate.least, self.estimate.most)
            registers |= {c: round(float(count)) for c, count in zip(unknown, estimates, strict=True)}
        return [registers.get(c, 0) for c in configurations]

    @cached_property
    def estimate(self) -> RegisterEstimate | None:
        """The estimate of registers for configurations that were not compiled; None where too few were."""
        if self.given is not None:
            return self.given
        compiled = [(configuration, count) for configuration, count in self.known.items() if count]
        if len(compiled) < FEWEST_TOLD:
            return None
        chosen = compiled[:: -(-len(compiled) // MOST_TOLD)]
        rows = np.array([self.parameters(configuration) for configuration, _ in chosen])
        counts = [count for _, count in chosen]
        return RegisterEstimate(Smooth.fit(rows, np.log(counts)), min(counts), max(counts))


MOST_ZEROS = 5
"""Powers of two in an axis size that count: vectors, warps and tiles up to 32."""

VECTOR_BYTES = 16
"""What one instruction copies at most; where a row begins at no multiple of it, it takes more of them."""

MOST_FACTS = 512
"""Problems of which what does not depend on a configuration is remembered."""

ANOTHER_VARIANT = 2.0
"""How unlike two variants are, in standard deviations of a feature."""


@dataclass(frozen=True)
class ProblemFacts:
    """Features of a problem alone. `tensors`: elements of each, and how many of them one instruction copies."""

    shape: list[float]
    work: int
    bytes_moved: float
    plain: Problem
    plain_work: int
    tensors: list[tuple[int, int]]


@dataclass(frozen=True)
class Features:
    """Rows of numbers for configurations of one kernel on one device; a column means the same in each row.

    All problems have one dtype and the same options.
    """

    kernel: Kernel
    limits: Limits
    registers: Mapping[Configuration, int] = field(default_factory=dict)  # of a thread, where a compiler told
    register_estimate: RegisterEstimate | None = None  # of an earlier time with the same registers

    _facts: dict[Problem, ProblemFacts] = field(default_factory=dict, compare=False, repr=False)

    shared_tiles: Tiles | None = field(default=None, compare=False, repr=False)  # of other predictors

    @cached_property
    def tiles(self) -> Tiles:
        """How the kernel divides the problem into tiles."""
        return self.shared_tiles or Tiles(self.kernel)

    def rows(self, problem: Problem, configurations: Sequence[Configuration]) -> NDArray[np.float64]:
        """A row a configuration: the shape, the launch, the tiles and the parameters, most as powers of two."""
        registers = self._registers.of(configurations)
        parts = (self._parts(problem, c, count) for c, count in zip(configurations, registers, strict=True))
        return np.array([[*chain.from_iterable(part)] for part in parts])

    def kept_rows(self, problem: Problem, configurations: Sequence[Configuration]) -> NDArray[np.float64]:
        """`rows`, made once for all predictors with the same tiles: most of them share many records."""
        kept = self.tiles.rows.setdefault((self.limits, problem), {})
        keys = list(zip(configurations, self._registers.of(configurations), strict=True))
        for key in keys:
            if key not in kept:
                kept[key] = [*chain.from_iterable(self._parts(problem, *key))]
        return np.array([kept[key] for key in keys])

    def groups(self, problem: Problem, configuration: Configuration) -> list[list[int]]:
        """Groups of columns that belong together: a time is nearly a sum of functions of a few columns each.

        The shape, the launch, the tiles, launch and tiles, each with the variant; the parameters; all.
        """
        columns = count()
        parts = [[next(columns) for _ in part] for part in self._parts(problem, configuration, 0)]
        shape, launch, tiles, parameters = parts
        variant = parameters[-len(self.kernel.variants) :]
        seen = (shape, launch, tiles, [*launch, *tiles])
        return [*([*part, *variant] for part in seen), parameters, [*chain.from_iterable(parts)]]

    def _parts(self, problem: Problem, configuration: Configuration, registers: int) -> Sequence[Sequence[float]]:
        variant = self.kernel.variant(configuration.variant)
        launch = variant.launch(configuration.values, problem)
        shared_bytes = variant.static_shared_bytes(configuration.values, problem) + launch.shared_bytes
        resident = max(1, blocks_per_multiprocessor(registers, shared_bytes, launch.threads, self.limits))
        blocks = math.prod(launch.grid)
        at_once = min(blocks, resident * self.limits.multiprocessors)
        workspace_bytes = variant.workspace_bytes(configuration.values, problem)
        facts = self._facts_of(problem)
        return (
            facts.shape,
            [
                *self._launch(facts, launch.threads, blocks, resident, at_once),
                math.log2(1 + shared_bytes),
                math.log2(1 + workspace_bytes),
                math.log2(1 + workspace_bytes / max(1, facts.bytes_moved)),
            ],
            [*self._tiling(facts, configuration, at_once), *self._copies(facts, configuration)],
            self.parameters(configuration),
        )

    def shape(self, problem: Problem) -> list[float]:
        """Sizes, their powers of two in one product, the work, and its ratio to the bytes."""
        flops, bytes_moved = self.kernel.estimated_flops(problem), self.kernel.estimated_bytes(problem)
        sizes = map(math.log2, sizes_of(self.kernel, problem).values())
        zeros = [float(min(MOST_ZEROS, _zeros(size))) for _, size in self.kernel.plain(problem).axes]
        work = work_of(self.kernel, problem)
        return [*sizes, *zeros, math.log2(work), math.log2((1 + flops) / (1 + bytes_moved))]

    def _facts_of(self, problem: Problem) -> ProblemFacts:
        facts = self._facts.get(problem)
        if facts is None:
            if len(self._facts) >= MOST_FACTS:
                self._facts.clear()
            kernel, plain = self.kernel, self.kernel.plain(problem)
            most = VECTOR_BYTES // plain.item_bytes
            tensors = []
            for tensor in kernel.tensors:
                layout = tensor.layout(plain)
                shape = [max(1, int(size)) for size in layout.shape] or [1]
                tensors.append((math.prod(shape), min(most, 1 << _zeros(math.gcd(shape[-1], *layout.strides[:-1])))))
            work, plain_work = work_of(kernel, problem), work_of(kernel, plain)
            bytes_moved = kernel.estimated_bytes(problem)
            facts = ProblemFacts(self.shape(problem), work, bytes_moved, plain, plain_work, tensors)
            self._facts[problem] = facts
        return facts

    def _launch(self, facts: ProblemFacts, threads: int, blocks: int, resident: int, at_once: int) -> list[float]:
        """Waves, how full the last is, work of a thread, and what a multiprocessor and all of them hold."""
        multiprocessors, room = self.limits.multiprocessors, self.limits.max_threads_per_multiprocessor
        return [
            math.log2(blocks / (resident * multiprocessors)),
            _idle(blocks / (resident * multiprocessors)),
            _idle(blocks / multiprocessors),
            math.log2(facts.work / (blocks * threads)),
            math.log2(threads),
            math.log2(resident * threads / room),
            math.log2(at_once * threads / (multiprocessors * room)),
        ]

    def _tiling(self, facts: ProblemFacts, configuration: Configuration, at_once: int) -> list[float]:
        """The size and number of tiles, their overhang at the edges, and how full their last round is."""
        problem = facts.plain
        tiling = self.tiles.tiling(problem, configuration)
        padded = tiling.count * work_of(self.kernel, tiling.whole) / facts.plain_work
        return [
            *(math.log2(1 + tile) for tile in self.tiles.extents(problem, configuration)),
            math.log2(tiling.count),
            math.log2(padded),
            _idle(tiling.parts / at_once),
            _idle(tiling.parts / self.limits.multiprocessors),
        ]

    def _copies(self, facts: ProblemFacts, configuration: Configuration) -> list[float]:
        """Logarithms a tensor: elements an instruction copies, elements and instructions a unit of work; then sums.

        Rows that begin at no multiple of a vector are copied in pieces: what tiles share should then be another tensor.
        """
        work = facts.plain_work
        row: list[float] = []
        elements, copies = 0.0, 0.0
        for (size, vector), shared_by in zip(
            facts.tensors, self.tiles.sharing(facts.plain, configuration), strict=True
        ):
            copied = size * shared_by
            row += [math.log2(vector), math.log2(copied / work), math.log2(copied / vector / work)]
            elements, copies = elements + copied, copies + copied / vector
        return [*row, math.log2(copies / work), math.log2(elements / work)]

    def parameters(self, configuration: Configuration) -> list[float]:
        """Every parameter by name, 0 where the variant lacks it; then which variant it is."""
        row = [0.0] * len(self._columns)
        for name, value in configuration.items:
            if name in self._columns:
                row[self._columns[name]] = math.copysign(math.log2(1 + abs(value)), value)
        return [*row, *(ANOTHER_VARIANT * (v.name == configuration.variant) for v in self.kernel.variants)]

    @cached_property
    def _registers(self) -> Registers:
        return Registers(self.registers, self.parameters, self.register_estimate)

    @property
    def estimate(self) -> RegisterEstimate | None:
        """How registers are estimated; None where too few configurations were compiled."""
        return self._registers.estimate

    @cached_property
    def _columns(self) -> dict[str, int]:
        names = {parameter.name for variant in self.kernel.variants for parameter in variant.parameters}
        return {name: column for column, name in enumerate(sorted(names))}


def sizes_of(kernel: Kernel, problem: Problem) -> dict[str, int]:
    """The sizes by which problems are compared: a batch counts as one product with as many rows in all."""
    plain = kernel.plain(problem)
    sizes = dict(plain.axes)
    sizes[next(iter(sizes))] *= math.prod(size for _, size in plain.sizes[len(sizes) :])
    return sizes


def work_of(kernel: Kernel, problem: Problem) -> int:
    """The work that a time is divided by: operations or bytes, whichever are more."""
    return max(kernel.estimated_flops(problem), kernel.estimated_bytes(problem), 1)


def _zeros(size: int) -> int:
    """How often a size can be halved evenly."""
    return (size & -size).bit_length() - 1


def _idle(waves: float) -> float:
    """The logarithm of the time of whole waves over that of full ones."""
    return min(4.0, math.log2(math.ceil(waves) / waves))
