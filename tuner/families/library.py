"""Parts of ranges that the library's call serves: where it was faster at every measured size, beyond the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import groupby, pairwise

from tilewright.kernels.space import Configuration
from tilewright.tuner.families.cover import Span, Times, crossing
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.bench import Bench
from tilewright.tuner.loop.measure import checked_samples
from tilewright.tuner.loop.verify import verify_library_call
from tilewright.tuner.outcome import L2, Executable, KindsPart

ROUNDS, SAMPLES = 9, 2

FIRST_KIND = KindsPart(1000, 1000)
"""The inputs that are timed: others would have to be drawn, and the library makes one call for all."""


def with_library(
    spans: Sequence[Span], times: Times, library_ms: Mapping[int, float], ahead: AbstractSet[tuple[Configuration, int]]
) -> list[Span]:
    """The spans, cut where the library becomes faster than the configuration, or slower.

    `ahead`: the configurations and measured sizes at which it is faster.
    """
    sizes = sorted({size for of_one in times.values() for size in of_one})
    return [part for span in spans for part in _parts(span, sizes, times[span.configuration], library_ms, ahead)]


def _parts(
    span: Span,
    sizes: Sequence[int],
    ours: Mapping[int, float],
    library_ms: Mapping[int, float],
    ahead: AbstractSet[tuple[Configuration, int]],
) -> list[Span]:
    inside = [size for size in sizes if span.low <= size <= span.high]
    runs = [(is_ahead, list(run)) for is_ahead, run in groupby(inside, lambda one: (span.configuration, one) in ahead)]
    ends = []
    for (is_ahead, run), (_, following) in pairwise(runs):
        one, other = (library_ms, ours) if is_ahead else (ours, library_ms)
        ends.append(crossing(one, other, run[-1], following[0]))
    starts = [span.low, *(end + 1 for end in ends)]
    parts = zip(starts, [*ends, span.high], runs, strict=True) if runs else ()
    return [replace(span, low=low, high=high, is_library=is_ahead) for low, high, (is_ahead, _) in parts] or [span]


def library_rounds(bench: Bench, ours: Executable, l2: L2) -> tuple[float, bool] | None:
    """The time of the library's call that can be made at any size, in rounds with ours, and whether it is faster.

    That is, beyond the noise. None where the library has no such call that is right.
    """
    library = bench.library(at_any_size=True)
    if library is None:
        return None
    verification = verify_library_call(bench, library, FIRST_KIND)
    if verification is not None and not verification.is_right:
        return None
    library_ms, ours_ms = list[float](), list[float]()
    both = [(library, library_ms), (ours, ours_ms)]
    for number in range(ROUNDS):
        for executable, times_ms in both[:: -1 if number % 2 else 1]:
            times_ms.append(statistics.median(checked_samples(bench, executable, l2, SAMPLES)))
    _, ratio = statistics.ratio_interval(library_ms, ours_ms)
    return statistics.median(library_ms), ratio.high < 1
