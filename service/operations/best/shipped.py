"""Shipped records that help to answer: those of the requested device model, or of the one most like it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.service.operations.best.rows import EnvironmentFilter, model_distance
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.tuner.predict.record import Record, enough
from tilewright.tuner.predict.shipped import ShippedSeries, joined, likest_first, shipped_models, shipped_series

ANY = EnvironmentFilter()


def shipped_model(slug: str) -> models.DeviceModel | None:
    """A device model that no worker has registered, as the shipped records describe it; it is not in the database.

    So an API host answers for it from the first minute. None where nothing of it was shipped.
    """
    if slug not in shipped_slugs():
        return None
    name, limits = shipped_models()[slug]
    return models.DeviceModel(
        slug=slug,
        name=name,
        kind="cuda",
        compute_capability=".".join(map(str, limits.compute_capability)),
        multiprocessors=limits.multiprocessors,
        memory_bytes=limits.memory_bytes,
        details={"limits": asdict(limits)},
    )


def shipped_slugs() -> list[str]:
    """The device models that shipped records are of, where they are used."""
    return list(shipped_models()) if settings().shipped_records else []


def shipped_records(
    kernel: Kernel, slug: str, limits: Limits, tuned: int, like: Problem, environment: EnvironmentFilter = ANY
) -> Sequence[Record]:
    """The shipped records that help to predict for problems like this on the device model, beside so many tuned shapes.

    They are of all device models of its compute capability, where enough shapes were tuned here or shipped of the model
    itself; none elsewhere, nor where the caller wants another driver.
    """
    series = likest_first(_admitted(kernel, like, environment), slug, limits)
    own = sum(len(one.records) for one in series if one.device_model == slug)
    return joined(series, slug) if enough(max(tuned, own)) else ()


def shipped_elsewhere(
    kernel: Kernel, model: models.DeviceModel, like: Problem, environment: EnvironmentFilter
) -> ShippedSeries | None:
    """The shipped series of the device model that is most like this GPU; None for any other kind of device."""
    if model.kind != "cuda":
        return None

    def unlike(series: ShippedSeries) -> float:
        major, minor = series.limits.compute_capability
        return model_distance(model, series.limits.multiprocessors, f"{major}.{minor}")

    others = (s for s in _admitted(kernel, like, environment) if s.device_model != model.slug)
    return min(others, key=unlike, default=None)


def _admitted(kernel: Kernel, like: Problem, environment: EnvironmentFilter) -> list[ShippedSeries]:
    if not settings().shipped_records:
        return []
    return [
        series
        for series in shipped_series(kernel, like)
        if environment.driver in {None, series.driver} and environment.toolkit in {None, series.toolkit}
    ]
