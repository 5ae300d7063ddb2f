"""Kernels, device models, devices, environments and problems: registered by workers, read by all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, joinedload

from tilewright.kernels.catalogue import Catalogue
from tilewright.kernels.family import Family, is_open
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, OptionValue, Problem
from tilewright.kernels.sources.watched import WatchedCatalogue
from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations.answers import (
    DeviceAnswer,
    DeviceModelAnswer,
    ProblemAnswer,
    TunedFor,
)
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.tuner.devices.device import DeviceModel, Environment


@cache
def watched_catalogue() -> WatchedCatalogue:
    """The catalogue of this process, which follows the kernel folders that the settings name."""
    return WatchedCatalogue(settings().kernel_folders)


def catalogue() -> Catalogue:
    """The kernels of this package and of the folders that the settings name, as their files are now."""
    return watched_catalogue().now()


def register_kernels(session: Session, declared: Catalogue) -> None:
    """Stores every kernel as declared here, and sources that are not stored yet; the rest is only read."""
    kernels = declared.kernels()
    table = models.Kernel
    query = select(table.name, table.id, table.declaration).where(table.name.in_([kernel.name for kernel in kernels]))
    stored = {name: (row_id, declaration) for name, row_id, declaration in session.execute(query)}
    known = known_sources(session, [row_id for row_id, _ in stored.values()])
    for kernel in kernels:
        kernel_id, declaration = stored.get(kernel.name, (None, None))
        if kernel_id is None or declaration != kernel.declaration:
            kernel_id = _store_declaration(session, kernel)
        add_sources(session, kernel, kernel_id, known)


def known_sources(session: Session, kernel_ids: list[int]) -> set[tuple[int, str, str]]:
    """Kernel, variant and hash of every stored source of these kernels."""
    table = models.KernelVariant
    query = select(table.kernel_id, table.name, table.source_hash).where(table.kernel_id.in_(kernel_ids))
    return {(kernel_id, name, source_hash) for kernel_id, name, source_hash in session.execute(query)}


def _store_declaration(session: Session, kernel: Kernel) -> int:
    """Stores the declaration and returns the row's id."""
    stored: int = session.execute(
        insert(models.Kernel)
        .values(name=kernel.name, declaration=kernel.declaration)
        .on_conflict_do_update(
            index_elements=["name"], set_={"declaration": kernel.declaration, "updated_at": func.now()}
        )
        .returning(models.Kernel.id)
    ).scalar_one()
    return stored


def add_sources(session: Session, kernel: Kernel, kernel_id: int, known: set[tuple[int, str, str]]) -> None:
    """Stores the present source of each variant that is not known."""
    # A megabyte of sources that nearly every start would send in vain; another process may be adding them too.
    new = [
        {"kernel_id": kernel_id, "name": name, "source_hash": source_hash, "source": kernel.source(name)}
        for name, source_hash in ((variant.name, kernel.source_hash(variant.name)) for variant in kernel.variants)
        if (kernel_id, name, source_hash) not in known
    ]
    if new:
        session.execute(insert(models.KernelVariant).values(new).on_conflict_do_nothing())


def register_device(
    session: Session,
    device_model: DeviceModel,
    uuid: str,
    host: str,
    ordinal: int,
    environment: Environment,
    *,
    worker: str | None = None,
    physical_uuid: str | None = None,
) -> models.Device:
    """The device's row, added or updated, with its model and environment.

    Its state and a request to drain it stay as they were. `physical_uuid`: the GPU of a slice.
    """
    model_id = _device_model_id(session, device_model)
    environment_id = environment_row(session, environment).id
    columns = {
        "model_id": model_id,
        "environment_id": environment_id,
        "host": host,
        "ordinal": ordinal,
        "heartbeat_at": func.now(),
        "worker": worker,
        "worker_started_at": func.now(),
        "physical_uuid": physical_uuid,
    }
    device_id = session.execute(
        insert(models.Device)
        .values(uuid=uuid, **columns)
        .on_conflict_do_update(index_elements=["uuid"], set_=columns)
        .returning(models.Device.id)
    ).scalar_one()
    return session.scalars(
        select(models.Device)
        .where(models.Device.id == device_id)
        .options(joinedload(models.Device.model), joinedload(models.Device.environment))
        .execution_options(populate_existing=True)
    ).one()


def heartbeat(session: Session, uuid: str) -> bool:
    """Records that the device's worker is alive; returns whether it may take jobs."""
    table = models.Device
    takes_jobs = session.scalar(
        update(table)
        .where(table.uuid == uuid)
        .values(heartbeat_at=func.now())
        .returning(table.drain_requested_at.is_(None))
    )
    return bool(takes_jobs)


def note_cache(session: Session, uuid: str, files: int, size: int) -> None:
    """Records the number and bytes of the compiled kernels in the cache of the device's host."""
    table = models.Device
    session.execute(update(table).where(table.uuid == uuid).values(cache_files=files, cache_bytes=size))


def set_device_state(session: Session, uuid: str, state: models.DeviceState) -> None:
    """Marks the device ready or lost; raises NotFoundError."""
    changed = session.scalar(
        update(models.Device).where(models.Device.uuid == uuid).values(state=state).returning(models.Device.id)
    )
    if changed is None:
        raise NotFoundError("device", uuid)


def set_environment(session: Session, uuid: str, environment: models.Environment) -> None:
    """Records the device's present environment."""
    table = models.Device
    session.execute(
        update(table)
        .where(table.uuid == uuid, table.environment_id.is_distinct_from(environment.id))
        .values(environment_id=environment.id)
    )


def device_models(session: Session) -> list[DeviceModelAnswer]:
    """Every product that a worker ever registered, by slug."""
    rows = session.scalars(select(models.DeviceModel).order_by(models.DeviceModel.slug))
    return [DeviceModelAnswer.model_validate(row) for row in rows]


def has_device() -> ColumnElement[bool]:
    """Whether a worker registered a device of the model; imports bring models without."""
    return select(models.Device.id).where(models.Device.model_id == models.DeviceModel.id).exists()


def default_device_model(session: Session) -> str:
    """The slug for requests that name none: of the only model with devices, or the only model where none has devices.

    Raises InvalidRequestError, which lists the models, where there are several, or none yet.
    """
    rows = session.execute(select(models.DeviceModel.slug, has_device()).order_by(models.DeviceModel.slug)).all()
    return only_slug([slug for slug, has_one in rows if has_one] or [slug for slug, _ in rows])


def only_slug(slugs: Sequence[str]) -> str:
    """The only one of these slugs; raises InvalidRequestError, which lists them, unless there is exactly one."""
    if not slugs:
        raise InvalidRequestError("device_model", "no device has registered yet; start a worker first.", "nvidia-h200")
    if len(slugs) > 1:
        raise InvalidRequestError("device_model", f"there are several; name one of {', '.join(slugs[:10])}.", slugs[0])
    return slugs[0]


def devices(session: Session) -> list[DeviceAnswer]:
    """Every device that a worker ever registered, by host and ordinal."""
    rows = session.scalars(
        select(models.Device)
        .options(joinedload(models.Device.model), joinedload(models.Device.environment))
        .order_by(models.Device.host, models.Device.ordinal, models.Device.uuid)
        .execution_options(populate_existing=True)
    ).all()
    job = models.TuningJob
    running = select(job.worker, job.id).where(
        job.state == models.JobState.RUNNING, job.worker.in_([row.worker for row in rows if row.worker])
    )
    job_of = {row.worker: row.id for row in session.execute(running)}
    silent_since = datetime.now(UTC) - timedelta(seconds=settings().stalled_after_s)
    return [
        DeviceAnswer.of_row(
            row,
            model=row.model.slug,
            alive=row.heartbeat_at > silent_since,
            draining=row.drain_requested_at is not None,
            job=job_of.get(row.worker),
        )
        for row in rows
    ]


def problem_row(session: Session, problem: Problem | Family) -> models.Problem:
    """The row of a problem or a family, added where it is new, with its kernel; raises NotFoundError for an
    unregistered kernel.
    """
    kernel_id = session.scalar(select(models.Kernel.id).where(models.Kernel.name == problem.kernel))
    if kernel_id is None:
        known = session.scalars(select(models.Kernel.name).order_by(models.Kernel.name))
        remedy = "A kernel of your own is known once a worker has started with its folder in TILEWRIGHT_KERNEL_FOLDERS."
        raise NotFoundError("kernel", problem.kernel, list(known), remedy)
    session.execute(insert(models.Problem).values(problem_columns(problem, kernel_id)).on_conflict_do_nothing())
    query = select(models.Problem).where(models.Problem.hash == row_hash(problem))
    query = query.options(joinedload(models.Problem.kernel))
    return session.scalars(query).one()


def row_hash(problem: Problem | Family) -> str:
    """The key of the problem's row; a family's includes its range."""
    return problem.stated_hash if isinstance(problem, Family) else problem.hash


def problem_columns(problem: Problem | Family, kernel_id: int) -> dict[str, Any]:
    """The columns of the row of a problem or a family."""
    return {
        "hash": row_hash(problem),
        "kernel_id": kernel_id,
        "shape": problem.stated_shape,
        "dtype": problem.dtype,
        "options": dict(problem.options),
    }


def tuned_for(
    kernel: Kernel, shape: Mapping[str, int | str], dtype: str, options: Mapping[str, OptionValue]
) -> Problem | Family:
    """The problem, or the family where a size is a range; raises InvalidProblemError."""
    if is_open(shape):
        return Family.of(kernel, shape, dtype, options)
    return kernel.problem({axis: size for axis, size in shape.items() if isinstance(size, int)}, dtype, options)


def environment_row(session: Session, environment: Environment) -> models.Environment:
    """The environment's row, added where it is new."""
    session.execute(
        insert(models.Environment).values(hash=environment.hash, **asdict(environment)).on_conflict_do_nothing()
    )
    return session.scalars(select(models.Environment).where(models.Environment.hash == environment.hash)).one()


def kernel_variant_ids(session: Session, kernel: Kernel) -> dict[str, int]:
    """Row ids of the variants' present sources, by variant name; register_kernels makes the rows."""
    hashes = {kernel.source_hash(variant.name) for variant in kernel.variants}
    rows: Sequence[Any] = session.execute(
        select(models.KernelVariant.name, models.KernelVariant.id, models.KernelVariant.source_hash)
        .join(models.Kernel, models.Kernel.id == models.KernelVariant.kernel_id)
        .where(models.Kernel.name == kernel.name, models.KernelVariant.source_hash.in_(hashes))
    ).all()
    return {name: row_id for name, row_id, source_hash in rows if source_hash == kernel.source_hash(name)}


def limits_of(row: models.DeviceModel) -> Limits:
    """The limits that the device model was registered with."""
    stored: dict[str, Any] = row.details["limits"]
    known = {field.name for field in fields(Limits)}
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items() if name in known}
    return Limits(**values | {"features": frozenset(stored["features"])})


def device_model_of(row: models.DeviceModel) -> DeviceModel:
    """The device model as the worker that registered it described it."""
    known = {field.name for field in fields(DeviceModel)}
    stored = {name: value for name, value in row.details.items() if name in known}
    return DeviceModel(**stored | {"limits": limits_of(row)})


def problem_answer(row: models.Problem) -> ProblemAnswer:
    """The problem as callers see it, axes in the kernel's order (JSONB forgets it); its kernel must be loaded."""
    return ProblemAnswer(**_problem_fields(row))


def tuned_for_answer(row: models.Problem) -> TunedFor:
    """The problem or the family of a row as callers see it."""
    return TunedFor(**_problem_fields(row))


def _problem_fields(row: models.Problem) -> dict[str, Any]:
    declaration = row.kernel.declaration
    names = [*declaration["axes"], *(axis["name"] for axis in declaration.get("optional_axes", ()))]
    order = {axis: place for place, axis in enumerate(names)}
    shape = dict(sorted(row.shape.items(), key=lambda item: order.get(item[0], len(order))))
    return {"kernel": row.kernel.name, "shape": shape, "dtype": row.dtype, "options": row.options}


def device_model_columns(model: DeviceModel) -> dict[str, Any]:
    """The columns of a device model's row but for its slug; `device_model_of` reads them."""
    details = asdict(model)
    details["limits"]["features"] = sorted(model.limits.features)
    return {
        "name": model.name,
        "kind": model.kind,
        "compute_capability": "{}.{}".format(*model.limits.compute_capability),
        "multiprocessors": model.limits.multiprocessors,
        "memory_bytes": model.limits.memory_bytes,
        "details": details,
    }


def _device_model_id(session: Session, model: DeviceModel) -> int:
    columns = device_model_columns(model)
    row_id = session.execute(
        insert(models.DeviceModel)
        .values(slug=model.slug, **columns)
        .on_conflict_do_update(index_elements=["slug"], set_=columns)
        .returning(models.DeviceModel.id)
    ).scalar_one()
    return int(row_id)
