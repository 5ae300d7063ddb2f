"""Exchange: export, import, and the bundle of a device model."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import Field, ValidationError

from tilewright.service.api.examples import FIELD_EXAMPLES as EXAMPLE
from tilewright.service.api.openapi import Responses, refuses
from tilewright.service.api.parameters import IfNoneMatch
from tilewright.service.api.parameters import Query as QueryString
from tilewright.service.api.problem_types import BY_ERROR, CONFLICT, INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.api.refusals import TooManyStreamsError
from tilewright.service.api.routes.best import NOT_MODIFIED, is_among
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.bundles.bundle import bundle
from tilewright.service.operations.exchange import export as exchange_export
from tilewright.service.operations.exchange import foreign_export as exchange_foreign_export
from tilewright.service.operations.exchange.document import MAX_STUDIES
from tilewright.service.operations.exchange.import_document import import_document
from tilewright.service.operations.exchange.incoming import ORIGIN, ImportOptions, import_options_of
from tilewright.service.operations.exchange.report import ImportAnswer
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.transaction import transaction

router = APIRouter(prefix="/v1", tags=["exchange"])

MOST_EXPORTS = 4
"""Exports and bundles that one process makes at a time."""


class ExportFormat(StrEnum):
    """The formats of an export."""

    TILEWRIGHT = "tilewright"
    T4 = "t4"
    KERNEL_TUNER = "kernel-tuner"


class ExportQuery(QueryString):
    """The results to export, and their format."""

    format: ExportFormat = Field(default=ExportFormat.TILEWRIGHT, description="t4 and kernel-tuner need a `study_id`.")
    kernel: str | None = Field(default=None, max_length=64, examples=[EXAMPLE["kernel"]])
    device_model: str | None = Field(default=None, max_length=128, examples=[EXAMPLE["device_model"]])
    trials: bool = Field(default=False, description="All trials of each study, not only the best.")
    study_id: int | None = Field(default=None, ge=1, le=MAX_ROW_ID, description="For t4 and kernel-tuner.")
    variant: str | None = Field(default=None, max_length=64, description="For kernel-tuner; default: the most tried.")
    limit: int = Field(default=MAX_STUDIES, ge=1, le=MAX_STUDIES, description="Most studies of one document.")
    cursor: str | None = Field(default=None, max_length=64, description="`next_cursor` of the previous document.")


class ImportQuery(QueryString):
    """Facts that the document itself lacks; `tilewright/1` lacks only the origin."""

    origin: ORIGIN = "elsewhere"
    kernel: str | None = Field(default=None, max_length=64, description="For another tool's file.")
    shape: str | None = Field(default=None, max_length=512, description="For another tool's file.")
    dtype: str | None = Field(default=None, max_length=16, description="For another tool's file.")
    options: str | None = Field(default=None, max_length=512, description="For another tool's file.")
    device_model: str | None = Field(
        default=None, max_length=128, description="For another tool's file: slug or product name."
    )
    limits: str | None = Field(
        default=None,
        max_length=512,
        description="For a device model that is new here: compute_capability, multiprocessors, memory_gib, and "
        "if known clock_mhz, gb_per_s, l2_mib.",
    )
    variant: str | None = Field(
        default=None, max_length=64, description="For another tool's file; default: by its parameters."
    )
    rename: str | None = Field(
        default=None, max_length=2048, description="Parameters' names there and here: `block_size_x=BLOCK_X`."
    )
    dry_run: bool = Field(default=False, description="Check and report; store nothing.")

    def target(self) -> ImportOptions:
        """The parsed parameters; raises InvalidRequestError naming a wrong one."""
        try:
            return import_options_of(self.model_dump(exclude={"dry_run"}))
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidRequestError(".".join(map(str, first["loc"])), f"{first['msg']}.") from None


class BundleQuery(QueryString):
    """The bundle that is wanted."""

    device_model: str | None = Field(
        default=None, max_length=128, description="Slug; may be left out while only one has devices."
    )
    sources: bool = Field(default=False, description="Include the source code.")


class _Running:
    """How many exports and bundles this process is making."""

    count = 0


@contextmanager
def _counted(*, has_begun: bool = False) -> Iterator[None]:
    """Counts a running export; raises TooManyStreamsError if there are too many, unless `has_begun`."""
    if _Running.count >= MOST_EXPORTS and not has_begun:
        raise TooManyStreamsError(f"{MOST_EXPORTS} exports are running, the most at one time; try again later.")
    _Running.count += 1
    try:
        yield
    finally:
        _Running.count -= 1


def _streamed(pieces: Iterator[str]) -> StreamingResponse:
    """The document, streamed; its first piece is read here, so that a refusal can still be sent."""
    with _counted():
        first = next(pieces)

    def all_pieces() -> Iterator[str]:
        with _counted(has_begun=True):
            yield first
            yield from pieces

    headers = {"Content-Disposition": 'attachment; filename="tilewright-export.json"', "Cache-Control": "no-store"}
    return StreamingResponse(all_pieces(), media_type="application/json", headers=headers)


DOCUMENT: Responses = {
    200: {"description": "The document (docs/exchange.md).", "content": {"application/json": {"schema": {}}}}
}


@router.get(
    "/export",
    operation_id="export_results",
    response_class=StreamingResponse,
    responses=DOCUMENT | refuses(INVALID, NOT_FOUND, UNAVAILABLE, BY_ERROR[TooManyStreamsError]),
)
def export_results(query: Annotated[ExportQuery, Query()]) -> StreamingResponse:
    """Results as `tilewright/1`, or one study's trials as T4 or Kernel Tuner's cache. Streamed."""
    if query.format is ExportFormat.TILEWRIGHT:
        if query.study_id is not None or query.variant is not None:
            raise InvalidRequestError("study_id", "study_id and variant need format t4 or kernel-tuner.")
        selection = exchange_export.ExportSelection(
            query.kernel, query.device_model, query.trials, query.limit, query.cursor
        )
        return _streamed(exchange_export.export_studies(selection))
    if query.study_id is None:
        raise InvalidRequestError("study_id", f"format {query.format.value} holds one study; give its id.", "1")
    if query.format is ExportFormat.T4:
        return _streamed(exchange_foreign_export.export_t4(query.study_id))
    return _streamed(exchange_foreign_export.export_kernel_tuner(query.study_id, query.variant))


@router.post(
    "/import",
    operation_id="import_results",
    responses=refuses(INVALID, NOT_FOUND, CONFLICT, UNAVAILABLE),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object"}, "examples": {}}},
        }
    },
)
async def import_results(request: Request, query: Annotated[ImportQuery, Query()]) -> ImportAnswer:
    """Import results of another installation or tool, in one transaction; reports what it left out and why."""
    body = await request.body()
    return await run_in_threadpool(import_document, body, query.target(), dry_run=query.dry_run)


@router.get(
    "/bundle",
    operation_id="get_bundle",
    response_class=Response,
    responses=DOCUMENT | NOT_MODIFIED | refuses(INVALID, NOT_FOUND, UNAVAILABLE, BY_ERROR[TooManyStreamsError]),
)
def get_bundle(query: Annotated[BundleQuery, Query()], if_none_match: IfNoneMatch = None) -> Response:
    """Everything that an application needs at run time for one device model; `Repr-Digest` is its SHA-256."""
    with _counted(), transaction() as session:
        body = bundle(session, query.device_model, with_sources=query.sources).encode()
    digest = hashlib.sha256(body)
    headers = {
        "ETag": f'"{digest.hexdigest()[:32]}"',
        "Cache-Control": "private, max-age=60",
        "Repr-Digest": f"sha-256=:{b64encode(digest.digest()).decode()}:",
    }
    if if_none_match is not None and is_among(headers["ETag"], if_none_match):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)
