"""Parts of ranges that the library's call serves: where it was faster at every measured size, beyond the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import groupby, pairwise

from tilewright.kernels.space import Configuration
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.families.cover import Span, Times, crossing
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.bench import Bench
from tilewright.tuner.loop.measure import MeasurementPlan
from tilewright.tuner.loop.rounds import Contestant, play
from tilewright.tuner.loop.verify import verify_library_call
from tilewright.tuner.outcome import L2, Executable, KindsPart


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


def library_rounds(
    bench: Bench, ours: Executable, l2: L2, plan: MeasurementPlan, kinds: KindsPart
) -> tuple[float, bool] | None:
    """The time of the library's call that can be made at any size, beside ours in the same rounds.

    With it whether it is faster beyond the noise; None where it has none that is right.
    """
    library = bench.library(at_any_size=True)
    if library is None:
        return None
    verification = verify_library_call(bench, library, kinds)
    if verification is not None and not verification.is_right:
        return None
    failures: list[TrialFailure] = []
    both = [Contestant(None, library), Contestant(None, ours)]
    play(bench, list(both), l2, plan, should_stop=lambda: False, drop=lambda _one, failure: failures.append(failure))
    for failure in failures:
        raise failure
    _, ratio = statistics.ratio_interval(both[0].rounds_ms, both[1].rounds_ms)
    return both[0].time_ms, ratio.high < 1
