"""The page of demand: what is asked for and not tuned, how it is answered meanwhile, and what tunes it."""

import html
import json
import re
from datetime import timedelta

import pytest
from factories import H100, NEW, OLD, SHAPE
from sqlalchemy import func
from test_matrix_page import add_demand
from waiting import until

from tilewright.service.operations.answers import ProblemAnswer
from tilewright.service.operations.best_cache.current_answers import ComputedAnswers
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.answers import answered
from tilewright.service.operations.demand.demand import RequestedProblem
from tilewright.service.operations.requests import JobRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.models import JobState


def asked(rows, shape, times=1, device_model="nvidia-h200", kernel="gemm"):
    """Counts a question, as the API does for an answer that is not exact."""
    options = {option.name: option.default for option in demand.catalogue().get(kernel).options}
    problem = ProblemAnswer(kernel=kernel, shape=shape, dtype="float32", options=options)
    demand.count(rows.session, {RequestedProblem.of(problem, device_model): times})


def lines(shown: str) -> list[str]:
    """The text of each row."""
    _, _, rest = shown.partition("<tbody>")
    body = rest.partition("</tbody>")[0]
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in body.split("<tr>")[1:]]


def test_without_demand_it_says_how_to_ask(page, commit):
    shown = page("/demand")
    assert "there were no requests yet" in shown
    assert "curl" in shown
    assert "Tune this" not in shown
    commit(lambda rows: rows.device())
    assert "Show all" in page("/demand?kernel=gemm")


@pytest.mark.usefixtures("computing")
def test_most_asked_for_comes_first_with_the_answer_it_gets_meanwhile(page, commit):
    def make(rows):
        rows.best(SHAPE)
        rows.device(H100)
        asked(rows, SHAPE | {"m": 512}, 3)
        asked(rows, SHAPE | {"m": 300}, 7, "nvidia-h100")
        asked(rows, {"m": 64, "n": 10}, 1, kernel="softmax")

    commit(make)
    until(lambda: "being computed" not in page("/demand"))
    shown = page("/demand")
    first, second, third = lines(shown)
    assert first.startswith("gemm m=300,n=100,k=784 float32 nvidia-h100 7\N{MULTIPLICATION SIGN}")
    assert "⇄ transferred" in first
    assert second.startswith("gemm m=512,n=100,k=784 float32 nvidia-h200 3\N{MULTIPLICATION SIGN}")
    assert "→ nearest" in second
    assert "softmax" in third
    assert "○ default" in third
    assert re.search(r"\d+ s ago", first)
    assert 'href="/v1/demand?format=csv"' in shown
    assert 'hx-post="/v1/demand:tune"' in shown
    only = page("/demand?kernel=softmax")
    assert len(lines(only)) == 1
    assert re.findall(r'form="each" name="(\w+)" value="(\w+)" data-query', only) == [("kernel", "softmax")]
    assert len(lines(page("/demand?device_model=nvidia-h100"))) == 1


def test_form_lies_outside_what_is_refreshed_and_its_filter_inside(page, commit):
    commit(lambda rows: (rows.device(), asked(rows, SHAPE)))
    before, live = page("/demand?kernel=gemm").split('<div id="demand"')
    assert '<form id="each"' in before
    assert "data-pointer" not in live
    assert 'form="each" name="kernel"' in live


def test_button_of_a_row_sends_a_job_that_the_api_takes_and_then_leads_to_it(client, page, commit):
    def make(rows):
        rows.device()
        asked(rows, SHAPE)

    commit(make)
    body = json.loads(html.unescape(re.search(r'data-problem="([^"]+)"', page("/demand"))[1]))
    assert JobRequest(**body, budget={"trials": 5}).shape == SHAPE
    made = client.post("/v1/jobs", json=body | {"budget": {"trials": 5}, "priority": 5})
    assert made.status_code == 202, made.text
    shown = page("/demand")
    assert f'href="/jobs/{made.json()["id"]}"' in shown
    assert "data-problem" not in shown


@pytest.mark.in_turn(3)
@pytest.mark.usefixtures("computing")
def test_answers_from_memory_are_those_of_the_database(client, commit):
    def make(rows):
        rows.best(SHAPE)
        asked(rows, SHAPE | {"m": 512}, 3)
        asked(rows, SHAPE | {"m": 8}, 2)
        asked(rows, {"m": 64, "n": 10}, 1, kernel="softmax")

    commit(make)

    def found(known=None):
        with transaction() as session:
            return answered(session, demand.demand(session).items, known)

    assert [row.match for row in found()] == ["nearest", "estimated", None]  # a default is looked for elsewhere
    assert [row.pending for row in found()] == [False, False, True]
    until(lambda: [row.match for row in found(client.app.state.best)] == ["nearest", "estimated", "default"])
    with transaction() as session:
        rows = demand.demand(session).items
    known = ComputedAnswers([(row.problem, row.device_model) for row in rows])
    assert found(known) == found(client.app.state.best)


def test_what_nothing_answers_any_more_says_why_and_offers_no_button(page, commit):
    def make(rows):
        rows.device()
        asked(rows, SHAPE)
        rows.session.query(models.Demand).one().kernel = "gone"

    commit(make)
    shown = page("/demand")
    assert "✗ There is no kernel &#39;gone&#39;" in lines(shown)[0]
    assert "data-problem" not in shown


def test_further_pages_have_the_rest(page, commit):
    commit(lambda rows: (rows.device(), [asked(rows, SHAPE | {"m": n}, n) for n in range(1, 28)]))
    shown = page("/demand")
    more = re.search(r'href="([^"]+)" rel="next"', shown)[1].replace("&amp;", "&")
    assert len(lines(shown)) == 25
    assert [line.split()[1] for line in lines(page(more))] == ["m=2,n=100,k=784", "m=1,n=100,k=784"]


def sized(m: int) -> dict[str, int]:
    return SHAPE | {"m": m}


@pytest.fixture
def filled(commit):
    """One problem for each reason, one with two of them, and one that needs nothing."""

    def make(rows):
        rows.best(sized(100), 1.0, library_ms=0.8)  # behind: 20 % may be saved
        rows.best(sized(200), 1.0, environment=OLD)
        rows.best(sized(200), 2.0, environment=NEW, library_ms=4.0)  # regressed: 50 %
        rows.best(sized(300), 1.0, source="// before", library_ms=2.0)  # stale
        rows.best(sized(400), 1.0, library_ms=2.0)
        rows.best(sized(500), 1.0, environment=OLD, model=H100)
        rows.best(sized(500), 1.3, environment=NEW, model=H100, library_ms=1.0)  # regressed and behind
        study, problem, device = rows.study(sized(600))
        rows.job(problem, device, study, JobState.FAILED).error = "the worker died"
        add_demand(rows, sized(700), 37)
        add_demand(rows, sized(600), 2)

    commit(make)


def items(client, **query) -> list[dict]:
    return client.get("/v1/attention", params=query).json()["items"]


def reasons(client, **query) -> dict[int, list[str]]:
    """The reasons by the size that names the problem, without `improvable`, in the order of the list."""
    return {
        item["problem"]["shape"]["m"]: [r["kind"] for r in item["reasons"] if r["kind"] != "improvable"]
        for item in items(client, **query)
    }


def test_each_reason_is_found_and_the_most_worthwhile_comes_first(client, filled):
    assert reasons(client, limit=200) == {
        700: ["requested"],
        200: ["regressed"],
        500: ["regressed", "behind"],
        100: ["behind"],
        600: ["failing", "requested"],
        300: ["stale"],
        400: [],
    }
    ranked = [item["problem"]["shape"]["m"] for item in items(client)]
    assert ranked[:5] == [700, 200, 500, 100, 600]
    found = client.get("/v1/attention").json()
    assert found["total"] == 7
    assert {kind: count for kind, count in found["counts"].items() if kind != "improvable"} == {
        "failing": 1,
        "regressed": 2,
        "behind": 2,
        "requested": 2,
        "stale": 1,
    }


@pytest.mark.in_turn(2)
@pytest.mark.usefixtures("computing")
def test_a_reason_is_a_sentence_and_the_gain_is_told_where_it_is_known(client, filled):
    until(lambda: "being computed" not in str(items(client)))
    by_size = {item["problem"]["shape"]["m"]: item for item in items(client)}
    said = {m: [reason["text"] for reason in item["reasons"]] for m, item in by_size.items()}
    assert said[100][0] == "cuBLAS 13.0 takes 20 % less time"
    assert said[200][0] == "takes 100 % longer than the best before it"
    assert said[300][0] == "source changed since it was measured"
    assert said[600][0] == "its last job failed: the worker died"
    assert said[700][0] == "37 times; answered with the nearest shape's configuration"
    gains = {m: by_size[m]["expected_gain"] for m in (100, 200, 300, 500)}
    assert gains == {100: pytest.approx(0.2), 200: pytest.approx(0.5), 300: None, 500: pytest.approx(0.3 / 1.3)}
    assert by_size[700]["weight"] == pytest.approx(37 * 0.05)


@pytest.mark.in_turn(2)
def test_filters_and_pages_hold_the_order(client, filled):
    assert list(reasons(client, kind="behind")) == [500, 100]
    assert list(reasons(client, device_model="nvidia-h100")) == [500]
    assert reasons(client, kernel="softmax") == {}
    whole = [item["problem"] for item in items(client)]
    first = client.get("/v1/attention", params={"limit": 3}).json()
    rest = client.get("/v1/attention", params={"limit": 200, "cursor": first["next_cursor"]}).json()
    assert [item["problem"] for item in (*first["items"], *rest["items"])] == whole
    assert client.get("/v1/attention", params={"cursor": "x!"}).status_code == 422
    assert client.get("/v1/attention", params={"format": "csv"}).text.count("\n") == len(whole) + 1


def test_a_failure_that_a_later_job_made_good_is_none(client, commit, filled):
    def make(rows):
        best = rows.best(sized(800), 1.0, library_ms=2.0)
        study, problem, device = rows.study(sized(900))
        for state, hours in ((JobState.FAILED, 2), (JobState.DONE, 1)):
            job = rows.job(problem, device, study, state)
            job.created_at = func.now() - timedelta(hours=hours)
        failed = rows.job(rows.session.get_one(models.Problem, best.problem_id), device, None, JobState.FAILED)
        failed.created_at = func.now() + timedelta(minutes=1)

    commit(make)
    assert set(reasons(client, kind="failing")) == {600, 800}


def test_the_page_shows_reasons_counts_and_buttons(page, filled):
    shown = page("/attention")
    assert re.search(r'href="/attention\?kind=behind"[^>]*>.*? 2 behind</a>', shown)
    row = next(part for part in shown.split("<tr>") if "m=500,n=100,k=784" in part)
    assert "regressed</b></span>: takes 30 % longer than the best before it" in row
    assert "behind</b></span>: cuBLAS 13.0 takes 23 % less time" in row
    sent = json.loads(html.unescape(re.search(r'data-problem="([^"]+)"', row)[1]))
    assert (sent["shape"]["m"], sent["device_model"]) == (500, "nvidia-h100")
    assert "Nothing that matches" in page("/attention?kernel=softmax")


def test_where_nothing_needs_attention_the_page_says_so(page, commit):
    commit(lambda rows: rows.device())
    assert "Nothing needs attention" in page("/attention")


def test_one_call_tunes_the_most_worthwhile_that_a_worker_serves(client, page, commit, filled):
    def falls_silent(rows):
        device = rows.session.query(models.Device).filter_by(uuid="GPU-nvidia-h100").one()
        device.heartbeat_at = func.now() - timedelta(seconds=10 * settings().stalled_after_s)

    commit(falls_silent)
    made = client.post("/v1/attention:tune", params={"top": 3}, json={"budget": {"trials": 7}})
    assert made.status_code == 202
    tuned = made.json()["items"]
    assert [item["problem"]["shape"]["m"] for item in tuned] == [700, 200, 100]
    again = client.post("/v1/attention:tune", params={"top": 3}, json={"budget": {"trials": 7}}).json()["items"]
    assert [(i["job_id"], i["is_new"]) for i in again] == [(i["job_id"], False) for i in tuned]
    behind = client.post("/v1/attention:tune", params={"kind": "stale"}, json={}).json()["items"]
    assert [item["problem"]["shape"]["m"] for item in behind] == [300]
    shown = page("/attention")
    assert f'href="/jobs/{tuned[0]["job_id"]}">its job</a>' in shown
    assert "no worker with a nvidia-h100 is running" in shown


def test_a_key_that_may_only_read_gets_no_buttons(as_key, filled):
    shown = as_key(Scope.READ, "/attention").text
    assert "with a key of the scope tune" in shown
    assert "data-problem" not in shown


def test_an_empty_installation_is_told_how_to_start_and_not_that_all_is_well(page):
    shown = page("/attention")
    assert "No device has been registered yet" in shown
    assert "Nothing needs attention" not in shown
