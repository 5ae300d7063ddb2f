"""Whether predictions know what they don't know: each shipped shape is predicted from the others, without a GPU.

    python benchmarks/calibration.py [--device-model nvidia-h200] [--beyond 4096] [--apart 2] [--up-to 4096]

Choices are among the configurations that were measured at the shape, so that its own times tell what they are worth.
`claims` are predictions of at least 1.2 times the library's speed, of which `faster` are; `left` are those left to the
library, of which a search `gains` at least 1.1. `speed` is the geometric mean of what runs then over the library.
With --beyond N shapes with an axis above N are predicted from the others alone, without any of their own size; with
--apart N each from those that are at least so many powers of two away, by the sum over its axes, without any of its
region. --up-to N leaves out shapes with an axis above N: constants are chosen with it, and judged without it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import OptionValue, Problem, octaves
from tilewright.tuner.predict.predictor import Predictor
from tilewright.tuner.predict.record import enough
from tilewright.tuner.predict.shipped import nearest_of, shipped_models, shipped_series
from tilewright.tuner.predict.tiles import Tiles

CLAIM, GAIN = 1.2, 1.1
SERIES: tuple[tuple[str, str, dict[str, OptionValue]], ...] = (
    ("gemm", "float32", {}),
    ("linear", "float32", {}),
    ("linear", "bfloat16", {}),
    ("gemv", "float32", {}),
    ("conv2d", "float32", {}),
    ("conv2d", "float32", {"depthwise": True}),
    ("conv2d", "float32", {"layout": "nchw"}),
)
"""Those with the library's times."""


class Judged(NamedTuple):
    """Speeds over the library's: as predicted, as the choice was measured, of the best known; whether it is left."""

    said: float
    real: float
    best: float
    is_left: bool

    @property
    def is_claim(self) -> bool:
        """Whether ours was said to be clearly faster."""
        return not self.is_left and self.said >= CLAIM


@dataclass(frozen=True)
class HeldOut:
    """Which shapes are predicted, and from which of the others."""

    beyond: int | None = None
    apart: float = 0.0
    up_to: int | None = None

    def asks(self, problem: Problem) -> bool:
        """Whether the shape is predicted."""
        return self.beyond is None or _largest(problem) > self.beyond

    def knows(self, problem: Problem, other: Problem) -> bool:
        """Whether the shape is predicted from the other one."""
        is_near = octaves(dict(problem.axes), dict(other.axes)) < self.apart
        return not is_near and (self.beyond is None or _largest(other) <= self.beyond)


EACH_ALONE = HeldOut()


def judged(
    kernel_name: str, dtype: str, options: dict[str, OptionValue], device_model: str, held_out: HeldOut = EACH_ALONE
) -> Iterator[Judged]:
    """Each shape of a series."""
    kernel, limits = catalogue().get(kernel_name), shipped_models()[device_model][1]
    like = kernel.problem(kernel.example_shape, dtype, options)
    found = [one for one in shipped_series(kernel, like) if one.device_model == device_model]
    every = [one for series in found for one in series.records]
    records = [one for one in every if held_out.up_to is None or _largest(one.problem) <= held_out.up_to]
    tiles = Tiles(kernel)
    for record in records:
        if record.library is None or not held_out.asks(record.problem):
            continue
        known = [one for one in records if one is not record and held_out.knows(record.problem, one.problem)]
        near = nearest_of(kernel, record.problem, known)
        if not enough(len(near)):
            continue
        predictor = Predictor(kernel, limits, near, tiles=tiles)
        prediction = predictor.predict(record.problem, record.times_ms.__contains__)
        if prediction is not None and prediction.library is not None:
            library_ms, real_ms = record.library.time_ms, record.times_ms[prediction.configuration]
            said = prediction.library.time_ms / prediction.time_ms
            yield Judged(said, library_ms / real_ms, library_ms / record.best_ms, prediction.is_library_faster)


def _largest(problem: Problem) -> int:
    return max(size for _, size in problem.axes)


def words(rows: Sequence[Judged]) -> str:
    """The counts of a series."""
    claims, left = [row for row in rows if row.is_claim], [row for row in rows if row.is_left]
    faster, gains = sum(row.real > 1 for row in claims), sum(row.best >= GAIN for row in left)
    logs = [0.0 if row.is_left else math.log(row.real) for row in rows]
    speed = math.exp(sum(logs) / max(1, len(logs)))
    return (
        f"{len(rows)} shapes, {len(claims)} claims, {faster} faster; {len(left)} left, {gains} gain {GAIN}; "
        f"speed {speed:.3f}"
    )


def main() -> None:
    """Prints a line a series, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device-model", default="nvidia-h200")
    parser.add_argument("--beyond", type=int, help="predict shapes above this size from those below")
    parser.add_argument("--apart", type=float, default=0.0, help="predict shapes from those so many octaves away")
    parser.add_argument("--up-to", type=int, help="leave out shapes above this size")
    given = parser.parse_args()
    held_out = HeldOut(given.beyond, given.apart, given.up_to)
    every: list[Judged] = []
    for kernel, dtype, options in SERIES:
        rows = list(judged(kernel, dtype, options, given.device_model, held_out))
        print(kernel, dtype, options or "", words(rows), flush=True)
        every += rows
    print("all", words(every))


if __name__ == "__main__":
    main()
