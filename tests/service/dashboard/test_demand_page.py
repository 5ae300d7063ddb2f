"""The page of demand: what is asked for and not tuned, how it is answered meanwhile, and what tunes it."""

import html
import json
import re

import pytest
from factories import H100, SHAPE
from waiting import until

from tilewright.service.operations.answers import ProblemAnswer
from tilewright.service.operations.best_cache.current_answers import ComputedAnswers
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.answers import answered
from tilewright.service.operations.demand.demand import RequestedProblem
from tilewright.service.operations.requests import JobRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models


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
