"""Demand: counted beside the request, bounded, listed by traffic, tuned in one call."""

import pytest
from factories import H100, LIMITS, SHAPE, Rows
from sqlalchemy import func, select, update

from tilewright.kernels.catalogue import catalogue
from tilewright.service.api import demand_buffer
from tilewright.service.api.demand_buffer import DemandBuffer
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.best.answer import BestQuery, default_answers
from tilewright.service.operations.caller import Caller, Scope
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.demand import RequestedProblem
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store import session as store_session
from tilewright.service.store.session import session_scope

GEMM = catalogue().get("gemm")
BEST = "/v1/kernels/gemm/best"


def shape(m: int) -> str:
    return f"m={m},n=100,k=784"


def wanted(m: int, model: str = "nvidia-h200") -> RequestedProblem:
    return RequestedProblem(model, "gemm", (("m", m), ("n", 100), ("k", 784)), "float32", ())


@pytest.fixture
def device(client) -> None:
    with session_scope() as session:
        Rows(session).device()


@pytest.fixture
def known(client) -> None:
    with session_scope() as session:
        Rows(session).best()


def listed(client, **query) -> list[tuple[int, int]]:
    client.app.state.demand.flush()
    items = client.get("/v1/demand", params=query).json()["items"]
    return [(item["problem"]["shape"]["m"], item["count"]) for item in items]


def test_what_is_not_known_exactly_is_counted_by_problem(client, known):
    for m in (256, 300, 400, 300):
        assert client.get(BEST, params={"shape": shape(m)}).status_code == 200
    client.post(f"{BEST}:batch", json={"shapes": [SHAPE | {"m": 300}, SHAPE]})
    assert listed(client) == [(300, 3), (400, 1)]
    client.get(BEST, params={"shape": shape(400)})
    assert listed(client) == [(300, 3), (400, 2)]


def test_a_refused_question_is_no_demand(client, device):
    assert client.get(BEST, params={"shape": "m=0,n=1,k=1"}).status_code == 422
    assert client.get(BEST, params={"shape": shape(9), "device_model": "other"}).status_code == 404
    assert listed(client) == []


def test_a_transferred_answer_is_demand_of_the_model_that_was_asked_for(client, known):
    with session_scope() as session:
        Rows(session).device(H100)
    found = client.get(BEST, params={"shape": shape(256), "device_model": "nvidia-h100"}).json()
    assert (found["match"], found["device_model"]) == ("transferred", "nvidia-h200")
    assert listed(client, device_model="nvidia-h100") == [(256, 1)]
    assert listed(client, device_model="nvidia-h200") == []


def test_nothing_is_written_and_nothing_tuned_inside_the_request(client, device):
    client.get(BEST, params={"shape": shape(256)})
    with session_scope() as session:
        assert session.scalar(select(func.count()).select_from(models.Demand)) == 0
        assert session.scalar(select(func.count()).select_from(models.TuningJob)) == 0


def test_pages_go_from_the_most_asked_for_to_the_least(client, device):
    with session_scope() as session:
        demand.count(session, {wanted(m): m % 3 + 1 for m in range(1, 8)})
    first = client.get("/v1/demand", params={"limit": 4}).json()
    rest = client.get("/v1/demand", params={"limit": 4, "cursor": first["next_cursor"]}).json()
    counts = [item["count"] for item in first["items"] + rest["items"]]
    assert counts == sorted(counts, reverse=True)
    assert {item["problem"]["shape"]["m"] for item in first["items"] + rest["items"]} == set(range(1, 8))
    assert rest["next_cursor"] is None
    assert client.get("/v1/demand", params={"cursor": "eA"}).status_code == 422
    assert client.get("/v1/demand", params={"format": "csv"}).text.count("\n") == 8


def test_of_each_kernel_and_model_what_was_asked_for_least_is_evicted(rows, monkeypatch):
    monkeypatch.setattr(demand, "settings", lambda: settings().model_copy(update={"demand_kept": 2}))
    rows.device()
    rows.device(H100)
    demand.count(rows.session, {wanted(1): 50, wanted(2): 2, wanted(7, "nvidia-h100"): 1})
    for m in range(10, 20):  # somebody's random shapes
        demand.count(rows.session, {wanted(m): 1})

    def left():
        return {(row.device_model.slug, row.shape["m"], row.count) for row in demand.unmet(rows.session, limit=10)}

    assert left() == {("nvidia-h200", 1, 50), ("nvidia-h200", 2, 2), ("nvidia-h100", 7, 1)}
    # What nobody asked for in a week goes first, however often it was before.
    week = func.make_interval(0, 0, 0, 8)
    of_m1 = models.Demand.shape["m"].astext == "1"
    rows.session.execute(update(models.Demand).where(of_m1).values(last_asked_at=func.now() - week))
    demand.count(rows.session, {wanted(20): 1})
    assert left() == {("nvidia-h200", 2, 2), ("nvidia-h200", 20, 1), ("nvidia-h100", 7, 1)}


def test_one_caller_counts_for_so_many_problems_a_minute(monkeypatch):
    monkeypatch.setattr(demand_buffer, "MOST_OF_A_CALLER", 3)
    clock = [0.0]
    buffer = DemandBuffer(lambda: clock[0])

    def ask(name: str, scope: Scope, *sizes: int) -> int:
        before = sum(buffer._counts.values())
        for m in sizes:
            query = BestQuery(GEMM, GEMM.problem(SHAPE | {"m": m}), "nvidia-h200", LIMITS)
            buffer.note(default_answers([query]).values(), None, Caller(name, scope))
        return sum(buffer._counts.values()) - before

    assert ask("key noisy", Scope.READ, *range(1, 9)) == 3
    assert ask("key tuner", Scope.TUNE, *range(1, 9), 1, 2) == 5  # the known ones count again
    assert ask("key other", Scope.READ, 1, 2) == 2
    assert ask("this machine", Scope.ADMIN, *range(1, 9)) == 8
    clock[0] = 61.0
    assert ask("key noisy", Scope.READ, *range(20, 28)) == 3


def test_the_buffer_forgets_the_least_recent_beyond_its_size(monkeypatch):
    monkeypatch.setattr(demand_buffer, "MAX_BUFFERED", 3)
    buffer = DemandBuffer()
    for m in (1, 2, 3, 1, 4):
        buffer._add(wanted(m), 1)
    assert dict(buffer._counts) == {wanted(3): 1, wanted(1): 2, wanted(4): 1}


def test_who_may_only_read_counts_once_a_minute_for_a_problem():
    clock = [0.0]
    buffer = DemandBuffer(lambda: clock[0])
    answer = default_answers([BestQuery(GEMM, GEMM.problem(SHAPE), "nvidia-h200", LIMITS)]).popitem()[1]

    def ask(name: str, scope: Scope, times: int) -> int:
        before = sum(buffer._counts.values())
        for _ in range(times):
            buffer.note([answer], None, Caller(name, scope))
        return sum(buffer._counts.values()) - before

    assert ask("key ci", Scope.READ, 50) == 1
    assert ask("key web", Scope.READ, 50) == 1
    clock[0] = 59.0
    assert ask("key ci", Scope.READ, 50) == 0
    clock[0] = 60.0
    assert ask("key ci", Scope.READ, 50) == 1
    assert ask("key tuner", Scope.TUNE, 50) == 50


def test_counts_survive_a_database_that_is_away(client, device):
    client.get(BEST, params={"shape": shape(300)})
    url = store_session.database_url()
    store_session.configure("postgresql://postgres@/nowhere?host=/nonexistent")
    with pytest.raises(DatabaseUnavailableError):
        client.app.state.demand.flush()
    store_session.configure(url)
    client.get(BEST, params={"shape": shape(300)})
    assert listed(client) == [(300, 2)]


def test_the_thread_writes_a_last_time_when_it_stops(client, device):
    client.get(BEST, params={"shape": shape(300)})
    buffer = client.app.state.demand
    buffer.start()
    buffer.stop()
    assert len(buffer) == 0
    assert listed(client) == [(300, 1)]


def test_one_call_tunes_the_top_and_asked_again_joins_its_jobs(client, device):
    with session_scope() as session:
        demand.count(session, {wanted(10): 1, wanted(20): 3, wanted(30): 2})
    made = client.post("/v1/demand:tune", params={"top": 2}, json={"budget": {"trials": 7}})
    assert made.status_code == 202
    items = made.json()["items"]
    assert [(item["problem"]["shape"]["m"], item["is_new"]) for item in items] == [(20, True), (30, True)]
    again = client.post("/v1/demand:tune", params={"top": 2}, json={"budget": {"trials": 7}}).json()["items"]
    assert [(i["job_id"], i["is_new"]) for i in again] == [(i["job_id"], False) for i in items]
    job = client.get(f"/v1/jobs/{items[0]['job_id']}").json()
    assert (job["state"], job["budget"]["trials"], job["device_model"]) == ("queued", 7, "nvidia-h200")


def test_what_no_job_can_be_made_for_says_why_and_stops_no_other(client, device):
    huge = RequestedProblem("nvidia-h200", "gemm", (("m", 60_000), ("n", 600_000), ("k", 60_000)), "float32", ())
    with session_scope() as session:
        demand.count(session, {huge: 9, wanted(20): 3})
    first, second = client.post("/v1/demand:tune", json={}).json()["items"]
    assert (first["job_id"], first["refused"].startswith("shape: the arrays take")) == (None, True)
    assert second["refused"] is None


def test_what_has_been_tuned_is_no_demand_until_it_is_retracted(rows):
    rows.device()
    demand.count(rows.session, {wanted(256): 5})
    assert len(demand.unmet(rows.session, limit=5)) == 1
    best = rows.best()
    assert demand.unmet(rows.session, limit=5) == []
    best.retracted_at = func.now()
    rows.session.flush()
    assert len(demand.unmet(rows.session, limit=5)) == 1
