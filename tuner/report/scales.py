"""The scale of a report: the problem of the table, the sizes of the sweep, and the time for each part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import OptionValue, Problem
from tilewright.tuner.loop.measure import DEFAULT_PLAN, MeasurementPlan
from tilewright.tuner.report.ladders import Ladder


@dataclass(frozen=True)
class Scale:
    """`shape` of the table; `sizes` of the sweep, each put on the axes `swept` (the others stay as in `fixed`).

    `search_s`, `search_trials`: what the search of one step may take, its finals come on top; no trials: no search.
    `draws`: configurations that a step tries at random at each size of the sweep; none: it keeps the table's.
    `rectangles`: shapes of the size of the table's that are not square, measured like the sweep.
    `host_s`: a host step that would take longer is left out. `total_s`: no further size is begun after it.
    """

    shape: Mapping[str, int]
    sizes: tuple[int, ...]
    swept: tuple[str, ...]
    search_s: float
    search_trials: int
    draws: int
    host_s: float
    total_s: float
    rounds: MeasurementPlan
    sweep_rounds: MeasurementPlan
    rectangles: tuple[Mapping[str, int], ...] = ()

    def problem(self, kernel: Kernel, dtype: str, options: Mapping[str, OptionValue]) -> Problem:
        """The problem of the table."""
        return kernel.problem(self.shape, dtype, options)

    def swept_shape(self, size: int) -> Mapping[str, int]:
        """The sweep's shape of that size."""
        return {**self.shape, **dict.fromkeys(self.swept, size)}


_ALL = ("m", "n", "k")
_POWERS = tuple(2**e for e in range(1, 14))

_ROUNDS = replace(DEFAULT_PLAN, final_repeats=0)  # a report states the spread it met
_SWEEP_ROUNDS = replace(_ROUNDS, final_rounds=7, final_samples=1)
_QUICK_ROUNDS = replace(_ROUNDS, final_rounds=5, final_samples=1)
SEARCH_PLAN = replace(DEFAULT_PLAN, finalists=2, final_rounds=6, final_samples=1, final_repeats=0)
"""The finals of a step's search only order its configurations; the table's rounds follow."""

_SHAPES: Mapping[tuple[str, str, bool], tuple[dict[str, int], tuple[int, ...], tuple[str, ...]]] = {
    ("gemm", "cuda", False): ({"m": 4096, "n": 4096, "k": 4096}, (*_POWERS, 10240), _ALL),
    ("gemm", "cuda", True): ({"m": 2048, "n": 2048, "k": 2048}, (2, 16, 128, 512, 2048), _ALL),
    ("gemm", "cpu", False): ({"m": 256, "n": 256, "k": 256}, (*_POWERS[:8], 384), _ALL),
    ("gemm", "cpu", True): ({"m": 64, "n": 64, "k": 64}, (2, 32), _ALL),
    ("gemv", "cuda", False): ({"m": 16384, "n": 16384}, (*_POWERS, 16384, 32768), ("m", "n")),
    ("gemv", "cuda", True): ({"m": 8192, "n": 8192}, (16, 256, 2048, 8192), ("m", "n")),
    ("gemv", "cpu", False): ({"m": 1024, "n": 1024}, _POWERS[:11], ("m", "n")),
    ("gemv", "cpu", True): ({"m": 128, "n": 128}, (2, 64), ("m", "n")),
    ("linear", "cuda", False): ({"m": 2048, "n": 4096, "k": 4096}, (1, 4, 16, 64, 256, 1024, 4096, 8192), ("m",)),
    ("linear", "cuda", True): ({"m": 256, "n": 1024, "k": 1024}, (1, 16, 256, 2048), ("m",)),
    ("linear", "cpu", False): ({"m": 128, "n": 100, "k": 784}, (1, 4, 16, 64, 256), ("m",)),
    ("linear", "cpu", True): ({"m": 16, "n": 100, "k": 196}, (1, 8), ("m",)),
}
"""Shapes by kernel, kind of device and whether it must be quick. The CPU device runs a GPU's kernels on one thread."""


def _rectangles(kernel: str, shape: Mapping[str, int]) -> tuple[Mapping[str, int], ...]:
    """Each axis in turn an eighth of the others; of linear the sweep's shapes are rectangular already."""
    size = max(shape.values())
    axes = {} if kernel == "linear" else shape
    return tuple({axis: max(1, size // 8) if axis == short else size for axis in shape} for short in axes)


_DRAWS = {"gemm": 1, "gemv": 4, "linear": 1}
"""Draws of each kernel: all variants of gemv are one step, and they compile in half the time."""


def scale_of(
    ladder: Ladder,
    kind: Literal["cuda", "cpu"],
    *,
    quick: bool,
    shape: Mapping[str, int] | None = None,
    seconds: float | None = None,
) -> Scale:
    """The scale of a report; `shape` replaces the table's, `seconds` the time after which no further size is begun."""
    usual, sizes, swept = _SHAPES.get((ladder.kernel, kind, quick), (dict(ladder.shape), (), ()))
    return Scale(
        shape=dict(shape or usual),
        sizes=sizes,
        swept=swept,
        search_s=1.0 if quick else 2.5 if kind == "cuda" else 6.0,
        search_trials=0 if quick else 40,
        draws=0 if quick else _DRAWS.get(ladder.kernel, 0),
        host_s=0.1 if quick else 2.0,
        total_s=seconds or (30.0 if quick else 120.0),
        rounds=_QUICK_ROUNDS if quick else _ROUNDS,
        sweep_rounds=_QUICK_ROUNDS if quick else _SWEEP_ROUNDS,
        rectangles=_rectangles(ladder.kernel, shape or usual) if sizes else (),
    )
