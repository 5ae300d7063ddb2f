"""The client and the launcher over a real connection: documents, results, schedules, configurations."""

import json
import time

import numpy as np
import pytest
from factories import TILED_16, TILED_32, Rows

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.problem import Limits
from tilewright.service.client import Client
from tilewright.service.client.errors import ApiProblemError, ApiUnreachableError
from tilewright.service.client.events import JobEvent, parse_events
from tilewright.service.client.exchange import ExchangeClient
from tilewright.service.operations.access import keys
from tilewright.service.operations.requests import (
    BudgetRequest,
    DemandJobs,
    KeyRequest,
    ScheduleChanges,
    ScheduleRequest,
)
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views.attention import AttentionFilter
from tilewright.service.operations.views.attention_kind import AttentionKind
from tilewright.service.settings import settings
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.runtime import Runtime, ServiceWarning, UntunedWarning
from tilewright.tuner.runtime.choice import TargetDevice
from tilewright.tuner.runtime.known.answers import AnswerCache


@pytest.fixture
def exchange(server):
    with ExchangeClient(server.url) as client:
        yield client


def test_documents_come_and_go(exchange, registered):
    document = b"".join(exchange.export(trials=True, kernel=None))
    assert json.loads(document)["studies"] == []
    answer = exchange.import_document(document, {"origin": "lab-7", "dry_run": True})
    assert (answer.origin, answer.dry_run, answer.best) == ("lab-7", True, 0)
    assert json.loads(exchange.bundle(registered))["device_model"]["slug"] == registered


def test_refusals_and_silence_are_errors_of_the_client(exchange, registered):
    with pytest.raises(ApiProblemError, match="study"):
        list(exchange.export(format="t4", study_id=999))
    with pytest.raises(ApiProblemError, match="format"):
        exchange.import_document(b"{}", {})
    with ExchangeClient("http://127.0.0.1:1") as nobody:
        with pytest.raises(ApiUnreachableError):
            list(nobody.export())
        with pytest.raises(ApiUnreachableError):
            nobody.import_document(b"{}", {})


def test_the_calls_reach_their_addresses(client):
    assert client.results(stale=True, improvable=False, kernel="gemm").items == []
    assert client.demand(kernel="gemm", limit=3).items == []
    assert client.tune_demand(DemandJobs(budget=BudgetRequest(trials=3)), top=2) == []
    stale = AttentionFilter(AttentionKind.STALE, kernel="gemm")
    assert (client.attention(stale, limit=3).items, client.attention().total) == ([], 0)
    assert client.tune_attention(DemandJobs(budget=BudgetRequest(trials=3)), stale, top=2) == []
    with pytest.raises(ApiProblemError) as refused:
        client.retract(999, "wrong")
    assert refused.value.status == 404
    with pytest.raises(ApiProblemError):
        client.comparisons(999, verdict="worse")
    with pytest.raises(ApiProblemError):
        client.create_schedule(ScheduleRequest(name="x", cron="0 0 3 * * *", target="stale"))


NIGHTLY = ScheduleRequest(
    name="nightly",
    cron="0 30 2 * * *",
    problems=[{"kernel": "gemm", "shape": {"m": 8, "n": 8, "k": 8}}],
    budget=BudgetRequest(trials=3),
)


def test_the_life_of_a_schedule(client, registered):
    made = client.create_schedule(NIGHTLY)
    assert (made.name, made.device_model) == ("nightly", registered)
    assert client.create_schedule(NIGHTLY) == made
    assert client.schedules() == [made]
    assert client.set_enabled(made.id, enabled=False).next_fires == []
    (job,) = client.run_now(made.id)
    assert client.schedule(made.id).last_jobs == [job.id]
    assert client.set_enabled(made.id, enabled=True).next_fires == made.next_fires
    edited = client.edit_schedule(made.id, ScheduleChanges(budget=BudgetRequest(trials=4)))
    assert (edited.budget["trials"], edited.problems, edited.cron) == (4, made.problems, made.cron)
    client.delete_schedule(made.id)
    assert client.schedules() == []
    with pytest.raises(ApiProblemError, match="schedule"):
        client.run_now(made.id)


@pytest.fixture
def limited(configured, monkeypatch, request):
    """A client whose key may send thirty requests at once and then one a second."""
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    monkeypatch.setenv("TILEWRIGHT_REQUESTS_PER_MINUTE", "60")
    settings.cache_clear()
    with transaction() as session:
        token = keys.create_key(session, KeyRequest(name="ci", scope="read")).token
    server = request.getfixturevalue("server")
    with Client(server.url, key=token) as client:
        yield client
    monkeypatch.undo()
    settings.cache_clear()


def test_too_many_requests_are_spread_and_all_answered(limited):
    waited_s = 0.0
    for _ in range(60):
        began = time.monotonic()
        limited.device_models()
        waited_s = max(waited_s, time.monotonic() - began)
        if waited_s > 0.9:  # the first pause of a retry alone is 0.2 s
            return
    pytest.fail("never told to wait")


def test_events_carry_their_id_name_and_data():
    lines = ["retry: 1000", "", "id: 7", "event: trial", 'data: {"number": 3}', "", ": still there", ""]
    assert list(parse_events(lines)) == [JobEvent("7", "trial", {"number": 3})]


def test_data_over_several_lines_is_joined():
    lines = ["event:state", 'data: {"state":', 'data: "done"}', ""]
    (event,) = parse_events(lines)
    assert event.data == {"state": "done"}
    assert event.is_last


def test_an_event_cut_off_by_a_broken_connection_is_not_handed_out():
    assert list(parse_events(["id: 1", "event: state", 'data: {"state": "done"}'])) == []


def test_the_id_stays_until_another_comes():
    lines = ["id: 4", 'data: {"a": 1}', "", 'data: {"b": 2}', ""]
    assert [event.id for event in parse_events(lines)] == ["4", "4"]


def test_a_running_state_is_not_the_last():
    assert not JobEvent("1", "state", {"state": "running"}).is_last
    assert not JobEvent("1", "trial", {"state": "done"}).is_last


LIMITS = Limits((0, 0), multiprocessors=2, memory_bytes=1 << 30, features=frozenset())


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda kernel: kernel.name)
def test_the_service_answers_for_every_kernel(server, registered, tmp_path, kernel):
    runtime = Runtime(url=server.url, answers=AnswerCache(tmp_path), service_limit_s=20)
    with pytest.warns(UntunedWarning):
        found = runtime.choose(kernel, kernel.problem(kernel.example_shape), TargetDevice(registered, LIMITS))
    assert (found.origin, found.match) == ("service", "default")


def test_a_device_model_that_the_service_does_not_know_is_no_fault(server, registered, tmp_path):
    runtime = Runtime(url=server.url, answers=AnswerCache(tmp_path), service_limit_s=20)
    gemm = catalogue().get("gemm")
    with pytest.warns(UntunedWarning):
        found = runtime.choose(gemm, gemm.problem({"m": 8, "n": 8, "k": 8}), TargetDevice("nobody-has-it", LIMITS))
    assert found.origin == "default"


TIMES = {TILED_16: {1: 1.0, 64: 2.0}, TILED_32: {1: 1.5, 64: 1.5}}
SPANS = [(1, 8, TILED_16), (9, 64, TILED_32)]


@pytest.fixture
def tabled(configured, server):
    """The service has gemm's table of n = 24, k = 40 for this machine's CPU device."""
    cpu = CpuDevice()
    with transaction() as session:
        Rows(session).table(
            {"m": "1..64", "n": 24, "k": 40}, SPANS, TIMES, model=cpu.model, environment=cpu.environment
        )
    cpu.close()
    return server


def test_a_launcher_of_every_size_takes_the_services_table(tabled, tmp_path):
    runtime = Runtime(url=tabled.url, answers=AnswerCache(tmp_path), service_limit_s=20, shipped_records=False)
    launch = runtime.best("gemm", n=24, k=40, device="cpu")
    a, b = np.ones((12, 40), np.float32), np.ones((40, 24), np.float32)
    np.testing.assert_array_equal(launch(a, b, np.empty((12, 24), np.float32)), np.full((12, 24), 40, np.float32))
    assert [(one.high, one.choice.configuration) for one in launch.ranges().ranges] == [(8, TILED_16), (64, TILED_32)]
    tabled.stop()
    kept = Runtime(url=tabled.url, answers=AnswerCache(tmp_path), service_limit_s=20, shipped_records=False)
    assert len(kept.best("gemm", n=24, k=40, device="cpu").ranges()) == 2  # for a day nobody asks again
    with pytest.warns(ServiceWarning), pytest.warns(UntunedWarning):
        other = kept.best("gemm", n=25, k=40, device="cpu").ranges()
    assert {one.choice.origin for one in other.ranges} == {"default"}


def test_one_size_from_a_table_is_checked_at_its_first_use_as_its_code_is_another(tabled, tmp_path):
    runtime = Runtime(url=tabled.url, answers=AnswerCache(tmp_path), service_limit_s=20, shipped_records=False)
    gemm = catalogue().get("gemm")
    cpu = CpuDevice()
    place = TargetDevice(cpu.model.slug, cpu.model.limits)
    cpu.close()
    problem = gemm.problem({"m": 12, "n": 24, "k": 40})
    choice = runtime.choose(gemm, problem, place)
    assert (choice.match, choice.configuration) == ("range", TILED_32)
    assert runtime.first_use(gemm, problem, place, choice) is not None
    family = Family.of(gemm, {"m": "1..64", "n": 24, "k": 40})
    assert runtime.first_use(gemm, family.largest, place, choice) is None


def test_rows_that_must_not_depend_on_each_other_have_a_table_of_their_own(tabled, tmp_path):
    cpu = CpuDevice()
    with transaction() as session:
        more = {"model": cpu.model, "environment": cpu.environment, "options": {"batch_invariant": True}}
        Rows(session).table({"m": "1..64", "n": 24, "k": 40}, [(1, 64, TILED_32)], TIMES, **more)
    cpu.close()
    runtime = Runtime(url=tabled.url, answers=AnswerCache(tmp_path), service_limit_s=20, shipped_records=False)
    (only,) = runtime.best("gemm", n=24, k=40, batch_invariant=True, device="cpu").ranges().ranges
    assert (only.choice.origin, only.choice.configuration) == ("table", TILED_32)
    assert len(runtime.best("gemm", n=24, k=40, device="cpu").ranges()) == 2
