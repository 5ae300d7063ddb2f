"""The OpenAPI document: what FastAPI derives, with problem documents as the only refusals."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tilewright.service.api.problem_types import BY_ERROR, INVALID, ProblemType
from tilewright.service.api.problems import MEDIA_TYPE, ProblemDocument, document
from tilewright.service.api.refusals import NotJSONError, TooLargeError
from tilewright.service.operations.strict_json import MalformedJSONError

REFERENCE = "#/components/schemas/ProblemDocument"

Responses = dict[int | str, dict[str, Any]]


def refuses(*kinds: ProblemType) -> Responses:
    """The documented refusals of a route, by status."""
    by_status: dict[int, list[ProblemType]] = defaultdict(list)
    for kind in kinds:
        by_status[kind.status].append(kind)
    return {status: _refusal(found) for status, found in by_status.items()}


def _refusal(kinds: list[ProblemType]) -> dict[str, Any]:
    examples = {kind.name: {"value": document(kind, kind.title)} for kind in kinds}
    content = {MEDIA_TYPE: {"schema": {"$ref": REFERENCE}, "examples": examples}}
    return {"description": " ".join(kind.title for kind in kinds), "content": content}


def build(app: FastAPI) -> dict[str, Any]:
    """The document, built once; every operation also lists the refusals that any request can get."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, summary=app.summary, description=app.description, routes=app.routes
        )
        schemas = document["components"]["schemas"]
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        schemas |= _schemas_of_problems()
        for path in document["paths"].values():
            for operation in path.values():
                _complete(operation)
        app.openapi_schema = document
    return app.openapi_schema


def _complete(operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    with_body = [BY_ERROR[error] for error in (MalformedJSONError, TooLargeError, NotJSONError)]
    common = refuses(*with_body, INVALID) if "requestBody" in operation else {}
    if "parameters" in operation:
        common |= refuses(INVALID)
    for status, refusal in common.items():
        if MEDIA_TYPE not in responses.get(str(status), {}).get("content", {}):
            responses[str(status)] = refusal
    responses["default"] = {
        "description": "Any other refusal.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": REFERENCE}}},
    }


def _schemas_of_problems() -> dict[str, Any]:
    schema = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    inner: dict[str, Any] = schema.pop("$defs", {})
    return {"ProblemDocument": schema, **inner}
