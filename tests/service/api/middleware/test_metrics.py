"""GET /metrics: what this process and the database know, as Prometheus reads it."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import yaml
from caller import Caller, new_app
from factories import H200, NEW, OLD, SHAPE, TILED_16, TILED_32, Rows
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event
from waiting import PATIENCE_S

from tilewright.service.api.middleware.metrics import Meters, Witness
from tilewright.service.operations.fleet.observed import Observer
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store import session as store_session
from tilewright.service.store.models import JobState
from tilewright.tuner.outcome import Outcome

BEST = "/v1/kernels/gemm/best"


def scraped(client: Caller, **of) -> dict[tuple, float]:
    """Each sample's value by name and labels, of a first look at the database."""
    client.app.state.observer = Observer()
    response = client.get("/metrics", **of)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def requests(metrics, route, status, method="GET"):
    return metrics.get(
        ("tilewright_http_requests_total", ("method", method), ("route", route), ("status", str(status)))
    )


def test_requests_count_under_their_routes_whatever_callers_put_into_them(client):
    for number in range(3):
        client.get(f"/v1/jobs/{number}")
    client.request("BREW", "/health")
    client.get("/no-such/path")
    client.get("/health", headers={"host": "evil.example"})
    metrics = scraped(client)
    assert requests(metrics, "/v1/jobs/{job_id}", 422) == 3
    assert requests(metrics, "/health", 405, "other") == 1
    assert requests(metrics, "(unknown)", 404) == 1
    assert requests(metrics, "(refused)", 421) == 1
    count = "tilewright_http_request_seconds_count"
    assert metrics[count, ("method", "GET"), ("route", "/v1/jobs/{job_id}")] == 3


def test_a_failure_counts_as_500(client):
    @client.app.get("/breaks")
    def breaks() -> None:
        raise RuntimeError("of the test")

    client.get("/breaks")
    assert requests(scraped(client), "/breaks", 500) == 1


def test_lookups_count_by_match_and_each_shape_of_a_batch(client):
    with transaction() as session:
        rows = Rows(session)
        rows.best()
    query = {"device_model": "nvidia-h200", "shape": "m=256,n=100,k=784"}
    asked = [
        client.get(BEST, params=query),
        client.get(BEST, params=query | {"shape": "m=300,n=100,k=784"}),
        client.post(f"{BEST}:batch", json={"shapes": [SHAPE, SHAPE], "device_model": "nvidia-h200"}),
    ]
    assert [response.status_code for response in asked] == [200, 200, 200]
    metrics = scraped(client)
    lookups = {match: metrics["tilewright_lookups_total", ("match", match)] for match in ("exact", "nearest", "none")}
    assert lookups == {"exact": 3, "nearest": 1, "none": 0}


def test_a_lookup_without_an_answer_counts_as_none(client):
    nothing_fits = replace(H200, slug="tiny", limits=replace(H200.limits, max_threads_per_block=0))
    with transaction() as session:
        Rows(session).device(nothing_fits)
    response = client.get(BEST, params={"device_model": "tiny", "shape": "m=256,n=100,k=784"})
    assert response.json()["type"] == "/problems/no-configuration"
    client.get(BEST, params={"device_model": "nosuch", "shape": "m=256,n=100,k=784"})
    assert scraped(client)["tilewright_lookups_total", ("match", "none")] == 1


def test_what_the_database_knows_is_the_same_from_every_process(client):
    with transaction() as session:
        rows = Rows(session)
        study, problem, device = rows.study()
        device.worker, device.cache_files, device.cache_bytes = "host:1:cuda:0", 7, 7000
        job = rows.job(problem, device, study, state=JobState.RUNNING)
        queued = rows.job(problem, device, state=JobState.QUEUED)
        queued.created_at = datetime.now(UTC) - timedelta(seconds=100)
        measured = rows.trial(study, job, TILED_16, 1.0)
        failed = rows.trial(study, job, TILED_32, outcome=Outcome.COMPILE_FAILED)
        for trial, wall_s, compile_ms in ((measured, 2.5, 0.0), (failed, 0.5, 30.0)):
            trial.device_id, trial.wall_s, trial.compile_ms = device.id, wall_s, compile_ms
    for process in (client, Caller(new_app())):
        metrics = scraped(process)
        assert metrics["tilewright_database_answers",] == 1
        for state in ("queued", "running"):
            assert metrics["tilewright_jobs_open", ("queue", "model:test"), ("state", state)] == 1
        assert 100 <= metrics["tilewright_oldest_queued_job_seconds",] < 160
        of_model = ("device_model", "nvidia-h200")
        for outcome, seconds in (("measured", 2.5), ("compile_failed", 0.5)):
            assert metrics["tilewright_trials_total", of_model, ("outcome", outcome)] == 1
            assert metrics["tilewright_device_seconds_total", of_model, ("outcome", outcome)] == seconds
        for source in ("cache", "compiler"):
            assert metrics["tilewright_trial_compiles_total", of_model, ("source", source)] == 1
        assert metrics["tilewright_workers", of_model, ("state", "alive")] == 1
        assert metrics["tilewright_cache_bytes", ("device", "GPU-nvidia-h200")] == 7000
        assert metrics["tilewright_database_connections_open",] >= 1


def test_trials_of_long_ago_are_read_once_and_new_ones_are_added(client):
    observer = Observer(clock=iter(range(0, 1000, 10)).__next__)
    with transaction() as session:
        rows = Rows(session)
        study, problem, device = rows.study()
        job = rows.job(problem, device, study)
        old = rows.trial(study, job, TILED_16, 1.0)
        old.device_id, old.created_at = device.id, datetime.now(UTC) - timedelta(hours=1)
    key = ("nvidia-h200", "measured")
    assert observer.look().trials[key].count == 1
    with transaction() as session:
        session.get_one(models.Trial, old.id).outcome = Outcome.WRONG_RESULT  # were it read again, it would be seen
        session.get_one(models.Trial, old.id).time_ms = None
        new = Rows(session, {study.id: 1}).trial(study, session.get_one(models.TuningJob, job.id), TILED_32, 1.0)
        new.device_id = device.id
    assert observer.look().trials[key].count == 2
    assert observer.look().trials[key].count == 2


def test_schedules_that_wait_and_that_fired_late_are_seen(client):
    now = datetime.now(UTC)
    with transaction() as session:
        device = Rows(session).device()
        schedule = models.Schedule(
            name="nightly",
            body_hash="",
            cron="0 0 2 * * *",
            time_zone="UTC",
            device_model_id=device.model_id,
            budget_trials=1,
            next_at=now - timedelta(seconds=30),
        )
        session.add(schedule)
        session.flush()
        session.add(
            models.ScheduleFire(
                schedule_id=schedule.id, fire_at=now - timedelta(seconds=5), created_at=now, outcome="fired", jobs=1
            )
        )
    metrics = scraped(client)
    assert 30 <= metrics["tilewright_schedules_late_seconds",] < 90
    assert metrics["tilewright_schedule_fire_delay_seconds",] == pytest.approx(5)


def test_a_storm_of_scrapes_asks_the_database_once(client):
    client.get("/health")
    statements = []
    event.listen(store_session.engine(), "before_cursor_execute", lambda *of: statements.append(of[2]))

    async def storm():
        transport = httpx.ASGITransport(client.app, client=client.peer)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
            await asyncio.gather(*(http.get("/metrics") for _ in range(20)))

    asyncio.run(storm())
    assert len([one for one in statements if "pg_database_size" in one]) == 1


def test_nobody_waits_for_a_slow_look_but_the_first(client):
    slow, go_on = threading.Event(), threading.Event()

    class Slow(Observer):
        def _look(self):
            if self._seen is not None:
                slow.set()
                assert go_on.wait(PATIENCE_S)
            return super()._look()

    observer = Slow(clock=iter(range(0, 1000, 10)).__next__)
    first = observer.look()
    looking = threading.Thread(target=observer.look)
    looking.start()
    assert slow.wait(PATIENCE_S)
    assert observer.look() is first
    go_on.set()
    looking.join()
    assert observer.look() is not first


def test_metrics_of_the_process_are_told_while_the_database_is_away():
    store_session.configure("postgresql://someone:secret@127.0.0.1:9/none")
    try:
        metrics = scraped(Caller(new_app()))
    finally:
        store_session.configure(None)
    assert metrics["tilewright_database_answers",] == 0
    assert ("tilewright_database_bytes",) not in metrics
    assert metrics["process_resident_memory_bytes",] > 0


def test_metrics_are_read_like_everything_else(configured, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    settings.cache_clear()
    try:
        assert Caller(new_app()).get("/metrics").status_code == 401
        monkeypatch.setenv("TILEWRIGHT_OPEN_READS", "true")
        settings.cache_clear()
        assert Caller(new_app(), peer=("192.0.2.1", 1)).get("/metrics").status_code == 200
    finally:
        monkeypatch.undo()
        settings.cache_clear()


def test_counting_a_request_costs_microseconds():
    """Measured at 4 µs on an AMD EPYC; CPU time, which is the same on a busy machine."""

    async def answers(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(_message):
        pass

    async def best_of(app, rounds=20, calls=500):
        scope = {"type": "http", "method": "GET", "path": "/health", "route": type("Route", (), {"path": "/health"})}
        times = []
        for _ in range(rounds):
            began = time.process_time()
            for _ in range(calls):
                await app(scope, None, send)
            times.append((time.process_time() - began) / calls)
        return min(times)

    extra_s = asyncio.run(best_of(Witness(answers, Meters()))) - asyncio.run(best_of(answers))
    assert extra_s < 50e-6


FOLDER = Path(__file__).parents[4] / "deploy" / "monitoring"
METRIC = re.compile(r"\btilewright_\w+")
STATE = re.compile(r'tilewright_results\{state="(\w+)"\}')


def expressions() -> list[str]:
    """Every query of the alerts and of the dashboard."""
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    panels = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    return [rule["expr"] for rule in rules] + [target["expr"] for panel in panels for target in panel["targets"]]


@pytest.fixture
def samples(client, commit):
    """The samples of the metrics where one result has regressed, after a request that was counted."""
    commit(lambda rows: [rows.best(time_ms=1.0, environment=OLD), rows.best(time_ms=1.5, environment=NEW)])
    client.get("/v1/kernels/gemm/best?device_model=nvidia-h200&shape=m=256,n=100,k=784")
    families = text_string_to_metric_families(client.get("/metrics").text)
    return [sample for family in families for sample in family.samples]


@pytest.fixture
def commit(client):
    """What a function makes of rows, committed."""

    def commit(make):
        with transaction() as session:
            return make(Rows(session))

    return commit


def test_every_metric_that_a_query_names_is_there(samples, client):
    described = set(re.findall(r"^# TYPE (\w+)", client.get("/metrics").text, re.MULTILINE))
    there = {sample.name for sample in samples} | described | {f"{name}_bucket" for name in described}
    named = {name for expr in expressions() for name in METRIC.findall(expr)}
    assert len(named) >= 9
    assert named <= there | {"tilewright_trials_total"}


def test_a_regression_raises_its_alert_and_no_state_is_misspelt(samples):
    counts = {s.labels["state"]: s.value for s in samples if s.name == "tilewright_results"}
    assert (counts["regressed"], counts["tuned"]) == (1, 1)
    assert {state for expr in expressions() for state in STATE.findall(expr)} <= counts.keys()


LABELS = re.compile(r"by \(([\w, ]+)\)|[{,](\w+)[!=]~?=?\"|(?:\$labels\.|\{\{ ?)([a-z]\w+) ?\}\}")
"""Labels in an expression, its matchers, or the text beside it."""

OF_PROMETHEUS = {"instance", "job", "le"}


def queries() -> list[tuple[str, str]]:
    """Every query with all the text that names its labels."""
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    panels = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    shown = [(rule["expr"], json.dumps(rule["annotations"])) for rule in rules]
    shown += [(one["expr"], one.get("legendFormat", "")) for panel in panels for one in panel["targets"]]
    return [(expr, f"{expr} {text}") for expr, text in shown]


def test_every_label_that_a_query_names_is_one_of_its_metrics(samples):
    known: dict[str, set[str]] = {}
    for sample in samples:
        known.setdefault(sample.name, set()).update(sample.labels)
    named = 0
    for expr, words in queries():
        own = [known[name] for name in METRIC.findall(expr) if name in known]
        found = {label for match in LABELS.finditer(words) for part in match.groups("") for label in part.split(", ")}
        found -= {"", *OF_PROMETHEUS}
        assert not own or found <= set().union(*own), expr
        named += len(found)
    assert named >= 12
