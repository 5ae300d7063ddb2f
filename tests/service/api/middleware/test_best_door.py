"""The short way to `GET best`: what it sends, counts and notes is what the long way sends, counts and notes."""

import json
import re

import pytest
from caller import Caller, new_app
from factories import OLD, SHAPE, commit_every_best
from waiting import until

from tilewright.service.operations.access import keys
from tilewright.service.operations.best_cache.watch import BestWatch
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings

BEST = "/v1/kernels/gemm/best"
MODEL = "device_model=nvidia-h200"

IN_MEMORY = [
    f"{MODEL}&shape=m%3D256%2Cn%3D100%2Ck%3D784",  # as the client writes it
    f"{MODEL}&shape=m=256,n=100,k=784",
    f"shape=m=256,n=100,k=784&{MODEL}",
    f"{MODEL}&shape=k=784,m=256,n=100",
    f"{MODEL}&shape=m=0256,n=100,k=784",
    f"{MODEL}&shape=m=256,n=100,k=784&dtype=float32&options=accuracy=fp32",
    f"{MODEL}&shape=m=512,n=100,k=784",  # of two environments
    f"{MODEL}&shape=m=300,n=100,k=784",  # stale
    f"{MODEL}&shape=m=301,n=100,k=784",  # nearest
    f"{MODEL}&shape=m=1,n=1,k=1",
    f"{MODEL}&shape=m=1023,n=1023,k=1023",
    f"{MODEL}&shape=m=256,n=7,k=784&dtype=float64",
    f"{MODEL}&shape=m=256,n=100,k=784&options=accuracy=fp32-fma,trans_b=true",
    "device_model=nvidia-h100&shape=m=256,n=100,k=784",
]
LEFT = [
    f"{MODEL}&shape=m=0,n=100,k=784",
    f"{MODEL}&shape=m=2147483647,n=2147483647,k=2147483647",
    f"{MODEL}&shape=m=2147483648,n=100,k=784",
    f"{MODEL}&shape=m=9999999999,n=100,k=784",
    f"{MODEL}&shape=m=-1,n=100,k=784",
    f"{MODEL}&shape=m=256,n=100",
    f"{MODEL}&shape=m=256,m=256,n=100,k=784",
    f"{MODEL}&shape=m=256,n=100,k=784,",
    f"{MODEL}&{MODEL}&shape=m=256,n=100,k=784",
    f"{MODEL}&shape=m=256,n=100,k=784&shape=m=256,n=100,k=784",
    f"{MODEL}&shape=",
    f"{MODEL}&shape=m=256,n=100,k=784&colour=red",
    f"{MODEL}&shape=m=256,n=100,k=784&dtype=float16",
    f"{MODEL}&shape=m=256,n=100,k=784&options=trans_a=true",
    f"{MODEL}&shape=m=256,n=100,k=784&options=colour=red",
    f"{MODEL}&shape=m=256,n=100,k=784&driver={OLD.driver}",
    "device_model=nobody&shape=m=256,n=100,k=784",
    "shape=m=256,n=100,k=784",  # there are several models
    "",
]


@pytest.fixture
def both(client):
    """A caller of an application that answers from memory, and one of an application that asks the database."""
    commit_every_best()
    short, long = Caller(new_app()), Caller(new_app())
    watch = BestWatch(short.app.state.best)
    watch.start()
    for query in IN_MEMORY:
        long.get(f"{BEST}?{query}")  # finds out that nothing can be predicted
        until(lambda q=query: is_short(short, q))
    for caller, app in ((short, create_app_with(short.app.state.best)), (long, new_app())):
        caller.app.state.pool.close()
        caller.app = app
    yield short, long
    watch.stop()
    for caller in (short, long):
        caller.app.state.pool.close()


def create_app_with(memory):
    """An application that counted nothing yet, with this memory."""
    app = new_app()
    app.state.best = memory
    return app


def is_short(caller, query):
    return caller.get(f"{BEST}?{query}").is_success and len(caller.app.state.best) and answered_short(caller, query)


def answered_short(caller, query):
    """Whether memory knows the answer."""
    scope = {"method": "GET", "path": BEST, "query_string": query.encode(), "headers": []}
    return caller.app.user_middleware[-1].kwargs["known"](scope) is not None


def same(first, second):
    """The response without what differs from request to request."""
    ignored = {"x-request-id"}
    one, other = (
        (r.status_code, {k: v for k, v in r.headers.items() if k not in ignored}, without_id(r.text))
        for r in (first, second)
    )
    assert one == other
    return True


def without_id(text):
    return re.sub(r"[0-9a-f]{32}", "an id", text) if '"request_id"' in text else text


def counted(caller):
    """What the application counts, without times."""
    kinds = ("tilewright_lookups_total", "tilewright_http_requests_total")
    lines = [line for line in caller.get("/metrics").text.splitlines() if line.startswith(kinds)]
    return sorted(line for line in lines if "/metrics" not in line)


@pytest.mark.in_turn(3)
def test_both_ways_say_count_and_note_the_same(both):
    short, long = both
    for query in IN_MEMORY + LEFT:
        assert same(*(caller.get(f"{BEST}?{query}") for caller in both)), query
    assert counted(short) == counted(long)
    assert short.app.state.demand._counts == long.app.state.demand._counts


def test_what_memory_knows_goes_the_short_way_and_conditional_and_other_requests_come_to_the_same(both):
    short, _ = both
    until(lambda: all(answered_short(short, query) for query in IN_MEMORY))
    assert [query for query in LEFT if answered_short(short, query)] == []
    check_conditional_requests(both)
    check_other_methods_and_refused_requests(both)
    check_what_a_template_could_mistake_for_its_own_signs(short)


def check_conditional_requests(both):
    tag = both[0].get(f"{BEST}?{IN_MEMORY[0]}").headers["etag"]
    for given in (tag, f"W/{tag}", "*", f'"other", {tag}', '"other"', "", "x" * 1025):
        first, second = (caller.get(f"{BEST}?{IN_MEMORY[0]}", headers={"If-None-Match": given}) for caller in both)
        assert same(first, second), given
        assert first.status_code == (422 if len(given) > 1024 else 304 if tag in given or given == "*" else 200)


def check_other_methods_and_refused_requests(both):
    path = f"{BEST}?{IN_MEMORY[0]}"
    for method in ("HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
        assert same(*(caller.request(method, path) for caller in both)), method
    for headers in (
        {"Host": "elsewhere.example"},
        {"Origin": "https://elsewhere.example"},
        {"X-Forwarded-For": "10.0.0.1"},
        {"Authorization": "Basic x"},
        {"Authorization": "Bearer tw_" + "0" * 43},
        {"Content-Length": "3"},
    ):
        first, second = (caller.get(path, headers=headers) for caller in both)
        assert same(first, second), headers
    assert both[0].get(f"{path}%00").status_code == 422


@pytest.fixture
def keyed(both, monkeypatch):
    """The one that answers from memory where keys are demanded, two requests at once, and a key."""
    with transaction() as session:
        token = keys.create_key(session, KeyRequest(name="ci", scope="read")).token
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    monkeypatch.setenv("TILEWRIGHT_REQUESTS_PER_MINUTE", "4")
    settings.cache_clear()
    yield Caller(create_app_with(both[0].app.state.best)), token
    monkeypatch.undo()
    settings.cache_clear()


@pytest.mark.in_turn(3)
def test_keys_are_demanded_and_requests_limited_on_the_short_way_too(keyed, json_log, capsys):
    caller, token = keyed
    path, headers = f"{BEST}?{IN_MEMORY[0]}", {"Authorization": f"Bearer {token}", "X-Request-Id": "of-the-test"}
    assert caller.get(path).status_code == 401
    until(lambda: answered_short(caller, IN_MEMORY[0]))
    answers = [caller.get(path, headers=headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert {answer.headers["x-request-id"] for answer in answers} == {"of-the-test"}
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    lines = [one for one in said if one["logger"] == "tilewright.requests"]
    assert [line["status"] for line in lines] == [401, 200, 200, 429]
    assert {line["route"] for line in lines} == {"/v1/kernels/{kernel}/best", "(refused)"}


def check_what_a_template_could_mistake_for_its_own_signs(caller):
    text = caller.get(f"{BEST}?{IN_MEMORY[0]}").text
    body = json.loads(text)
    assert body["problem"]["shape"] == SHAPE
    assert f"-DSHAPE_M={SHAPE['m']}" in body["flags"]
    assert not re.search(r"\\u0000|%[bd]", text)
