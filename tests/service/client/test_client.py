import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import pytest
from fleet import free_port
from waiting import PATIENCE_S

from tilewright.service.cli import main
from tilewright.service.client import ApiProblemError, ApiUnreachableError, Client
from tilewright.service.client.errors import ApiProblemError as Problem
from tilewright.service.operations.jobs.jobs import cancel_job
from tilewright.service.operations.requests import BudgetRequest, JobRequest
from tilewright.service.settings import settings
from tilewright.service.store.session import session_scope

SHAPE = {"m": 64, "n": 32, "k": 48}
BUDGET = BudgetRequest(trials=5, seconds=None, target_ms=None)


def a_request(**more):
    return JobRequest.model_validate({"kernel": "gemm", "shape": SHAPE, "budget": BUDGET} | more)


def test_answers_are_the_operations_own_types(client, registered):
    assert client.is_ready()
    assert {"gemm", "gemv"} <= {kernel.name for kernel in client.kernels()}
    assert client.kernel("gemm").declaration["axes"] == ["m", "n", "k"]
    assert 'extern "C"' in client.source("gemm", "naive").source
    assert [model.slug for model in client.device_models()] == [registered]
    assert [device.uuid for device in client.devices()] == ["CPU-1"]
    assert client.best("gemm", registered, SHAPE, "float32", {"trans_b": True}).match.value == "default"


def test_a_job_goes_there_and_back(client, registered):
    job, is_new = client.request_job(a_request())
    assert is_new
    assert client.job(job.id) == job
    assert client.jobs(state="queued").items == [job]
    assert client.trials(job.id).items == []
    assert client.cancel_job(job.id).state == "cancelled"
    assert client.jobs(state="queued").items == []


def test_the_same_idempotency_key_gives_the_same_job(client, registered):
    first, _ = client.request_job(a_request(), idempotency_key="one")
    client.cancel_job(first.id)
    again, is_new = client.request_job(a_request(), idempotency_key="one")
    assert (again.id, is_new) == (first.id, False)
    with pytest.raises(ApiProblemError) as refused:
        client.request_job(a_request(dtype="float64"), idempotency_key="one")
    assert refused.value.status == 409


def test_a_refusal_carries_the_field_and_an_example(client, registered):
    with pytest.raises(ApiProblemError) as refused:
        client.request_job(a_request(shape={"m": 64}))
    assert refused.value.status == 422
    (field,) = refused.value.fields
    assert field.field == "shape.n"
    assert field.example
    assert "shape.n" in str(refused.value)
    assert "Example" in str(refused.value)


def test_an_unchanged_answer_costs_a_304(client, registered):
    seen = []
    client._http.event_hooks["response"].append(lambda response: seen.append(response.status_code))
    first = client.best("gemm", registered, SHAPE, "float32", {})
    assert client.best("gemm", registered, SHAPE, "float32", {}) == first
    assert client.best("gemm", registered, SHAPE, "float64", {}) != first
    assert seen == [200, 304, 200]


def test_without_a_server_the_error_says_where_it_looked(unused_port):
    with Client(f"http://127.0.0.1:{unused_port}") as client:
        assert not client.is_ready()
        with pytest.raises(ApiUnreachableError, match=str(unused_port)):
            client.kernels()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", ""])
def test_an_address_that_is_none_is_refused_at_once(url):
    with pytest.raises(ApiUnreachableError):
        Client(url)


def test_a_page_of_another_server_is_an_error_not_a_crash():
    page = httpx.Response(502, text="<html>Bad Gateway</html>", headers={"content-type": "text/html"})
    assert "HTTP 502 (text/html)" in str(Problem.of(page))
    assert Problem.of(httpx.Response(404, json=["what"])).status == 404


def test_events_end_with_the_job(client, registered):
    job, _ = client.request_job(a_request())
    got = []
    reader = threading.Thread(target=lambda: got.extend(client.events(job.id)))
    reader.start()
    with session_scope() as session:
        cancel_job(session, job.id)
    reader.join(PATIENCE_S)
    assert not reader.is_alive()
    assert got[-1].data["state"] == "cancelled"
    assert list(client.events(job.id, after=got[-1].id)) == []


@contextmanager
def serving(port, database_url):
    """`tilewright serve` as a process of its own, killed at the end without a chance to say goodbye."""
    environment = {**os.environ, "TILEWRIGHT_DATABASE_URL": database_url}
    command = [sys.executable, "-m", "tilewright.service.cli", "serve", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        with Client(f"http://127.0.0.1:{port}") as client:
            while not client.is_ready():
                assert process.poll() is None
                threading.Event().wait(0.05)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.faults
def test_events_go_on_after_the_server_was_killed_and_started_again(configured, registered, unused_port):
    got, opened = [], threading.Event()
    with Client(f"http://127.0.0.1:{unused_port}") as client:
        with serving(unused_port, configured):
            job, _ = client.request_job(a_request())
            client._http.event_hooks["response"].append(lambda response: opened.set())
            reader = threading.Thread(target=lambda: got.extend(client.events(job.id)), daemon=True)
            reader.start()
            assert opened.wait(PATIENCE_S)
        with session_scope() as session:
            cancel_job(session, job.id)
        with serving(unused_port, configured):
            reader.join(PATIENCE_S)
    assert [event.data["state"] for event in got] == ["cancelled"]


@pytest.fixture
def unused_port():
    return free_port()


@pytest.fixture
def over_http(server, registered, monkeypatch, capsys):
    """The command line with TILEWRIGHT_URL set: it gets status, stdout, stderr."""
    monkeypatch.setenv("TILEWRIGHT_URL", server.url)
    settings.cache_clear()

    def run(*arguments):
        capsys.readouterr()
        status = main(arguments)
        return (int(status), *capsys.readouterr())

    yield run
    settings.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["tune", "nosuch", "--shape", "m=1"], 2, ["kernel", "gemm"]),
        (["tune", "gemm", "--shape", "m=0,n=1,k=1"], 2, ["shape.m"]),
        (["tune", "gemm", "--shape", "m=1,n=1,k=1", "--device-model", "x"], 2, ["device_model", "cpu:test-processor"]),
        (["best", "nosuch", "--shape", "m=1"], 2, ["nosuch", "gemm"]),
        (["best", "gemm", "--shape", "m=1,n=1,k=1", "--device-model", "x"], 2, ["device model", "cpu:test-processor"]),
        (["kernels", "show", "nosuch"], 2, ["nosuch"]),
        (["jobs", "show", "0198c0de-0000-7000-8000-000000000000"], 3, ["job"]),
        (["jobs", "list", "--state", "asleep"], 2, ["state"]),
    ],
)
def test_refusals_have_the_same_exit_codes_over_http(over_http, arguments, status, words):
    got, out, err = over_http(*arguments)
    assert (got, out, err.count("\n")) == (status, "", 1)
    for word in words:
        assert word in err


def test_commands_answer_over_http(over_http, server):
    status, out, _ = over_http("tune", "gemm", "--shape", "m=64,n=32,k=48", "--no-wait", "--json")
    assert status == 0
    job_id = json.loads(out)["job"]["id"]
    assert json.loads(over_http("jobs", "show", job_id, "--json")[1])["id"] == job_id
    assert json.loads(over_http("jobs", "cancel", job_id, "--json")[1])["state"] == "cancelled"
    _, out, _ = over_http("best", "gemm", "--shape", "m=64,n=32,k=48")
    assert f"curl '{server.url}/v1/kernels/gemm/best?device_model=cpu:test-processor&shape=m=64,n=32,k=48" in out


def test_the_line_that_is_printed_for_curl_gives_the_answer(over_http):
    _, out, _ = over_http("best", "gemm", "--shape", "m=64,n=32,k=48", "--option", "trans_b=true")
    line = next(line for line in out.splitlines() if "curl" in line)
    answer = httpx.get(line.split("'")[1], trust_env=False, timeout=PATIENCE_S)
    assert answer.json()["problem"]["options"]["trans_b"] is True


def test_a_server_that_is_away_is_one_line(over_http, server):
    server.stop()
    status, out, err = over_http("jobs")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert server.url in err
