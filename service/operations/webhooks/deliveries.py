"""Delivers messages of webhooks: claimed by one process at a time, signed, sent, tried again, deleted when old."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete as delete_rows
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, joinedload

from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.webhooks.webhooks import MARK
from tilewright.service.store import models
from tilewright.service.store.models import DeliveryState

PAUSES_S = (5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0, 21600.0)
"""Pauses between attempts; a receiver may be away for about eight hours before a message is given up."""

CLAIM_S = 60.0
"""Longer than any attempt takes; a message whose process died meanwhile is due again after this."""

REMEMBERED = timedelta(days=30)
ERROR_LENGTH = 500
GONE = 410


@dataclass(frozen=True)
class ClaimedMessage:
    """An attempt to deliver a message, which no other process makes."""

    id: uuid.UUID
    webhook_id: int
    url: str
    secret: str
    attempt: int
    body: bytes


@dataclass(frozen=True)
class DeliveryAttempt:
    """The result of an attempt: the status of the response, or why there was none."""

    status_code: int | None = None
    error: str | None = None

    @property
    def is_delivered(self) -> bool:
        """Whether the receiver has taken it."""
        return self.error is None and self.status_code is not None and 200 <= self.status_code < 300

    @property
    def reason(self) -> str | None:
        """The reason why it was not delivered."""
        if self.is_delivered:
            return None
        return (self.error or f"The receiver answered with status {self.status_code}.")[:ERROR_LENGTH]


def claim(session: Session, *, limit: int, busy: Collection[int] = ()) -> list[ClaimedMessage]:
    """Claims attempts that are due, one for each webhook that is not `busy`; no other process gets them for CLAIM_S."""
    table = models.WebhookDelivery
    is_due = (table.state == DeliveryState.WAITING, table.next_at <= func.now())
    place = func.row_number().over(partition_by=table.webhook_id, order_by=(table.next_at, table.id))
    due = select(table.id, place.label("place")).where(*is_due, table.webhook_id.not_in(busy)).subquery()
    rows = session.scalars(
        select(table)
        .where(table.id.in_(select(due.c.id).where(due.c.place == 1)), *is_due)
        .order_by(table.next_at)
        .limit(limit)
        .options(joinedload(table.webhook))
        .with_for_update(of=table, skip_locked=True)
        .execution_options(populate_existing=True)
    ).all()
    claimed = []
    for row in rows:
        row.attempts += 1
        row.next_at = func.now() + timedelta(seconds=CLAIM_S)
        hook = row.webhook
        body = _body(session, row.job_id)
        claimed.append(ClaimedMessage(row.id, hook.id, hook.url, hook.secret, row.attempts, body))
    session.flush()
    return claimed


def settle(session: Session, message: ClaimedMessage, attempt: DeliveryAttempt) -> None:
    """Records the result of the attempt, unless the message was claimed again meanwhile."""
    given_up = message.attempt > len(PAUSES_S) or attempt.status_code == GONE
    values: dict[str, Any] = {"status_code": attempt.status_code, "error": attempt.reason}
    if attempt.is_delivered:
        values |= {"state": DeliveryState.DELIVERED, "delivered_at": func.now()}
    elif given_up:
        values |= {"state": DeliveryState.FAILED}
    else:
        values |= {"next_at": func.now() + timedelta(seconds=PAUSES_S[message.attempt - 1])}
    table = models.WebhookDelivery
    session.execute(
        update(table)
        .where(table.id == message.id, table.attempts == message.attempt, table.state == DeliveryState.WAITING)
        .values(**values)
        .execution_options(synchronize_session=False)
    )


def forget_old_deliveries(session: Session) -> None:
    """Deletes messages older than a month, except those that are still waiting."""
    table = models.WebhookDelivery
    session.execute(
        delete_rows(table).where(table.created_at < func.now() - REMEMBERED, table.state != DeliveryState.WAITING)
    )


def signature(secret: str, message_id: str, timestamp_s: int, body: bytes) -> str:
    """`webhook-signature` by the Standard Webhooks specification: HMAC-SHA256 over id, time and body."""
    key = base64.b64decode(secret.removeprefix(MARK))
    signed = hmac.new(key, f"{message_id}.{timestamp_s}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(signed).decode()


def _body(session: Session, job_id: uuid.UUID) -> bytes:
    """The body of a message: the job without its result, which the receiver can get by `path`."""
    job = jobs.job(session, job_id).model_dump(mode="json", exclude={"result", "worker", "epoch"})
    job["error"] = job["error"] and job["error"][:ERROR_LENGTH]
    message = {
        "type": f"job.{job['state']}",
        "timestamp": job["finished_at"],
        "data": job | {"path": f"/v1/jobs/{job_id}"},
    }
    return json.dumps(message, separators=(",", ":")).encode()
