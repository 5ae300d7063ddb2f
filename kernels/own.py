"""A user's own kernel: read from its folder, with the problems and configurations that it is checked with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tilewright.kernels.catalogue import Catalogue
from tilewright.kernels.enumeration.configuration import Configuration
from tilewright.kernels.errors import BrokenDeclarationError, InvalidProblemError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, OptionValue, Problem
from tilewright.kernels.space import SearchSpace

ODD_SIZES = (61, 37, 23, 13, 7, 5, 3)
"""Primes: no power of two divides them, and axes that are swapped by mistake differ."""

# Shared KiB of a block and of a multiprocessor, threads of a multiprocessor (CUDA C++ Programming Guide, "Compute
# Capabilities"), by compute capability. The smallest of each generation that NVRTC 13 compiles for, and the H200's.
_SIZES = {
    (7, 5): (64, 64, 1024),
    (8, 0): (163, 164, 2048),
    (8, 9): (99, 100, 1536),
    (9, 0): (227, 228, 2048),
    (10, 0): (227, 228, 2048),
    (12, 0): (99, 100, 1536),
}
CAPABILITIES = tuple(_SIZES)


def own_kernel(folder: Path, others: Sequence[Path] = ()) -> Kernel:
    """The kernel that the folder declares; its `declaration.py` runs here.

    Raises BrokenDeclarationError, also where Tilewright or one of the other folders has a kernel of that name.
    """
    elsewhere = [other for other in others if other.resolve() != folder.resolve()]
    before = Catalogue.load(elsewhere).by_name
    if not folder.is_dir():
        raise BrokenDeclarationError(folder, "there is no such folder")
    added = Catalogue.load([*elsewhere, folder]).by_name
    (name,) = added.keys() - before.keys()
    return added[name]


def limits_of(capability: tuple[int, int]) -> Limits:
    """Limits of a GPU with that compute capability; multiprocessors and memory are those of a small one."""
    block_kib, multiprocessor_kib, threads = _SIZES[capability]
    return Limits(
        capability,
        multiprocessors=40,
        memory_bytes=16 * 2**30,
        max_shared_bytes=block_kib * 1024,
        shared_bytes_per_multiprocessor=multiprocessor_kib * 1024,
        max_threads_per_multiprocessor=threads,
    )


def option_values(kernel: Kernel, dtype: str) -> Iterator[Mapping[str, OptionValue]]:
    """The options at their defaults, then each other value by itself that this dtype admits."""
    yield {}
    for option in kernel.options:
        if dtype in (option.only_dtypes or kernel.dtypes):
            yield from ({option.name: value} for value in option.values if value != option.default)


def odd_shapes(kernel: Kernel) -> list[dict[str, int]]:
    """Small shapes for the CPU: one of primes, none larger than the example's axis; one of ones; one long and thin.

    Shapes that the kernel refuses are left out; if it refuses all, there is one of powers of two, or the example.
    """
    sizes = {axis: ODD_SIZES[place % len(ODD_SIZES)] for place, axis in enumerate(kernel.axes)}
    primes = {axis: min(size, kernel.example_shape[axis]) for axis, size in sizes.items()}
    longest = max(kernel.axes, key=lambda axis: kernel.example_shape[axis])
    thin = {axis: min(101, kernel.example_shape[axis]) if axis == longest else 1 for axis in kernel.axes}
    shapes = [primes, dict.fromkeys(kernel.axes, 1), thin]
    problems = [s for place, s in enumerate(shapes) if s not in shapes[:place] and _is_problem(kernel, s)]
    powers = {axis: 1 << (size.bit_length() - 1) for axis, size in primes.items()}
    return problems or [powers if _is_problem(kernel, powers) else dict(kernel.example_shape)]


def _is_problem(kernel: Kernel, shape: Mapping[str, int]) -> bool:
    try:
        kernel.problem(shape, kernel.dtypes[0])
    except InvalidProblemError:
        return False
    return True


def corners(space: SearchSpace) -> list[Configuration]:
    """The start of one variant, then for each parameter the feasible configurations that take it to either end.

    Those are near the start elsewhere, so that what fails names the parameter; then the largest and the smallest.
    """
    (part,) = space.spaces
    start = dict(space.defaults()[0].items)
    wanted = [start]
    for parameter in part.parameters:
        wanted += [start | {parameter.name: value} for value in (min(parameter.values), max(parameter.values))]
    wanted += [{p.name: end(p.values) for p in part.parameters} for end in (min, max)]
    near = (space.nearest(Configuration.of(part.variant, values), exclude=frozenset()) for values in wanted)
    return list(dict.fromkeys(configuration for configuration in near if configuration is not None))


def spread(space: SearchSpace, count: int) -> list[Configuration]:
    """So many feasible configurations, at equal distances in their order; fewer where there are fewer."""
    feasible = space.feasible
    return (
        [feasible[place * len(feasible) // count] for place in range(count)] if len(feasible) > count else [*feasible]
    )


def example(kernel: Kernel, dtype: str, options: Mapping[str, OptionValue]) -> Problem:
    """The problem that the declaration gives as its example."""
    return kernel.problem(kernel.example_shape, dtype, options)
