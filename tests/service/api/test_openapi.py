"""The OpenAPI document: as stored, complete, and true of what the API does."""

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from caller import BASE_URL
from factories import Rows
from hypothesis import HealthCheck, Phase, given, settings
from starlette.types import ASGIApp

from tilewright.service.app import create_app
from tilewright.service.operations.transaction import transaction

# Who collects with a marker of other tests, such as `-m gpu`, need not have it.
schemathesis = pytest.importorskip("schemathesis")

SNAPSHOT = Path(__file__).parent / "openapi.json"
REFRESH = "TILEWRIGHT_REFRESH_OPENAPI=1 .venv/bin/pytest tests/service/api/test_openapi.py"


@cache
def document() -> dict:
    """As stored: every process that collects this needs it, and making it takes more than a second."""
    return json.loads(SNAPSHOT.read_text(encoding="utf-8"))


def test_document_is_the_stored_one():
    text = json.dumps(create_app().openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if os.environ.get("TILEWRIGHT_REFRESH_OPENAPI"):
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert text == SNAPSHOT.read_text(encoding="utf-8"), f"The API changed. If that is meant: {REFRESH}"


def operations():
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield pytest.param(operation, id=f"{method.upper()} {path}")


@pytest.mark.parametrize("operation", list(operations()))
def test_operation_has_an_id_a_sentence_and_documented_refusals(operation):
    assert operation["operationId"].isidentifier()
    assert operation["description"].endswith((".", ")"))
    for status, response in operation["responses"].items():
        if status == "default" or int(status) >= 400:
            assert list(response["content"]) == ["application/problem+json"], status


@pytest.mark.parametrize("operation", list(operations()))
def test_required_parameters_and_bodies_show_an_example(operation):
    for parameter in operation.get("parameters", []):
        if parameter["required"]:
            assert parameter.get("examples") or parameter["schema"].get("examples"), parameter["name"]


def test_example_of_a_job_is_accepted(client):
    with transaction() as session:
        Rows(session).device()
    example = document()["components"]["schemas"]["JobRequest"]["examples"][0]
    assert client.post("/v1/jobs", json=example).status_code == 202


@cache
def generated() -> dict[str, object]:
    """Operations that generate their requests, by label: not made while tests are collected."""
    config = schemathesis.config.SchemathesisConfig.from_path(Path(__file__).parent / "schemathesis.toml")
    schema = schemathesis.openapi.from_dict(document(), config=config)
    return {found.ok().label: found.ok() for found in schema.get_all_operations()}


@cache
def checks() -> list[object]:
    """All but "valid data is accepted": the schema gives types; what a kernel admits is in its declaration."""
    from schemathesis.checks import not_a_server_error  # noqa: PLC0415 - they take a second
    from schemathesis.specs.openapi import checks as conformance  # noqa: PLC0415

    return [
        not_a_server_error,
        conformance.status_code_conformance,
        conformance.content_type_conformance,
        conformance.response_headers_conformance,
        conformance.response_schema_conformance,
        conformance.negative_data_rejection,
    ]


@dataclass
class FromThisMachine:
    """The application, called from a loopback address; the generator's own client states none.

    That client begins and ends the application at every call. Its threads are not begun: they take longer than the
    call, and until the watch on bests has asked the database, `/ready` is 503.
    """

    app: ASGIApp

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            for done in ("lifespan.startup.complete", "lifespan.shutdown.complete"):
                await receive()
                await send({"type": done})
            return
        await self.app({**scope, "client": ("127.0.0.1", 50000)}, receive, send)


OPERATIONS = {given.id: given.values[0] for given in operations()}
TAKES_INPUT = [label for label, operation in OPERATIONS.items() if operation.keys() & {"parameters", "requestBody"}]


EXAMPLES = [2, pytest.param(25, marks=pytest.mark.exhaustive)]


def validate(label, mode, app, examples):
    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(case=generated()[label].as_strategy(mode))
    def check(case):
        case.call_and_validate(base_url=BASE_URL, app=FromThisMachine(app), checks=checks())

    check()


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("label", list(OPERATIONS))
def test_requests_that_fit_the_document_get_documented_answers(client, label, examples):
    with transaction() as session:
        Rows(session).best()
    validate(label, schemathesis.GenerationMode.POSITIVE, client.app, examples)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("label", TAKES_INPUT)
def test_requests_that_do_not_fit_are_refused_as_documented(client, label, examples):
    with transaction() as session:
        Rows(session).best()
    validate(label, schemathesis.GenerationMode.NEGATIVE, client.app, examples)
