"""Predictions for a problem from the records that come with the package, in the application's own process."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.predict import shipped
from tilewright.tuner.predict.predictor import Predictor
from tilewright.tuner.predict.record import Record, enough
from tilewright.tuner.predict.shipped import ShippedSeries, joined, likest_first, nearest_of, shipped_series
from tilewright.tuner.predict.tiles import Tiles
from tilewright.tuner.runtime.choice import TargetDevice, is_admitted

_TILES: dict[Hashable, Tiles] = {}
"""Tiles by kernel, dtype and options: a process asks for several shapes of each."""

MOST_FITS = 16
_FITS: dict[Hashable, Predictor] = {}
"""The latest, by kernel, device and records: many problems of a model have the same neighbours."""


def shipped_answer(kernel: Kernel, problem: Problem, place: TargetDevice) -> Mapping[str, Any] | None:
    """The answer as a service without a result of its own gives it: `predicted`, or `transferred` without a time.

    From the records of all device models of the same compute capability; None without any. The time is told where
    enough of them are of this model.
    """
    series = likest_first(shipped_series(kernel, problem), place.slug, place.limits)
    if not series:
        return None
    every = joined(series, place.slug)
    near = set(map(id, nearest_of(kernel, problem, every)))
    records = [record for record in every if id(record) in near]  # in one order for all problems that have the same
    if not enough(len(records)):
        return None
    likest = series[0]
    predictor = _fitted(kernel, likest, records)
    prediction = predictor.predict(problem, lambda one: is_admitted(kernel, problem, place, one))
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


def _fitted(kernel: Kernel, series: ShippedSeries, records: Sequence[Record]) -> Predictor:
    like, of = records[0].problem, frozenset((one.problem, one.shipped, one.library) for one in records)
    key = (shipped.FOLDER, kernel.name, kernel.folder, series.device_model, of)
    predictor = _FITS.pop(key, None)
    if predictor is None:
        tiles = _TILES.setdefault((kernel.name, kernel.folder, like.dtype, like.option_items), Tiles(kernel))
        predictor = Predictor(kernel, series.limits, records, tiles=tiles)
    _FITS[key] = predictor
    for old in list(_FITS)[:-MOST_FITS]:  # one step, since other threads may add to them
        _FITS.pop(old, None)
    return predictor
