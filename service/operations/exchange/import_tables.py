"""import_tables(): tables of families of another installation, each checked whole: it is taken over or left out."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tilewright.kernels.errors import InvalidProblemError, UnknownNameError
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.service.operations.best.tables import publish_table, wrong_anywhere
from tilewright.service.operations.exchange import rows as exchange_rows
from tilewright.service.operations.exchange.document import MeasuredSizePart, SizeRangePart, TablePart
from tilewright.service.operations.exchange.incoming import IncomingDocument
from tilewright.service.operations.exchange.report import ImportReport, Reason
from tilewright.service.operations.registry import catalogue, device_model_of, problem_row
from tilewright.service.store import models
from tilewright.tuner import roofline
from tilewright.tuner.devices.device import DeviceModel, Environment
from tilewright.tuner.runtime.any_size.tables import ranges_of
from tilewright.tuner.runtime.choice import TargetDevice


def import_tables(session: Session, incoming: IncomingDocument, report: ImportReport) -> None:
    """Adds every table that passes the checks; the report lists the others. The imports' lock is held."""
    for place, part in enumerate(incoming.tables):
        refused = _added(session, incoming, part)
        if refused is None:
            report.tables += 1
        else:
            report.skip(f"/tables/{place}", *refused)


def _added(session: Session, incoming: IncomingDocument, part: TablePart) -> tuple[Reason, str] | None:
    """The reason why a table was not added; None for one that was."""
    try:
        kernel = catalogue().get(part.kernel)
        family = Family.of(kernel, part.shape, part.dtype, part.options)
    except UnknownNameError:
        return Reason.UNKNOWN_KERNEL, f"there is no kernel {part.kernel!r} here"
    except InvalidProblemError as error:
        return Reason.INVALID_PROBLEM, str(error)
    row = exchange_rows.device_model_row(session, part.device_model)
    model = incoming.device_models.get(part.device_model) if row is None else device_model_of(row)
    if model is None:
        return Reason.UNKNOWN_DEVICE_MODEL, f"{part.device_model} is neither known here nor described in the document"
    refused = _refusal(session, kernel, family, model, part)
    if refused is not None:
        return refused
    exchange_rows.kernel_row(session, kernel)
    environment = Environment(**part.environment.model_dump())
    key = (
        problem_row(session, family).id,
        exchange_rows.device_model_id(session, model.slug, model),
        exchange_rows.environment_id(session, environment, incoming.origin),
    )
    newest = _newest(session, family, key)
    if newest is not None and newest >= part.made_at:
        return Reason.ALREADY_HERE, f"the table here is of {newest:%F %T} UTC, this one of {part.made_at:%F %T}"
    publish_table(session, key, part.model_dump(mode="json"))
    return None


def _refusal(
    session: Session, kernel: Kernel, family: Family, model: DeviceModel, part: TablePart
) -> tuple[Reason, str] | None:
    of_range = next(filter(None, (_of_range(kernel, one) for one in part.ranges)), None)
    if of_range is not None:
        return of_range
    ends = [family.low - 1, *(end for one in part.ranges for end in (one.low, one.high)), family.high + 1]
    meet = all(after == before + 1 for before, after in list(pairwise(ends))[::2]) and ends == sorted(ends)
    found = ranges_of(part.model_dump(mode="json"), kernel, family, TargetDevice(model.slug, model.limits))
    if found is None or not meet:
        return Reason.OUTSIDE_THE_SPACE, "its ranges leave a gap, or one is not in the search space of its sizes"
    wrong = wrong_anywhere(session, kernel, model.slug)
    if any(one.choice.configuration in wrong for one in found.ranges):
        return Reason.NOT_VERIFIED, "one of its configurations was found wrong here"
    return next(filter(None, (_of_size(kernel, family, model, one) for one in part.measured)), None)


def _of_range(kernel: Kernel, one: SizeRangePart) -> tuple[Reason, str] | None:
    name = f"{one.variant} of {one.low} to {one.high}"
    if one.variant not in {variant.name for variant in kernel.variants}:
        return Reason.UNKNOWN_VARIANT, name
    if not kernel.has_source(one.variant, one.source_hash):
        return Reason.UNKNOWN_SOURCE, f"{name} was measured with another source than today's"
    if not {one.low, one.high} <= set(one.verified_at):
        return Reason.NOT_VERIFIED, f"{name} was not verified at both ends"
    return None


def _of_size(kernel: Kernel, family: Family, model: DeviceModel, one: MeasuredSizePart) -> tuple[Reason, str] | None:
    if not family.low <= one.size <= family.high or one.best_ms > one.time_ms:
        return Reason.NOT_A_CONFIGURATION, f"what it says of {family.axis}={one.size} is not possible"
    detail = roofline.too_fast(kernel, family.exact(one.size), model, one.best_ms)
    return None if detail is None else (Reason.IMPOSSIBLE_TIME, detail)


def _newest(session: Session, family: Family, key: tuple[int, int, int]) -> datetime | None:
    """The time of the newest table that this one would replace, or that covers it."""
    table = models.FamilyTable
    covers = (table.low <= family.low, table.high >= family.high, table.superseded_by_id.is_(None))
    there = (table.device_model_id == key[1], table.environment_id == key[2], table.family_hash == family.hash)
    return session.scalar(select(func.max(table.made_at)).where(*covers, *there))
