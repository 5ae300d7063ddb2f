"""`best`: the query that applications make. Answers are looked up, never measured."""

from __future__ import annotations

import hashlib
from functools import lru_cache, partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from tilewright.kernels.family import Family
from tilewright.service.api.best_answers import answered
from tilewright.service.api.middleware.access import charge_for_work
from tilewright.service.api.openapi import Responses, refuses
from tilewright.service.api.parameters import BestQuery, IfNoneMatch, KernelName, TableQuery
from tilewright.service.api.problem_types import INVALID, NO_CONFIGURATION, NOT_FOUND, UNAVAILABLE
from tilewright.service.errors import CallerLeftError, NotFoundError
from tilewright.service.operations.answers import BestAnswer
from tilewright.service.operations.best.find import MAX_SHAPES, Asked
from tilewright.service.operations.best.rows import EnvironmentFilter
from tilewright.service.operations.best.tables import TableAnswer, find_table
from tilewright.service.operations.best_cache.shelf import MOST_ANSWERS, CachedAnswer
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.demand.demand import RequestedProblem
from tilewright.service.operations.parse import parse_open_shape, parse_options, parse_shape
from tilewright.service.operations.registry import default_device_model
from tilewright.service.operations.requests import Request as RequestBody
from tilewright.service.operations.transaction import transaction

router = APIRouter(prefix="/v1/kernels", tags=["best"])

CACHE_CONTROL = b"private, max-age=60"
"""A job takes longer than this to change an answer; a caller that waits for one repeats the query with its ETag."""

SHAPES_OF_A_REQUEST = 4
"""The shapes of a batch that count as one more request: a thousand take as long as some hundred requests."""

CALLER_LEFT = 499
"""Counted for a request whose caller has closed the connection; nobody reads it."""

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
async def get_best(
    request: Request, kernel: KernelName, query: Annotated[BestQuery, Query()], if_none_match: IfNoneMatch = None
) -> Response:
    """The best known configuration for a problem, and how it was found (`match`)."""
    asked = (kernel, query.device_model, [parse_shape(query.shape)], query.dtype, parse_options(query.options))
    answers = await _answers(request, asked, query.driver, query.toolkit)
    if answers is None:
        return Response(status_code=CALLER_LEFT)
    status, headers, body = represented(answers[0].as_json, if_none_match, is_pending=answers[0].pending)
    response = Response(body, status_code=status)
    response.raw_headers = headers
    return response


@router.post(
    "/{kernel}/best:batch",
    operation_id="get_best_of_many",
    response_model=BatchAnswer,
    responses=refuses(INVALID, NOT_FOUND, NO_CONFIGURATION, UNAVAILABLE),
)
async def get_best_of_many(http: Request, kernel: KernelName, request: BatchRequest) -> Response:
    """The best known configurations for up to 1000 shapes, in their order. Four shapes count as a request.

    Within 5 seconds: what cannot be predicted in that time is answered without and `pending`, and is predicted later.
    """
    charge_for_work(http.scope, len(request.shapes) // SHAPES_OF_A_REQUEST)
    asked = (kernel, request.device_model, request.shapes, request.dtype, request.options)
    answers = await _answers(http, asked, request.driver, request.toolkit)
    if answers is None:
        return Response(status_code=CALLER_LEFT)
    return Response(b'{"items":[%b]}' % b",".join(one.as_json for one in answers), media_type="application/json")


@router.get("/{kernel}/table", operation_id="get_table", responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE))
def get_table(request: Request, kernel: KernelName, query: Annotated[TableQuery, Query()]) -> TableAnswer:
    """The table of a family: the configurations for every size of an axis, and the times that it rests on.

    If no table exists, the request is counted as demand for the family.
    """
    declared = kernel_named(kernel)
    family = Family.of(declared, parse_open_shape(query.shape), query.dtype, parse_options(query.options))
    with transaction() as session:
        slug = query.device_model or default_device_model(session)
        try:
            return find_table(session, declared, family, slug, EnvironmentFilter(query.driver, query.toolkit))
        except NotFoundError:
            caller = request.scope.get("tilewright.caller")
            request.app.state.demand.note_one(RequestedProblem.of(family, slug), caller)
            raise


async def _answers(
    request: Request, question: tuple[Any, ...], driver: str | None, toolkit: str | None
) -> list[CachedAnswer] | None:
    """The answers, counted as look-ups and as demand; None where the caller has left."""
    with request.app.state.meters.looking_up():
        asked = await run_in_threadpool(partial(Asked.of, *question, driver=driver, toolkit=toolkit))
        try:
            answers = await answered(request, asked)
        except CallerLeftError:
            return None
    request.app.state.meters.note_lookups(answers)
    request.app.state.demand.note(answers, asked.device_model, request.scope.get("tilewright.caller"))
    return answers


def represented(
    body: bytes, if_none_match: str | None, *, is_pending: bool = False
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and body of the answer; 304 if the caller has it already, by its ETags."""
    etag = _etag(body)
    headers = [(b"etag", etag.encode()), (b"cache-control", b"no-cache" if is_pending else CACHE_CONTROL)]
    if if_none_match is not None and is_among(etag, if_none_match):
        return 304, headers, b""
    headers += ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)))
    return 200, headers, body


@lru_cache(maxsize=MOST_ANSWERS)
def _etag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def is_among(etag: str, if_none_match: str) -> bool:
    """Whether the header names the tag; weak tags count too (RFC 9110, section 13.1.2)."""
    named = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in named or "*" in named
