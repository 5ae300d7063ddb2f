"""Webhooks: addresses that get a message when a job ends, and the state of each message."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query, Response

from tilewright.service.api.openapi import refuses
from tilewright.service.api.parameters import PageQuery
from tilewright.service.api.problem_types import BY_ERROR, CONFLICT, INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.errors import CeilingError
from tilewright.service.operations.answers import Page
from tilewright.service.operations.requests import KeyName, WebhookRequest
from tilewright.service.operations.transaction import committed, transaction
from tilewright.service.operations.webhooks import webhooks
from tilewright.service.operations.webhooks.webhooks import DeliveryAnswer, NewWebhookAnswer, WebhookAnswer

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])

Name = Annotated[KeyName, Path(description="A webhook's name.")]
DeliveryId = Annotated[UUID, Path(description="A message's id.", examples=["01939f2e-6c9a-7cc1-8f2a-3d0f5f0a9b11"])]
OF_ONE = refuses(INVALID, NOT_FOUND, UNAVAILABLE)


@router.post(
    "",
    operation_id="create_webhook",
    status_code=201,
    responses=refuses(INVALID, CONFLICT, BY_ERROR[CeilingError], UNAVAILABLE),
)
def create_webhook(request: WebhookRequest, response: Response) -> NewWebhookAnswer:
    """Send a signed POST to an address when a job ends. The secret is in this answer and cannot be shown again."""
    response.headers["Cache-Control"] = "no-store"
    return committed(webhooks.create_webhook)(request)


@router.get("", operation_id="list_webhooks", responses=refuses(UNAVAILABLE))
def list_webhooks() -> Page[WebhookAnswer]:
    """Every webhook, by name; secrets are never shown."""
    with transaction() as session:
        return Page(items=webhooks.webhooks(session))


@router.delete("/{name}", operation_id="delete_webhook", status_code=204, responses=OF_ONE)
def delete_webhook(name: Name) -> None:
    """Delete the webhook and the record of its messages. A message that is being sent may still arrive."""
    with transaction() as session:
        webhooks.delete_webhook(session, name)


@router.get("/{name}/deliveries", operation_id="list_deliveries", responses=OF_ONE)
def list_deliveries(name: Name, query: Annotated[PageQuery, Query()]) -> Page[DeliveryAnswer]:
    """The webhook's messages of the last 30 days, newest first."""
    return committed(webhooks.deliveries)(name, limit=query.limit, cursor=query.cursor)


@router.post("/{name}/deliveries/{delivery_id}/retry", operation_id="retry_delivery", responses=OF_ONE)
def retry_delivery(name: Name, delivery_id: DeliveryId) -> DeliveryAnswer:
    """Send the message again now, even if it was delivered or given up."""
    return committed(webhooks.redeliver)(name, delivery_id)
