"""Tables are sorted by any of their columns, by links that keep the filters."""

import html
import re

import pytest
from factories import CPU, H100, NEW, OLD, SHAPE
from test_demand_page import asked, lines
from test_fleet_page import failed_with_message
from test_schedule_page import REQUEST

from tilewright.service.operations.requests import ScheduleRequest
from tilewright.service.operations.schedules import schedules
from tilewright.service.operations.transaction import transaction
from tilewright.service.store.models import JobState

PAGES = (
    "/?kernel=gemm&options=trans_b%3Dfalse",
    "/results?kernel=gemm",
    "/device-models/nvidia-h200?kernel=gemm",
    "/attention?kernel=gemm",
    "/demand?kernel=gemm",
    "/jobs?search=gemm",
    "/jobs/{job}",
    "/fleet",
    "/kernels",
    "/kernels/gemm",
    "/webhooks/ci",
    "/compare?kernel=gemm&a=nvidia-h200&b=nvidia-h100&show=all",
    "/kernels/gemm/problem?shape=m=256,n=100,k=784",
)
NOT_SORTED = ("Action", "drawn", "Changed", "Parameter", "Meaning", "Values")
"""Headings of buttons and drawings, of what changed beside its verdict, and of a declaration, which has its order."""

SHORT_LIST = '<section aria-labelledby="jobs-title">'
"""Of jobs on the overview: its headings lead to the whole list."""

HISTORY = 'id="published"'
"""Of a problem: the short tables around it have the order of the newest."""

LIVE, SORTED = re.compile(r'hx-get="([^"]+)" hx-select'), re.compile(r'<th[^>]* aria-sort="[^"]+"[^>]*>')
HEADING = re.compile(r'<th scope="col"([^>]*)>(.*?)</th>', re.DOTALL)


def sorted_tables(shown: str) -> str:
    """The part of a page with tables that can be sorted."""
    _, is_problem, history = shown.partition(HISTORY)
    return history.partition("</table>")[0] if is_problem else shown.partition(SHORT_LIST)[0]


@pytest.fixture
def filled(commit):
    """Two rows and more for every table; the id of a job."""

    def make(rows):
        best = rows.best(time_ms=0.5, library_ms=0.75, environment=OLD)
        rows.best(time_ms=0.7, library_ms=0.75, environment=NEW)
        rows.best(SHAPE | {"m": 16}, 0.25)
        rows.best(model=H100, library_ms=0.5)
        rows.best(SHAPE | {"m": 16}, 0.5, model=H100)
        rows.best(model=CPU)
        rows.job(*rows.study(SHAPE | {"m": 11})[1:], None, JobState.QUEUED)
        for m, times in ((300, 7), (40, 3), (5, 5)):
            asked(rows, SHAPE | {"m": m}, times)
        asked(rows, {"m": 64, "n": 10}, 1, kernel="softmax")  # of which nothing is known
        failed_with_message(rows)
        schedules.create_schedule(rows.session, ScheduleRequest.model_validate(REQUEST))
        return str(best.job_id)

    return commit(make)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("followed", [pytest.param("all", marks=pytest.mark.exhaustive), "ends"])
def test_every_heading_sorts_its_table_and_keeps_the_rest_of_the_address(page, filled, followed):
    """Every heading is a link; the first and the last of a page are followed, nightly all."""
    for path in PAGES:
        shown = sorted_tables(page(path.format(job=filled)))
        headings = [
            (rest, text) for rest, text in HEADING.findall(shown) if not any(map(text.__contains__, NOT_SORTED))
        ]
        assert headings, path
        for place, (attributes, text) in enumerate(headings):
            link = re.search(r'<a href="([^"]+)"', text)
            assert link, (path, text)
            address = html.unescape(link[1]).partition("#")[0]
            assert all(map(address.__contains__, filter(None, path.partition("?")[2].split("&")))), address
            if followed == "ends" and 0 < place < len(headings) - 1:
                continue
            whole = page(address)
            for source in {html.unescape(one) for one in LIVE.findall(whole)}:  # asked for again, it keeps its order
                if source.partition("?")[0] == address.partition("?")[0]:
                    assert SORTED.findall(page(source)) == SORTED.findall(whole), source
            again = sorted_tables(whole)
            turned = [now for now, other in HEADING.findall(again) if plain(other) == plain(text)]
            assert any("aria-sort" in now for now in turned), (path, text)
            assert turned != [attributes] or "aria-sort" not in attributes, (path, text)
            assert again.count('scope="row"') == shown.count('scope="row"'), (path, text)


def plain(text: str) -> str:
    return re.sub(r"<[^>]+>|[▲▼\s]", "", text)


def test_demand_is_sorted_by_what_is_stored_and_by_its_answers(page, filled):
    def sizes(path):
        return [int(re.search(r"m=(\d+)", line)[1]) for line in lines(page(path))]

    assert sizes("/demand") == [300, 5, 40, 64]
    assert sizes("/demand?sort=problem") == [5, 40, 300, 64]
    assert sizes("/demand?sort=-problem") == [64, 300, 40, 5]
    assert sizes("/demand?sort=answered")[-1] == sizes("/demand?sort=-answered")[0] == 64
    assert "must be one of requests, problem, model, last, answered" in page("/demand?sort=colour", 422)


def test_the_matrix_is_sorted_by_the_column_of_a_device_model(page, filled):
    def rows(path):
        return re.findall(r'<th scope="row"><a href="/kernels/gemm/problem[^>]+>(\d+) ', page(path))

    assert rows("/?kernel=gemm&order=-size")[::-1] == rows("/?kernel=gemm")
    assert rows("/?kernel=gemm&order=nvidia-h100&colour=default")[:2] in (["16", "256"], ["256", "16"])
    with_library_first = rows("/?kernel=gemm&order=nvidia-h100")
    assert with_library_first[0] == rows("/?kernel=gemm&order=-nvidia-h100")[0] == "256"  # the other has no library
    assert "must be one of size" in page("/?kernel=gemm&order=nvidia-h300", 422)


def test_a_kernel_lists_as_many_results_as_there_are(page, filled):
    assert re.search(r'href="/results\?kernel=gemm">6</a>', page("/kernels?sort=-results"))


def test_schedules_are_sorted_by_links_above_them(page, filled):
    later = REQUEST | {"name": "afterwards", "cron": "0 0 0 1 1 *"}
    with transaction() as session:
        schedules.create_schedule(session, ScheduleRequest.model_validate(later))
    names = lambda path: re.findall(r'id="schedule-name-\d+">(\w+)', page(path))  # noqa: E731
    assert names("/schedules") == ["afterwards", "nightly"]
    assert names("/schedules?sort=next+due") == ["nightly", "afterwards"]
