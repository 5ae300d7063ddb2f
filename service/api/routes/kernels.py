"""Kernels: their declarations and their sources."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tilewright.service.api.openapi import refuses
from tilewright.service.api.parameters import KernelName, SourceQuery
from tilewright.service.api.problem_types import INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations import catalog
from tilewright.service.operations.answers import KernelAnswer, Page, SourceAnswer
from tilewright.service.operations.parse import parse_options, parse_shape
from tilewright.service.operations.transaction import committed, transaction

router = APIRouter(prefix="/v1/kernels", tags=["kernels"])


@router.get("", operation_id="list_kernels", responses=refuses(UNAVAILABLE))
def list_kernels() -> Page[KernelAnswer]:
    """Every kernel, by name."""
    with transaction() as session:
        return Page(items=catalog.kernels(session))


@router.get("/{kernel}", operation_id="get_kernel", responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE))
def get_kernel(kernel: KernelName) -> KernelAnswer:
    """Axes, dtypes, options, variants with their parameters and constraints."""
    return committed(catalog.kernel)(kernel)


@router.get("/{kernel}/source", operation_id="get_source", responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE))
def get_source(kernel: KernelName, query: Annotated[SourceQuery, Query()]) -> SourceAnswer:
    """The exact source of a variant, and the macros for a problem and configuration; defaults where left out."""
    values = _parse_configuration(query.configuration)
    return committed(catalog.source)(
        kernel,
        query.variant,
        parse_shape(query.shape) if query.shape is not None else None,
        query.dtype,
        parse_options(query.options),
        values=values,
        source_hash=query.source_hash,
    )


def _parse_configuration(text: str | None) -> dict[str, int]:
    """Parameter values from text like a shape's."""
    if not text:
        return {}
    try:
        return parse_shape(text)
    except InvalidRequestError as error:
        field = error.field.replace("shape", "configuration", 1)
        raise InvalidRequestError(field, error.reason, "TILE_M=64,TILE_N=64") from error
