"""Devices, device models, and the best that is known on them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tilewright.service.api.openapi import refuses
from tilewright.service.api.parameters import ResultQuery
from tilewright.service.api.problems import INVALID, UNAVAILABLE
from tilewright.service.operations import registry
from tilewright.service.operations.answers import DeviceAnswer, DeviceModelAnswer, Page
from tilewright.service.operations.results import ResultAnswer, results
from tilewright.service.operations.transaction import transaction

router = APIRouter(prefix="/v1", tags=["devices"])


@router.get("/devices", operation_id="list_devices", responses=refuses(UNAVAILABLE))
def list_devices() -> Page[DeviceAnswer]:
    """Every device that a worker has registered, and whether that worker still speaks."""
    with transaction() as session:
        return Page(items=registry.devices(session))


@router.get("/device-models", operation_id="list_device_models", responses=refuses(UNAVAILABLE))
def list_device_models() -> Page[DeviceModelAnswer]:
    """Every product that a worker has registered, with limits and peaks."""
    with transaction() as session:
        return Page(items=registry.device_models(session))


@router.get("/results", operation_id="list_results", tags=["best"], responses=refuses(INVALID, UNAVAILABLE))
def list_results(query: Annotated[ResultQuery, Query()]) -> Page[ResultAnswer]:
    """The current best configurations as they were measured, newest first."""
    with transaction() as session:
        return results(
            session,
            kernel=query.kernel,
            device_model=query.device_model,
            limit=query.limit,
            cursor=query.cursor,
        )
