"""Predictions for a problem from the records that come with the package, in the application's own process."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.predict.predictor import Predictor, enough
from tilewright.tuner.predict.shipped import joined, likest_first, nearest_of, shipped_series
from tilewright.tuner.predict.tiles import Tiles
from tilewright.tuner.runtime.choice import TargetDevice, is_admitted

_TILES: dict[Hashable, Tiles] = {}
"""By kernel, dtype and options: a process asks for several shapes of each."""


def shipped_answer(kernel: Kernel, problem: Problem, place: TargetDevice) -> Mapping[str, Any] | None:
    """The answer as a service without a result of its own gives it: `predicted`, or `transferred` without a time.

    From the records of all device models of the same compute capability; None without any. The time is told where
    enough of them are of this model.
    """
    series = likest_first(shipped_series(kernel, problem), place.slug, place.limits)
    if not series:
        return None
    records = nearest_of(kernel, problem, joined(series, place.slug))
    if not enough(len(records)):
        return None
    likest = series[0]
    like = records[0].problem
    tiles = _TILES.setdefault((kernel.name, kernel.folder, like.dtype, like.option_items), Tiles(kernel))
    predictor = Predictor(kernel, likest.limits, records, tiles=tiles)
    prediction = predictor.predict(problem, lambda one: is_admitted(kernel, problem, place.limits, one))
    if prediction is None:
        return None
    is_own, library = likest.device_model == place.slug and enough(len(likest.records)), prediction.library
    told = {"faster": prediction.is_library_faster, "time_ms": library.time_ms} if is_own and library else None
    return {
        "variant": prediction.configuration.variant,
        "configuration": dict(prediction.configuration.values),
        "match": "predicted" if is_own else "transferred",
        "time_ms": prediction.time_ms if is_own else None,
        "library": told,
        "source_hash": kernel.source_hash(prediction.configuration.variant),
    }
