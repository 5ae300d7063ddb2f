"""The jobs that a search finds, and their order in a list."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Float, Text, and_, cast, false, or_, select

from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.shape_filter import SIZES, of_sizes, sizes_of
from tilewright.service.store import models

ORDERS: Mapping[str, bool] = {
    "requested": True,
    "problem": False,
    "state": False,
    "device": False,
    "trials": True,
    "duration": True,
    "best": False,
    "gain": True,
}
"""The sortable columns of jobs, and whether the greatest values come first."""

_PAIR = re.compile(r"(\w{1,64})=([\w.+-]{1,64})")


def matches(search: str) -> ColumnElement[bool]:
    """Whether a job fits every word of the search.

    A word is an axis or option (`m=256`), sizes (`4096x4096x4096`; one alone is that of any axis), or part of a
    kernel, type, device model, host, state, error or id.
    """
    return and_(True, *(_fits(word.strip(",")) for word in search.split()))  # noqa: FBT003 - SQL's TRUE


def _fits(word: str) -> ColumnElement[bool]:
    job, problem = models.TuningJob, models.Problem
    if pairs := _PAIR.findall(word):
        said = and_(
            *(or_(problem.shape[name].astext == value, problem.options[name].astext == value) for name, value in pairs)
        )
        return job.problem_id.in_(select(problem.id).where(said))
    in_problem = select(problem.id).join(problem.kernel)
    if SIZES.fullmatch(word):
        return or_(job.problem_id.in_(in_problem.where(_has_sizes(sizes_of(word)))), _has_id(word))
    models_named = select(models.DeviceModel.id).where(_contain(word, models.DeviceModel.slug, models.DeviceModel.name))
    devices_named = select(models.Device.id).where(_contain(word, models.Device.host, models.Device.uuid))
    return or_(
        job.problem_id.in_(in_problem.where(_contain(word, models.Kernel.name, problem.dtype))),
        job.device_model_id.in_(models_named),
        job.device_id.in_(devices_named),
        _contain(word, cast(job.state, Text), job.error),
        _has_id(word),
    )


def _contain(word: str, *columns: Any) -> ColumnElement[bool]:
    return or_(*(column.icontains(word, autoescape=True) for column in columns))


def _has_id(word: str) -> ColumnElement[bool]:
    return cast(models.TuningJob.id, Text).startswith(word.lower(), autoescape=True)


def _has_sizes(sizes: list[int]) -> ColumnElement[bool]:
    """The sizes of all axes in the order of any kernel, or one size of any axis."""
    found = ((kernel.name, of_sizes(sizes, kernel.axes)) for kernel in catalogue().by_name.values())
    return or_(false(), *(and_(models.Kernel.name == name, fits) for name, fits in found if fits is not None))


def ordering(order: str, *, is_descending: bool) -> list[ColumnElement[Any]]:
    """The ordering of a query of jobs; jobs without a value come last, and equal ones newest first."""
    job = models.TuningJob
    if order == "requested":
        return [job.id.desc() if is_descending else job.id.asc()]
    kernel = select(models.Kernel.name).join(models.Problem).where(models.Problem.id == job.problem_id)
    model = select(models.DeviceModel.slug).where(models.DeviceModel.id == job.device_model_id)
    by: dict[str, list[Any]] = {
        "problem": [kernel.scalar_subquery(), job.problem_id],
        "state": [cast(job.state, Text)],
        "device": [model.scalar_subquery()],
        "trials": [job.trials_done],
        "duration": [job.elapsed_s],
        "best": [cast(job.result["best"]["time_ms"].astext, Float)],
        "gain": [cast(job.result["gain_over_default"].astext, Float)],
    }
    ordered = [column.desc() if is_descending else column.asc() for column in by[order]]
    return [*(column.nulls_last() for column in ordered), job.id.desc()]
