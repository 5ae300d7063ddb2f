"""What the measurements that come with the package predict for a problem, in the application's own process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.tuner.predict.predictor import Predictor, enough
from tilewright.tuner.predict.shipped import ShippedSeries, nearest_of, shipped_series
from tilewright.tuner.runtime.choice import TargetDevice, is_admitted


def shipped_answer(kernel: Kernel, problem: Problem, place: TargetDevice) -> Mapping[str, Any] | None:
    """The answer as a service without a result of its own gives it: `predicted`, or `transferred` without a time.

    From the records of this device model, or else of the likest one of the same compute capability; None without any.
    """
    series = _likest(shipped_series(kernel, problem), place)
    if series is None:
        return None
    records = nearest_of(kernel, problem, series.records)
    if not enough(len(records)):
        return None
    predictor = Predictor(kernel, series.limits, records)
    prediction = predictor.predict(problem, lambda one: is_admitted(kernel, problem, place.limits, one))
    if prediction is None:
        return None
    is_own, library = series.device_model == place.slug, prediction.library
    told = {"faster": prediction.is_library_faster, "time_ms": library.time_ms} if is_own and library else None
    return {
        "variant": prediction.configuration.variant,
        "configuration": dict(prediction.configuration.values),
        "match": "predicted" if is_own else "transferred",
        "time_ms": prediction.time_ms if is_own else None,
        "library": told,
        "source_hash": kernel.source_hash(prediction.configuration.variant),
    }


def _likest(known: tuple[ShippedSeries, ...], place: TargetDevice) -> ShippedSeries | None:
    """That of the device model itself, or of the one whose number of multiprocessors is the nearest."""

    def unlike(series: ShippedSeries) -> tuple[bool, float]:
        return series.device_model != place.slug, _ratio(series.limits, place.limits)

    alike = [one for one in known if one.limits.compute_capability == place.limits.compute_capability]
    return min(alike, key=unlike, default=None)


def _ratio(one: Limits, other: Limits) -> float:
    return abs(math.log(max(one.multiprocessors, 1) / max(other.multiprocessors, 1)))
