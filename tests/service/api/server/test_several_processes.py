"""Several API processes on one address: what they must not forget they have in common, and how they begin and end."""

import os
import signal

import httpx
import pytest
from fleet import Fleet, free_port
from processes import children_of, is_running
from prometheus_client.parser import text_string_to_metric_families
from waiting import PATIENCE_S

from tilewright.service.api.middleware.access import Buckets
from tilewright.service.api.server import siblings
from tilewright.service.operations.access import keys
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.requests import KeyRequest

MANY = 40
"""Connections, each to one of two processes: that all go to one happens once in 2^39."""


@pytest.fixture
def two(fleet: Fleet) -> tuple[str, int]:
    """The address of two processes that demand keys, and the id of the process that keeps them."""
    port = free_port()
    variables = {"TILEWRIGHT_API_PROCESSES": "2", "TILEWRIGHT_REQUIRE_KEYS": "true"}
    parent = fleet.start_api(port, TILEWRIGHT_REQUESTS_PER_MINUTE="1200", **variables)
    url = f"http://127.0.0.1:{port}"
    fleet.until(lambda: (fleet.folder / "api.log").read_text().count("Application startup complete") == 2)
    fleet.until(lambda: answers(url))
    return url, parent.pid


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=PATIENCE_S).status_code == 200
    except httpx.TransportError:
        return False


def ask(url: str, token: str, path: str = "/v1/kernels", method: str = "GET") -> httpx.Response:
    """On a connection of its own."""
    return httpx.request(method, f"{url}{path}", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S)


def key(fleet: Fleet, name: str, scope: Scope = Scope.READ) -> str:
    with fleet.session() as session:
        return keys.create_key(session, KeyRequest(name=name, scope=scope)).token


def test_a_key_has_one_rate_and_one_end_in_all_processes(two, fleet):
    url, _ = two
    boss, ci = key(fleet, "boss", Scope.ADMIN), key(fleet, "ci")
    assert {ask(url, ci).status_code for _ in range(MANY)} == {200}  # by now both believe it
    assert ask(url, boss, "/v1/keys/ci", "DELETE").status_code == 200
    assert {ask(url, ci).status_code for _ in range(14)} == {401}
    assert {ask(url, ci).status_code for _ in range(MANY)} == {401, 429}  # fifteen wrong ones are counted together


@pytest.mark.exhaustive
def test_metrics_are_those_of_all_processes(two, fleet):
    url, _ = two
    token = key(fleet, "ci")
    for _ in range(MANY):
        ask(url, token)
    for _ in range(10):  # whichever process tells
        text = ask(url, token, "/metrics").text
        told = {
            (sample.name, sample.labels.get("route")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert told["tilewright_http_requests_total", "/v1/kernels"] == MANY
        assert told["tilewright_http_request_seconds_count", "/v1/kernels"] == MANY
        assert told["tilewright_build_info", None] == 1
        assert told["process_resident_memory_bytes", None] > 100 << 20  # of both


@pytest.mark.faults
def test_a_killed_process_is_replaced_and_the_other_answers_meanwhile(two, fleet):
    url, parent = two
    first, second = children_of(parent)
    os.kill(first, signal.SIGKILL)
    fleet.until(lambda: not is_running(first))
    assert {httpx.get(f"{url}/health", timeout=PATIENCE_S).status_code for _ in range(MANY)} == {200}
    assert second in fleet.until(lambda: len(now := children_of(parent)) == 2 and now)


@pytest.mark.faults
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_all_processes_end_with_the_one_that_keeps_them(two, fleet, how):
    _, parent = two
    children = children_of(parent)
    os.kill(parent, how)
    fleet.until(lambda: not any(is_running(pid) for pid in children))
    assert fleet.apis[0].wait(PATIENCE_S) == (0 if how == signal.SIGTERM else -how)
    fleet.apis.clear()


@pytest.mark.exhaustive
def test_a_second_service_on_the_address_is_refused(two, fleet):
    url, _ = two
    again = fleet.start_api(int(url.rpartition(":")[2]), TILEWRIGHT_API_PROCESSES="2")
    assert again.wait(PATIENCE_S) == 1


def test_buckets_of_two_processes_are_one(tmp_path, monkeypatch):
    monkeypatch.setenv(siblings.FOLDER, str(tmp_path))
    one, other = (Buckets(60, clock=lambda: 0.0, name="rates") for _ in range(2))
    allowed = [buckets.wait_s("ci") == 0 for _ in range(20) for buckets in (one, other)]
    assert sum(allowed) == 30
    assert other.wait_s("another") == 0


def test_names_beyond_the_places_push_out_the_least_recent(tmp_path, monkeypatch):
    monkeypatch.setenv(siblings.FOLDER, str(tmp_path))
    now = 0.0
    buckets = Buckets(2, clock=lambda: now, name="rates")
    assert buckets.wait_s("kept") == 0
    for number in range(6000):
        now += 1e-6
        buckets.wait_s(f"stranger {number}")
        assert buckets.wait_s("kept") > 0
