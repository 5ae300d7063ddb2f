"""Routes of devices and device models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from tilewright.service.api.csv_pages import CSV_TOO, rendered
from tilewright.service.api.examples import FIELD_EXAMPLES
from tilewright.service.api.openapi import refuses
from tilewright.service.api.parameters import ListQuery
from tilewright.service.api.problem_types import INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.operations import registry
from tilewright.service.operations.answers import DeviceAnswer, DeviceModelAnswer, Page
from tilewright.service.operations.fleet import fleet
from tilewright.service.operations.transaction import committed, transaction

router = APIRouter(prefix="/v1", tags=["devices"])

DeviceId = Annotated[str, Path(max_length=128, description="A device's UUID.", examples=[FIELD_EXAMPLES["device"]])]
OF_ONE = refuses(INVALID, NOT_FOUND, UNAVAILABLE)


@router.get(
    "/devices",
    operation_id="list_devices",
    response_model=Page[DeviceAnswer],
    responses=CSV_TOO | refuses(INVALID, UNAVAILABLE),
)
def list_devices(request: Request, query: Annotated[ListQuery, Query()]) -> Page[DeviceAnswer] | Response:
    """Every device that a worker has registered, and whether that worker is alive."""
    with transaction() as session:
        rows = Page(items=registry.devices(session))
    return rendered(request, rows, query.format)


@router.post("/devices/{uuid}/drain", operation_id="drain_device", responses=OF_ONE)
def drain_device(uuid: DeviceId) -> DeviceAnswer:
    """Let the running job end and start no other until the device is resumed, even if its worker restarts."""
    return committed(fleet.drain_device)(uuid)


@router.post("/devices/{uuid}/resume", operation_id="resume_device", responses=OF_ONE)
def resume_device(uuid: DeviceId) -> DeviceAnswer:
    """Let the device take jobs again."""
    return committed(fleet.resume_device)(uuid)


@router.get("/device-models", operation_id="list_device_models", responses=refuses(UNAVAILABLE))
def list_device_models() -> Page[DeviceModelAnswer]:
    """Every device model that a worker has registered, with limits and peaks."""
    with transaction() as session:
        return Page(items=registry.device_models(session))
