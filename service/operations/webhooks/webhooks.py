"""Webhooks: created, listed, deleted; the transaction that ends a job adds a message for each of them."""

from __future__ import annotations

import base64
import secrets
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import Field
from sqlalchemy import String, Text, cast, func, select, type_coerce
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, joinedload

from tilewright.service.errors import CeilingError, ConflictError, NotFoundError
from tilewright.service.operations.access.projects import project_id
from tilewright.service.operations.answers import Answer, Page
from tilewright.service.operations.pages import invalid_cursor, ordering
from tilewright.service.operations.requests import WebhookRequest
from tilewright.service.operations.webhooks.url import check_url
from tilewright.service.store import models
from tilewright.service.store.models import DeliveryState, JobState

ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
MAX_WEBHOOKS = 50
"""Every job that ends writes a row for each webhook."""

SECRET_BYTES = 32
MARK = "whsec_"
"""The prefix of secrets by the Standard Webhooks specification, whose libraries check our signatures."""


ORDERS: Mapping[str, bool] = {"job": True, "state": False, "answer": False, "attempts": True, "next": True}
"""The sortable columns of a webhook's messages, and whether the greatest values come first."""


class WebhookAnswer(Answer):
    """A webhook, without its secret."""

    name: str
    url: str
    states: list[str] = Field(
        description="It gets a message for jobs that end in one of these.", examples=[["done", "failed"]]
    )
    project: str | None = Field(description="It gets messages for jobs of this project alone; null: of all.")
    created_at: datetime
    waiting: int = Field(description="Messages not yet delivered.")
    failed: int = Field(description="Messages given up after the last attempt.")


class NewWebhookAnswer(WebhookAnswer):
    """A webhook with its secret, which is shown this once."""

    secret: str = Field(description="The key of the signatures. It cannot be shown again.")


class DeliveryAnswer(Answer):
    """One message and its delivery so far."""

    id: uuid.UUID = Field(description="The same at every attempt: `webhook-id`.")
    webhook: str
    job_id: uuid.UUID
    state: str = Field(description="waiting, delivered or failed.")
    attempts: int
    next_at: datetime | None = Field(description="Time of the next attempt; null if no further one is planned.")
    status_code: int | None = Field(description="Status of the receiver's last answer.")
    error: str | None = Field(description="Why the last attempt failed.")
    created_at: datetime
    delivered_at: datetime | None


def create_webhook(session: Session, request: WebhookRequest) -> NewWebhookAnswer:
    """The webhook with its secret; raises ConflictError for a name that is taken, InvalidRequestError, CeilingError."""
    check_url(request.url)
    if (session.scalar(select(func.count()).select_from(models.Webhook)) or 0) >= MAX_WEBHOOKS:
        raise CeilingError(f"There are {MAX_WEBHOOKS} webhooks already; delete one first.")
    row_id = session.scalar(
        insert(models.Webhook)
        .values(
            name=request.name,
            url=request.url,
            secret=MARK + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode(),
            states=list(dict.fromkeys(request.states)),
            project_id=None if request.project is None else project_id(session, request.project),
        )
        .on_conflict_do_nothing()
        .returning(models.Webhook.id)
    )
    if row_id is None:
        raise ConflictError(f"There is a webhook named {request.name!r}; delete it first, or choose another name.")
    row = session.get_one(models.Webhook, row_id, options=[joinedload(models.Webhook.project)])
    return NewWebhookAnswer(**_answer(row, {}).model_dump(), secret=row.secret)


def webhooks(session: Session) -> list[WebhookAnswer]:
    """Every webhook, by name."""
    delivery = models.WebhookDelivery
    counted = session.execute(
        select(delivery.webhook_id, delivery.state, func.count()).group_by(delivery.webhook_id, delivery.state)
    )
    counts = {(webhook_id, state): count for webhook_id, state, count in counted}
    rows = session.scalars(
        select(models.Webhook).options(joinedload(models.Webhook.project)).order_by(models.Webhook.name)
    )
    return [_answer(row, {state: counts.get((row.id, state), 0) for state in DeliveryState}) for row in rows]


def delete_webhook(session: Session, name: str) -> None:
    """Deletes the webhook and the record of its messages; raises NotFoundError."""
    session.delete(_named(session, name))
    session.flush()


def deliveries(session: Session, name: str, *, limit: int = 50, cursor: str | None = None) -> Page[DeliveryAnswer]:
    """A page of the webhook's messages, newest first; raises NotFoundError, InvalidRequestError."""
    table = models.WebhookDelivery
    query = select(table).where(table.webhook_id == _named(session, name).id).order_by(table.id.desc())
    if cursor is not None:
        query = query.where(table.id < _delivery_of(cursor))
    rows: Sequence[models.WebhookDelivery] = session.scalars(query.limit(limit + 1)).all()
    more = rows[limit - 1].id.hex if len(rows) > limit else None
    return Page(items=[_delivery_answer(row, name) for row in rows[:limit]], next_cursor=more)


def shown_deliveries(session: Session, name: str, *, order: str, limit: int, skip: int) -> list[DeliveryAnswer]:
    """The webhook's messages in that order, one of ORDERS with - in front for downwards; raises NotFoundError."""
    table = models.WebhookDelivery
    columns: dict[str, list[Any]] = {
        "job": [table.id],
        "state": [cast(table.state, Text)],
        "answer": [table.status_code, table.error],
        "attempts": [table.attempts],
        "next": [func.coalesce(table.delivered_at, table.next_at)],
    }
    by = ordering(columns[order.removeprefix("-")], order)
    query = select(table).where(table.webhook_id == _named(session, name).id).limit(limit).offset(skip)
    rows = session.scalars(query.order_by(*by, table.id.desc()))
    return [_delivery_answer(row, name) for row in rows]


def troubled(session: Session, *, limit: int) -> list[DeliveryAnswer]:
    """The newest messages, of any webhook, that have failed at least once and are not delivered."""
    table = models.WebhookDelivery
    rows = session.scalars(
        select(table)
        .where(table.state != DeliveryState.DELIVERED, table.error.is_not(None))
        .order_by(table.id.desc())
        .limit(limit)
        .options(joinedload(table.webhook))
    )
    return [_delivery_answer(row, row.webhook.name) for row in rows]


def redeliver(session: Session, name: str, delivery_id: uuid.UUID) -> DeliveryAnswer:
    """Makes the message due now, with all its attempts again; raises NotFoundError."""
    table = models.WebhookDelivery
    row = session.scalars(
        select(table).where(table.id == delivery_id, table.webhook_id == _named(session, name).id).with_for_update()
    ).one_or_none()
    if row is None:
        raise NotFoundError("delivery", str(delivery_id))
    row.state, row.attempts, row.next_at, row.delivered_at = DeliveryState.WAITING, 0, func.now(), None
    session.flush()
    session.refresh(row)
    return _delivery_answer(row, name)


def announce(session: Session, job_id: uuid.UUID) -> None:
    """Adds the messages about a job that has ended, each once; adds none for an open job."""
    job, hook, delivery = models.TuningJob, models.Webhook, models.WebhookDelivery
    listening = session.scalars(
        select(hook.id)
        .join(job, type_coerce(job.state, String) == func.any(hook.states))
        .where(job.id == job_id, job.state.in_(ENDED))
        .where(hook.project_id.is_(None) | (hook.project_id == job.project_id))
    ).all()
    if listening:
        made = [{"id": models.uuid7(), "webhook_id": hook_id, "job_id": job_id} for hook_id in listening]
        session.execute(insert(delivery).values(made).on_conflict_do_nothing())


def _named(session: Session, name: str) -> models.Webhook:
    row = session.scalars(select(models.Webhook).where(models.Webhook.name == name)).one_or_none()
    if row is None:
        known = session.scalars(select(models.Webhook.name).order_by(models.Webhook.name))
        raise NotFoundError("webhook", name, list(known))
    return row


def _answer(row: models.Webhook, counts: Mapping[DeliveryState, int]) -> WebhookAnswer:
    return WebhookAnswer.of_row(
        row,
        project=row.project.name if row.project else None,
        waiting=counts.get(DeliveryState.WAITING, 0),
        failed=counts.get(DeliveryState.FAILED, 0),
    )


def _delivery_answer(row: models.WebhookDelivery, webhook: str) -> DeliveryAnswer:
    next_at = row.next_at if row.state is DeliveryState.WAITING else None
    return DeliveryAnswer.of_row(row, webhook=webhook, state=row.state.value, next_at=next_at)


def _delivery_of(cursor: str) -> uuid.UUID:
    try:
        return uuid.UUID(hex=cursor)
    except ValueError:
        raise invalid_cursor() from None
