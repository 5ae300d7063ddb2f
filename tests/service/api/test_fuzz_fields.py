"""Every field of every operation with values that are meant to harm: refused in a problem document, nothing stored."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import emptying
import httpx
import pytest
from caller import Caller, new_app
from factories import Rows
from hostile import BODIES, PROBLEM, Operation, Sent
from sqlalchemy import Engine, text
from waiting import PATIENCE_S

from tilewright.kernels.catalogue import catalogue
from tilewright.service.api import best_answers
from tilewright.service.api.problems import LONGEST, MOST_FIELDS
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations import strict_json
from tilewright.service.operations.best import answer as best_answer
from tilewright.service.operations.best_cache.watch import BestWatch
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.service.store import session as store_session
from tilewright.service.store.models import Base
from tilewright.tuner.predict.shipped import shipped_models

DOCUMENT = json.loads((Path(__file__).parent / "openapi.json").read_text(encoding="utf-8"))
INSIDE = ("Traceback", "sqlalchemy", "psycopg", "site-packages", "SELECT ", "INSERT ", "tilewright/service")
COUNTED = [table.name for table in Base.metadata.sorted_tables if table.name != "asked_shelves"]
"""All tables but the one that a thread writes some time after a request that was answered."""
COUNT = "SELECT " + ", ".join(f"(SELECT count(*) FROM {name})" for name in COUNTED)  # noqa: S608 - our own names
MOST_BYTES = 64 << 10
"""Of a refusal, however large the request was."""

STREAM = "follow_job"
ANSWERS = {"cancel_job": 409, "retry_trials": 409, "retry_delivery": 404, "open_session": 401, "get_table": 404}
"""What the right request is answered with where that is a refusal: the job is done, no trial failed, no message was, no
table is there."""

NAMED = frozenset({"create_key", "create_project", "create_schedule", "create_webhook"})
"""Whose names must differ."""


@dataclass(frozen=True)
class Seeded:
    """An application with one of everything, and where it is found."""

    caller: Caller
    engine: Engine
    path: dict[str, object]
    exported: object

    def operation(self, method: str, template: str) -> Operation:
        described = DOCUMENT["paths"][template][method]
        name = described["operationId"]
        named = {"/v1/keys": "key", "/v1/proj": "default", "/problem": "not-found"}.get(template[:8], "hook")
        path = self.path | {"name": named}
        body = self.exported if name == "import_results" else BODIES.get(name)
        return Operation(name, method.upper(), template, tuple(described.get("parameters", ())), path, body)

    def send(self, requests: list[Sent]) -> Iterator[tuple[Sent, httpx.Response]]:
        """Each request with its answer; refused ones must have stored nothing."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            before = connection.execute(text(COUNT)).one()
            for request in requests:
                answer = self.caller.request(
                    request.method,
                    request.path,
                    params=request.query,
                    content=request.content,
                    headers={"Content-Type": b"application/json", **request.headers},
                )
                if request.method != "GET":
                    after = connection.execute(text(COUNT)).one()
                    assert answer.status_code < 400 or after == before, request.said
                    before = after
                yield request, answer


@pytest.fixture(scope="module")
def seeded(api_database: str, api_engine: Engine, registered_kernels: object) -> Iterator[Seeded]:
    store_session.configure(api_database)
    app = new_app()
    caller, watch = Caller(app), BestWatch(app.state.best)  # so that answers come from memory too
    with transaction() as session:
        rows = Rows(session)
        best = rows.best(library_ms=2.0)
        path = {"result_id": best.id, "study_id": rows.trial_of(best).study_id, "job_id": str(best.job_id)}
    exported = caller.get("/v1/export", params={"trials": "true"}).json()
    for name in ("create_schedule", "create_webhook", "create_key"):
        template = next(t for t, of in DOCUMENT["paths"].items() if of.get("post", {}).get("operationId") == name)
        names = {"create_schedule": "nightly", "create_webhook": "hook", "create_key": "key"}
        made = caller.post(template, json=BODIES[name] | {"name": names[name]})
        assert made.status_code == 201, made.text
        path |= {"schedule_id": made.json()["id"]} if name == "create_schedule" else {}
    entry = caller.request("PUT", f"/v1/helion/entries/{'1' * 64}", json=BODIES["store_helion_entry"])
    assert entry.status_code == 200, entry.text
    path |= {"claim_id": caller.post("/v1/claims", json=BODIES["report_claim"]).json()["id"]}
    path |= {"kernel": "gemm", "uuid": "GPU-nvidia-h200", "key": "1" * 64}
    path |= dict.fromkeys(("delivery_id", "session_id"), "01939f2e-6c9a-7cc1-8f2a-3d0f5f0a9b11") | {"note_id": 1}
    watch.start()
    yield Seeded(caller, api_engine, path, exported)
    watch.stop()
    store_session.configure(None)
    emptying.empty(api_engine, registered_kernels)


def is_sound(answer: httpx.Response, said: str) -> None:
    """An answer, or a refusal that says what is wrong and nothing of the inside."""
    assert answer.status_code < 500, (said, answer.text)
    if answer.status_code < 400:
        return
    assert answer.headers["content-type"] == "application/problem+json", said
    document = answer.json()
    assert document["status"] == answer.status_code
    assert document["title"], said
    assert document["detail"], said
    assert len(answer.content) < MOST_BYTES, said
    assert not any(word in answer.text for word in INSIDE), (said, answer.text)


OPERATIONS = [
    pytest.param(method, template, whole, id=described["operationId"] + ("-whole" if whole else ""), marks=marks)
    for template, methods in DOCUMENT["paths"].items()
    for method, described in methods.items()
    if described["operationId"] != STREAM
    for whole, marks in ((False, ()), (True, pytest.mark.exhaustive))
]


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(("method", "address", "whole"), OPERATIONS)
def test_no_value_of_any_field_fails_stores_or_leaks(seeded, method, address, whole):
    operation = seeded.operation(method, address)
    if method != "delete":  # what the values are put into is right; deleted it would be gone for the others
        again = operation.body | {"name": "whole" if whole else "right"} if operation.name in NAMED else operation.body
        ((_, answer),) = seeded.send([replace(operation, body=again).right()])
        assert answer.status_code == ANSWERS.get(operation.name, answer.status_code), answer.text
        assert answer.is_success or operation.name in ANSWERS, answer.text
    for request, answer in seeded.send(list(operation.wrong(whole=whole))):
        is_sound(answer, request.said)


@pytest.mark.parametrize("last", ["", "x", "-1", "1.5", "1e3", "\u00b2", "9" * 30, "2147483648", "1, 2"])
def test_a_place_in_an_event_stream_that_is_none_is_refused(seeded, last):
    path = f"/v1/jobs/{seeded.path['job_id']}/events"
    answer = seeded.caller.get(path, headers={"Last-Event-ID": last.encode("latin-1")})
    is_sound(answer, last)
    assert answer.status_code == 422


COOKIES = [
    "",
    "=",
    ";;;",
    'tilewright_session="',
    "tilewright_session=\\777",
    "a b=c",
    "tilewright_session=" + "x" * 9000,
]


@pytest.fixture
def closed(seeded, monkeypatch) -> Iterator[Caller]:
    """The same on a server that demands keys."""
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    settings.cache_clear()
    yield Caller(new_app())
    monkeypatch.undo()
    settings.cache_clear()


def test_cookies_and_tokens_that_are_none_open_nothing(closed):
    headers = [{"Cookie": cookie} for cookie in (*COOKIES, "\xff=\xfe")]
    headers += [{"Authorization": said} for said in ("", "Bearer", "Bearer  ", "Basic eA==", "Bearer \xff", "B" * 9000)]
    for wrong in headers:
        answer = closed.get("/v1/jobs", headers={name: said.encode("latin-1") for name, said in wrong.items()})
        is_sound(answer, str(wrong)[:80])
        assert answer.status_code == 401


def test_a_compressed_body_is_refused_for_what_it_is(seeded):
    """Nothing unpacks it, so that no megabyte becomes a gigabyte."""
    body = gzip.compress(json.dumps(PROBLEM).encode())
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = seeded.caller.post("/v1/jobs", content=body, headers=headers)
    is_sound(answer, "gzip")
    assert answer.status_code == 415
    assert "Content-Encoding" in answer.json()["detail"]


def test_thousands_of_wrong_fields_are_told_in_a_short_document(seeded):
    many = {f"u{place}": 0 for place in range(10_000)}
    answer = seeded.caller.post("/v1/jobs", json=PROBLEM | many)
    is_sound(answer, "many names")
    assert len(answer.json()["errors"]) == MOST_FIELDS
    assert "9995 more" in answer.json()["detail"]
    answer = seeded.caller.post("/v1/jobs", json=PROBLEM | {"x" * 500_000: 0})
    is_sound(answer, "a long name")
    assert len(answer.json()["errors"][0]["pointer"]) == LONGEST + 1


def test_many_values_under_a_long_name_take_no_more_memory_than_themselves():
    """A pointer of each would be 200 MB, and of a body of a megabyte a hundred gigabytes."""
    body = b'{"' + b"x" * 20_000 + b'": [' + b"0," * 10_000 + b"0]}"
    tracemalloc.start()
    try:
        strict_json.check(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 * len(body)


def test_a_batch_does_not_have_more_spaces_enumerated_than_fit_its_time(seeded, monkeypatch):
    """The default of a softmax over an odd row fits nowhere; a batch may hold a thousand such."""
    monkeypatch.setattr(best_answers, "WAIT_S", PATIENCE_S)
    odd = {"shapes": [{"m": 8, "n": 2 * place + 1001} for place in range(8)], "device_model": "nvidia-h200"}
    assert seeded.caller.post("/v1/kernels/softmax/best:batch", json=odd).is_success
    kernel, limits = catalogue().get("softmax"), shipped_models()["nvidia-h200"][1]
    queries = [best_answer.BestQuery(kernel, kernel.problem(one), "nvidia-h200", limits) for one in odd["shapes"]]
    assert len(best_answer.default_answers(queries)) == 8
    monkeypatch.setattr(best_answer, "MOST_POINTS", 700)
    with pytest.raises(InvalidRequestError, match="ask for fewer such shapes"):
        best_answer.default_answers(queries)
    assert len(best_answer.default_answers(queries[:3])) == 3
