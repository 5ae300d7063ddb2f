"""`best`: the query that applications make. Answers are looked up, never measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from tilewright.kernels.problem import Problem
from tilewright.service.api.openapi import Responses, refuses
from tilewright.service.api.parameters import BestQuery, IfNoneMatch, KernelName
from tilewright.service.api.problem_types import INVALID, NO_CONFIGURATION, NOT_FOUND, UNAVAILABLE
from tilewright.service.operations.answers import BestAnswer
from tilewright.service.operations.best.find import MAX_SHAPES, find_best, find_best_batch
from tilewright.service.operations.best_cache.shelf import CachedAnswer
from tilewright.service.operations.parse import parse_options, parse_shape
from tilewright.service.operations.registry import default_device_model
from tilewright.service.operations.requests import Request as RequestBody
from tilewright.service.operations.transaction import transaction

router = APIRouter(prefix="/v1/kernels", tags=["best"])

CACHE_CONTROL = b"private, max-age=60"
"""A job takes longer than this to change an answer; a caller that waits for one repeats the query with its ETag."""

NOT_MODIFIED: Responses = {304: {"description": "The answer has not changed."}}


class BatchRequest(RequestBody):
    """Many shapes of one kernel at once."""

    shapes: list[dict[str, int]] = Field(
        min_length=1, max_length=MAX_SHAPES, examples=[[{"m": 256, "n": 100, "k": 784}, {"m": 256, "n": 10, "k": 100}]]
    )
    dtype: str = Field(default="float32", max_length=16)
    options: dict[str, bool | str] = Field(default_factory=dict, max_length=16)
    device_model: str | None = Field(default=None, max_length=128)
    driver: str | None = Field(default=None, max_length=64)
    toolkit: str | None = Field(default=None, max_length=64)


class BatchAnswer(BaseModel):
    """One answer per shape, in the order of the request."""

    items: list[BestAnswer]


@router.get(
    "/{kernel}/best",
    operation_id="get_best",
    response_model=BestAnswer,
    responses=NOT_MODIFIED | refuses(INVALID, NOT_FOUND, NO_CONFIGURATION, UNAVAILABLE),
)
def get_best(
    request: Request, kernel: KernelName, query: Annotated[BestQuery, Query()], if_none_match: IfNoneMatch = None
) -> Response:
    """The best known configuration for a problem, and how it was found (`match`)."""
    with request.app.state.meters.looking_up(), transaction() as session:
        answer = find_best(
            session,
            kernel,
            query.device_model,
            parse_shape(query.shape),
            query.dtype,
            parse_options(query.options),
            driver=query.driver,
            toolkit=query.toolkit,
        )
        device_model = query.device_model or default_device_model(session)
    request.app.state.meters.note_lookups([answer])
    request.app.state.demand.note([answer], device_model, request.scope.get("tilewright.caller"))
    status, headers, body = represented(answer.model_dump_json().encode(), if_none_match)
    response = Response(body, status_code=status)
    response.raw_headers = headers
    return response


@router.post(
    "/{kernel}/best:batch",
    operation_id="get_best_of_many",
    response_model=BatchAnswer,
    responses=refuses(INVALID, NOT_FOUND, NO_CONFIGURATION, UNAVAILABLE),
)
def get_best_of_many(http: Request, kernel: KernelName, request: BatchRequest) -> Response:
    """The best known configurations for up to 1000 shapes, in their order."""
    known: Callable[[Problem], CachedAnswer | None] = partial(http.app.state.best.find_of, kernel, request.device_model)
    with http.app.state.meters.looking_up(), transaction() as session:
        answers = find_best_batch(
            session,
            kernel,
            request.device_model,
            request.shapes,
            request.dtype,
            request.options,
            driver=request.driver,
            toolkit=request.toolkit,
            known=None if request.driver or request.toolkit else known,
        )
        device_model = request.device_model or default_device_model(session)
    http.app.state.meters.note_lookups(answers)
    http.app.state.demand.note(answers, device_model, http.scope.get("tilewright.caller"))
    bodies = (one.as_json if isinstance(one, CachedAnswer) else one.model_dump_json().encode() for one in answers)
    return Response(b'{"items":[%b]}' % b",".join(bodies), media_type="application/json")


def represented(body: bytes, if_none_match: str | None) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and body of the answer; 304 if the caller has it already, by its ETags."""
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = [(b"etag", etag.encode()), (b"cache-control", CACHE_CONTROL)]
    if if_none_match is not None and is_among(etag, if_none_match):
        return 304, headers, b""
    headers += ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)))
    return 200, headers, body


def is_among(etag: str, if_none_match: str) -> bool:
    """Whether the header names the tag; weak tags count too (RFC 9110, section 13.1.2)."""
    named = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in named or "*" in named
