"""The random contents of a problem's arrays, in the kinds that verification takes turns with."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.dtypes import UNIT_ROUNDOFF, is_integer, sum_dtype
from tilewright.kernels.kernel import InputsFunction, Kernel, Tensor
from tilewright.kernels.problem import Problem
from tilewright.tuner.errors import OwnFunctionError, declared
from tilewright.tuner.kept_draws import KEPT
from tilewright.tuner.line_kinds import (
    FACTOR_KINDS,
    MIXED,
    PIXELS,
    ROW_KINDS,
    SHARED,
    SPECIAL,
    change_factor,
    change_rows,
    factor_kinds,
    shared_pair,
)

HostArray = NDArray[Any]
Fill = Callable[["np.random.Generator", HostArray], None]

NORMAL, UNIFORM, SCALED, CANCELLING, MODERATE, NONFINITE, SMALLEST = DRAWN_KINDS = (
    *("normal", "uniform", "scaled", "cancelling", "moderate"),
    *("nonfinite", "smallest"),
)
KINDS = (*DRAWN_KINDS, *FACTOR_KINDS, *ROW_KINDS, SHARED)
"""Standard normal, with which everything is timed; uniform in [0, 1), where rounding errors add up instead of
cancelling; normal times powers of two from 2^-30 to 2^30, drawn for each element; sums that nearly vanish; like scaled,
but from 2^-6 to 2^6; normal with a few infinities, NaN and zeros; factors of which half the lines are normal times
2^-129, near 1e-39, so that half of the results are below the smallest normal number."""

LARGEST_INTEGER = 100
"""Integers are uniform up to it, from its negative where they are signed, whatever the kind: they fit 8 bits, and a sum
of 20 million of them fits 32. Indices and other integers that mean something are for the kernel's `inputs`."""

SCALE, MODERATE_SCALE = 30, 6
SCALE_FLOAT16, LIFT_FLOAT16 = 5, 7
"""float16 ends at 65504. Products of factors scaled by up to 2^5 each stay below it; those of cancelling pairs, lifted
by 2^7 each, do not when added up to the middle of the sum, although what is left of them does: a kernel that keeps
partial sums in float16 is found out. Its `moderate` would be like `scaled`, and is left out."""

CANCELLED_EPSILONS = {"float32": 16, "float64": 16, "bfloat16": 1, "float16": 1}
"""What is left of a cancelling pair, in machine epsilons of its size, times a normal number. Little in half types:
their results are rounded so coarsely that else nothing of an error in the sum would be seen."""

SMALLEST_SCALE = {"float32": -129, "float64": -129, "bfloat16": -129, "float16": -20}
"""By dtype. In float16 numbers near 2^-20 have four digits left, and a sum of thousands of them still is subnormal."""

PLANTED = ((np.inf,), (-np.inf,), (np.nan,), (np.inf, -np.inf), (0.0,))
"""What a line of a factor gets in place of some of its numbers, in turn."""

SPECIAL_SHARE = 16
"""One line in so many gets something special, at one of MOST_SPECIAL places that all lines have in common."""

MOST_SPECIAL = 4

OTHER_SCALARS = frozenset({UNIFORM, MIXED, PIXELS})
"""Kinds with which scalars have their `other` values."""

ROTATING = 3
"""Each kind that is made costs a trial as much as some launches do; what may win is verified with all of them."""

DISTINCT_ROWS = 2039
"""Of an axis whose size comes with the launch: more rows than so many repeat, but for those that are timed. It is a
prime, so that no tile has the rows of another."""

_BLOCK = 1 << 20
"""Elements drawn at a time, each block by a generator of its own: what is drawn does not depend on the cores."""

_MAX_THREADS = 16


_AGAIN, _SEEDS_APART = "+", 7919


def drawn_again(kind: str, number: int) -> str:
    """The name of inputs of this kind that are drawn from another seed, by a number from 1 on."""
    return f"{kind}{_AGAIN}{number}"


def _kind_and_seed(kind: str, seed: int) -> tuple[str, int]:
    plain, _, number = kind.partition(_AGAIN)
    return plain, seed + _SEEDS_APART * int(number or 0)


def input_kinds(kernel: Kernel, problem: Problem) -> tuple[str, ...]:
    """The kinds that mean something for this problem; the first is the one that is timed.

    Only a sum has factors to scale and terms that cancel. In float64 the reference has no more digits than the kernel,
    and where a few terms outweigh all others, sqrt(terms) bounds do not cover the rounding of both; infinities and NaN
    have no digits. Rows that are normalised come in kinds of their own.
    """
    if not any(tensor.summed(problem) is not None for tensor in kernel.tensors):
        rows = (MIXED, *ROW_KINDS, SPECIAL) if any(tensor.normalised for tensor in kernel.tensors) else ()
        return NORMAL, UNIFORM, *rows
    changed = factor_kinds(kernel, problem)
    if problem.dtype == "float64":
        return NORMAL, UNIFORM, NONFINITE, *changed
    return *(kind for kind in DRAWN_KINDS if kind != MODERATE or problem.dtype != "float16"), *changed


def rotating_kinds(kinds: Sequence[str], seed: int) -> tuple[str, ...]:
    """The kinds of inputs that trials take in turn: all random ones, and ROTATING of the others, chosen by the seed."""
    changed = [kind for kind in kinds if kind not in DRAWN_KINDS]
    taken = {changed[(seed + i) % len(changed)] for i in range(ROTATING)} if changed else set()
    return tuple(kind for kind in kinds if kind in DRAWN_KINDS or kind in taken)


def random_arrays(
    kernel: Kernel, problem: Problem, seed: int, kind: str = NORMAL, drawn: dict[str, HostArray] | None = None
) -> dict[str, HostArray]:
    """Every array that the kernel reads, by name, in its tensor's layout and dtype, with NaN between its rows.

    All kinds but the first two are about the factors of the sum; other arrays are normal then. Never more than a few
    zeros: they hide unwritten outputs, and GPUs run faster on them than on real data. The kernel's `inputs` is asked
    for each kind, with another generator. `drawn` keeps the normal numbers that all kinds of FACTOR_KINDS are made of.
    """
    kind, seed = _kind_and_seed(kind, seed)
    entropy = [seed, KINDS.index(kind) if kind in DRAWN_KINDS else 0]
    arrays: dict[str, HostArray] = {}
    partner = False
    for place, tensor in enumerate(kernel.tensors):
        if not tensor.is_read(problem):
            continue
        # Of its own: what one array holds does not depend on the size of another.
        sequence = np.random.SeedSequence(entropy, spawn_key=(place,))
        make = partial(
            _made, kernel, problem, tensor, kind, seed=seed, sequence=sequence, drawn=drawn, is_partner=partner
        )
        key = (kernel.name, kernel.folder, tensor.name, tensor.layout(problem), problem.dtype, problem.option_items)
        arrays[tensor.name] = KEPT.take((*key, kind, seed), make) if problem.at_launch else make()
        partner |= not is_integer(tensor.dtype_for(problem)) and tensor.summed(problem) is not None
    pair = shared_pair(kernel, problem) if kind == SHARED else None
    if pair is not None:
        first, second = pair
        arrays[second.name] = arrays[first.name].reshape(second.layout(problem).own_shape)
    if kernel.inputs is not None:
        of_inputs = np.random.SeedSequence(entropy, spawn_key=(len(kernel.tensors),))
        generator = np.random.Generator(np.random.SFC64(of_inputs))
        arrays |= _own_inputs(kernel, problem, kernel.inputs, generator)
    for tensor in (t for t in kernel.tensors if t.normalised and kind not in DRAWN_KINDS):
        own = arrays[tensor.name]
        changed = change_rows(tensor, problem, own, kind, seed)
        arrays[tensor.name] = tensor.layout(problem).placed(changed.astype(own.dtype))
    return arrays


def _made(
    kernel: Kernel,
    problem: Problem,
    tensor: Tensor,
    kind: str,
    *,
    seed: int,
    sequence: np.random.SeedSequence,
    drawn: dict[str, HostArray] | None,
    is_partner: bool,
) -> HostArray:
    """One array as its tensor lies."""
    fewer = _with_distinct_rows(tensor, problem) if kind != NORMAL else problem
    if fewer != problem:
        distinct = _made(kernel, fewer, tensor, kind, seed=seed, sequence=sequence, drawn=drawn, is_partner=is_partner)
        layout = tensor.layout(problem)
        return layout.placed(np.resize(distinct, layout.own_shape))
    dtype = tensor.dtype_for(problem)
    axis = None if is_integer(dtype) else tensor.summed(problem)
    array = _contents(tensor, problem, kind, sequence, None if kind in DRAWN_KINDS else drawn)
    if axis is not None and kind in DRAWN_KINDS:
        _arrange(array, axis, kind, dtype, sequence, is_partner=is_partner)
    elif axis is not None:
        change_factor(kernel, problem, array, axis, kind, (seed, KINDS.index(kind)), is_partner=is_partner)
    return tensor.layout(problem).placed(array.astype(dtype, copy=False))


def _with_distinct_rows(tensor: Tensor, problem: Problem) -> Problem:
    """The problem with DISTINCT_ROWS where the tensor has more, that is, where its first axis comes with the launch."""
    if not problem.at_launch or problem.shape[problem.at_launch] <= DISTINCT_ROWS:
        return problem
    fewer = problem.with_size(problem.at_launch, DISTINCT_ROWS)
    own, less = tensor.layout(problem).own_shape, tensor.layout(fewer).own_shape
    return fewer if own != less and own[1:] == less[1:] else problem


def _contents(
    tensor: Tensor,
    problem: Problem,
    kind: str,
    sequence: np.random.SeedSequence,
    drawn: dict[str, HostArray] | None,
) -> HostArray:
    """The numbers that an array of this kind is made from: drawn now, or a copy of an earlier draw that was kept."""
    dtype = tensor.dtype_for(problem)
    is_kind = tensor.summed(problem) is not None or kind == UNIFORM
    draw = _integers if is_integer(dtype) else _fill_of(kind if is_kind else NORMAL, dtype)
    if drawn is None:
        return _drawn(tensor, problem, draw, sequence)
    if tensor.name not in drawn:
        drawn[tensor.name] = _drawn(tensor, problem, draw, sequence)
    return drawn[tensor.name].copy()


def _arrange(
    array: HostArray, axis: int, kind: str, dtype: str, sequence: np.random.SeedSequence, *, is_partner: bool
) -> None:
    """Turns drawn numbers into a factor of this kind, in place."""
    if kind == CANCELLING:
        _pair(array, axis, dtype, sequence if is_partner else None)
    elif kind == NONFINITE:
        _plant(array, axis, sequence)
    elif kind == SMALLEST:
        _shrink(array, axis, SMALLEST_SCALE[dtype], is_partner=is_partner)


class DrawnAhead:
    """Inputs of several kinds, drawn by a thread: `at_once` kinds, and another as soon as one was taken."""

    def __init__(self, kernel: Kernel, problem: Problem, seed: int, kinds: Sequence[str], at_once: int = 1) -> None:
        self._draw = partial(random_arrays, kernel, problem, seed, drawn={})
        self._left = list(kinds)
        self._thread = ThreadPoolExecutor(1, "draw")
        self._drawn: dict[str, Future[dict[str, HostArray]]] = {}
        for _ in range(at_once):
            self._begin()

    def is_drawn(self, kind: str) -> bool:
        """Whether `take` of that kind waits for nothing."""
        return kind in self._drawn and self._drawn[kind].done()

    def take(self, kind: str) -> dict[str, HostArray]:
        """The arrays by name, which are nobody else's."""
        if kind not in self._drawn:
            self._left = [one for one in self._left if one != kind]
            return self._draw(kind, drawn=None)
        arrays = self._drawn.pop(kind).result()
        self._begin()
        return arrays

    def close(self) -> None:
        """Stops drawing inputs ahead; `take` then draws them itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._left, self._drawn = [], {}

    def _begin(self) -> None:
        if self._left:
            kind = self._left.pop(0)
            self._drawn[kind] = self._thread.submit(self._draw, kind)


def scalar_values(kernel: Kernel, problem: Problem, kind: str = NORMAL) -> dict[str, float]:
    """The value of every scalar argument by name; with some kinds of inputs the `other` value, where there is one.

    Sums in half types keep the usual ones: their bounds are those of the library, whose call passes these.
    """
    scalars = kernel.scalars(problem)
    is_half_sum = problem.is_half and any(tensor.summed(problem) is not None for tensor in kernel.tensors)
    if kind not in OTHER_SCALARS or is_half_sum:
        return {a.name: a.number(problem) for a in scalars}
    return {a.name: a.number_of((a.other or a.value)(problem), problem) for a in scalars}


def _own_inputs(
    kernel: Kernel, problem: Problem, inputs: InputsFunction, generator: np.random.Generator
) -> dict[str, HostArray]:
    """The arrays that the kernel's author sets; raises OwnFunctionError."""
    with declared(kernel.name, "inputs"):
        given = dict(inputs(problem, generator))
    read = {tensor.name: tensor for tensor in kernel.tensors if tensor.is_read(problem)}
    arrays: dict[str, HostArray] = {}
    for name, numbers in given.items():
        if name not in read:
            raise OwnFunctionError(kernel.name, "inputs", f"it sets {name!r}; what is read is {', '.join(read)}")
        array, layout, dtype = np.asarray(numbers), read[name].layout(problem), read[name].dtype_for(problem)
        if array.shape != layout.own_shape or not np.can_cast(array.dtype, sum_dtype(dtype), "same_kind"):
            reason = f"{name} is {array.dtype} {array.shape}; the tensor is {dtype} {layout.own_shape}"
            raise OwnFunctionError(kernel.name, "inputs", reason)
        arrays[name] = layout.placed(array.astype(dtype))
    return arrays


def _drawn(tensor: Tensor, problem: Problem, draw: Fill, sequence: np.random.SeedSequence) -> HostArray:
    """Numbers in the tensor's dtype; half types stay in float32 until all changes are made, then they are rounded."""
    shape = tensor.layout(problem).own_shape
    array: HostArray = np.empty(shape, sum_dtype(tensor.dtype_for(problem)))
    _fill(array.reshape(-1), draw, sequence)
    return array


def _fill(flat: HostArray, draw: Fill, sequence: np.random.SeedSequence) -> None:
    blocks = [flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK)]
    generators = [np.random.Generator(np.random.SFC64(seed)) for seed in sequence.spawn(len(blocks))]
    if len(blocks) == 1:
        draw(generators[0], blocks[0])
        return
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS, len(blocks))) as pool:
        list(pool.map(draw, generators, blocks))


def _normal(generator: np.random.Generator, out: HostArray) -> None:
    generator.standard_normal(out=out, dtype=out.dtype.type)


def _integers(generator: np.random.Generator, out: HostArray) -> None:
    least = 0 if out.dtype.kind == "u" else -LARGEST_INTEGER
    out[...] = generator.integers(least, LARGEST_INTEGER, out.size, out.dtype, endpoint=True)


def _almost(number: float, deviation: float, generator: np.random.Generator, out: HostArray) -> None:
    _normal(generator, out)
    out *= deviation * number
    out += number


def _uniform(generator: np.random.Generator, out: HostArray) -> None:
    generator.random(out=out, dtype=out.dtype.type)


def _scaled(generator: np.random.Generator, out: HostArray, scale: int = SCALE) -> None:
    _normal(generator, out)
    np.ldexp(out, generator.integers(-scale, scale, out.size, np.int8, endpoint=True), out=out)


def _moderate(generator: np.random.Generator, out: HostArray) -> None:
    _scaled(generator, out, MODERATE_SCALE)


def _pair(array: HostArray, axis: int, dtype: str, sequence: np.random.SeedSequence | None) -> None:
    """Repeats the first half along the axis in the second; with `sequence` negated, and slightly changed."""
    along = np.moveaxis(array, axis, 0)
    if dtype == "float16":
        np.ldexp(along, LIFT_FLOAT16, out=along)
    half = along.shape[0] // 2
    if sequence is None or not half:
        along[half : 2 * half] = along[:half]
        return
    left = np.empty(along[:half].shape, array.dtype)
    _fill(left.reshape(-1), partial(_almost, -1, CANCELLED_EPSILONS[dtype] * 2 * UNIT_ROUNDOFF[dtype]), sequence)
    np.multiply(along[:half], left, out=along[half : 2 * half])


def _plant(array: HostArray, axis: int, sequence: np.random.SeedSequence) -> None:
    """Replaces some numbers by PLANTED ones, in a few of the lines along the axis; never in an only line."""
    along = np.moveaxis(array, axis, 0)
    lines = along.size // along.shape[0]
    if lines == 1:
        return
    places = np.random.Generator(np.random.SFC64(sequence.entropy)).integers(along.shape[0], size=MOST_SPECIAL)
    generator = np.random.Generator(np.random.SFC64(sequence.spawn(1)[0]))
    for turn, line in enumerate(generator.permutation(lines)[: -(-lines // SPECIAL_SHARE)]):
        where = np.unravel_index(line, along.shape[1:])
        for step, number in enumerate(PLANTED[turn % len(PLANTED)]):
            along[(places[(turn // len(SPECIAL) + step) % MOST_SPECIAL], *where)] = number


def _shrink(array: HostArray, axis: int, scale: int, *, is_partner: bool) -> None:
    """Scales the first half of the lines along the axis; an only line just in the first factor, not in its partner."""
    along = np.moveaxis(array, axis, 0)
    lines = along[:, None] if along.ndim == 1 else along
    half = lines[..., : (lines.shape[-1] + (not is_partner)) // 2]
    np.ldexp(half, scale, out=half)


def _fill_of(kind: str, dtype: str) -> Fill:
    if kind == SCALED and dtype == "float16":
        return partial(_scaled, scale=SCALE_FLOAT16)
    return _DRAWN.get(kind, _normal)


_DRAWN: dict[str, Fill] = {
    NORMAL: _normal,
    UNIFORM: _uniform,
    SCALED: _scaled,
    CANCELLING: _normal,
    MODERATE: _moderate,
    NONFINITE: _normal,
    SMALLEST: _normal,
}
