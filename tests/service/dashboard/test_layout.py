"""What holds for every page: its policy, its files, its words."""

import html
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from factories import CPU, H100, NEW, OLD, SHAPE, TILED_16
from test_demand_page import asked, lines
from test_fleet_page import failed_with_message
from test_schedule_page import REQUEST

from tilewright.service.dashboard import STATIC, formatting, packed_files
from tilewright.service.operations.requests import ScheduleRequest
from tilewright.service.operations.schedules import schedules
from tilewright.service.operations.transaction import transaction
from tilewright.service.store.models import JobState

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def paths(commit):
    """Every kind of page, with something on it."""

    def make(rows):
        best = rows.best(library_ms=0.9)
        study, problem, device = rows.study({"m": 8, "n": 8, "k": 8})
        job = rows.job(problem, device, study, JobState.RUNNING)
        rows.trial(study, job, TILED_16, 1.0)
        return best.job_id, job.id, study.id

    done, running, study = commit(make)
    return [
        *("/", "/results", "/jobs", "/kernels", "/kernels/gemm", "/device-models/nvidia-h200", "/schedules"),
        *(f"/jobs/{done}", f"/jobs/{running}", f"/studies/{study}", f"/studies/{study}/trials/0"),
    ]


def test_a_long_static_file_is_compressed_once_and_means_the_same(client, monkeypatch):
    path, packed = "/static/vendor/echarts.min.js", {"Accept-Encoding": "gzip"}
    first = client.get(path, headers=packed)
    monkeypatch.setattr(packed_files.gzip, "compress", None)
    again, plain = client.get(path, headers=packed), client.get(path, headers={"Accept-Encoding": "identity"})
    assert first.headers["content-encoding"] == again.headers["content-encoding"] == "gzip"
    assert first.content == again.content == plain.content == (STATIC / "vendor/echarts.min.js").read_bytes()
    assert int(again.headers["content-length"]) < len(plain.content) / 2
    assert (again.headers["content-type"], again.headers["vary"]) == (plain.headers["content-type"], "Accept-Encoding")
    known = client.get(path, headers=packed | {"If-None-Match": again.headers["etag"]})
    assert (known.status_code, known.content) == (304, b"")
    assert "content-encoding" not in client.get("/static/icon.svg", headers=packed).headers


def test_pages_name_static_files_with_their_hash_and_browsers_keep_those_for_good(client, page):
    paths = re.findall(r'(?:href|src)="(/static/[^"]+)"', page("/kernels/gemm/problem?shape=m%3D1,n%3D2,k%3D3"))
    assert len(paths) >= 6
    for path in paths:
        for packed in ({}, {"Accept-Encoding": "gzip"}):
            assert client.get(path, headers=packed).headers["cache-control"].endswith("immutable"), path
        assert client.get(path.partition("?")[0]).headers["cache-control"] == "no-cache"
        assert client.get(f"{path}0").headers["cache-control"] == "no-cache"  # of another release


def test_what_a_script_imports_is_kept_for_good_too(client, page):
    charts = re.search(r'"(/static/charts.js[^"]+)"', page("/compare"))[1]
    for packed in ({}, {"Accept-Encoding": "gzip"}):
        imported = re.findall(r' from "([^"]+)";', client.get(charts, headers=packed).text)
        assert len(imported) == 3
        assert all(client.get(path).headers["cache-control"].endswith("immutable") for path in imported)


def test_pages_hold_no_inline_script_or_style(client, page, paths):
    for path in paths:
        shown = page(path)
        assert " style=" not in shown
        assert "<style" not in shown
        assert "<script>" not in shown
        assert " on" not in "".join(part.split(">")[0] for part in shown.split("<button")[1:])
        policy = client.get(path).headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy


def test_head_has_the_head_of_every_page_and_no_body(client, paths):
    for path in (*paths, "/v1/jobs", "/static/style.css", "/nowhere"):
        given, head = client.get(path), client.request("HEAD", path)
        assert (head.status_code, head.content) == (given.status_code, b""), path
        assert head.headers["content-type"] == given.headers["content-type"]


def test_every_page_has_a_title_a_heading_and_a_way_to_its_content(page, paths):
    for path in paths:
        shown = page(path)
        assert shown.count("<h1>") == 1
        assert shown.count("<title>") == 1
        assert 'href="#main"' in shown
        ids = [part.split('"')[0] for part in shown.split(' id="')[1:]]
        assert len(ids) == len(set(ids)), path


def test_static_files_have_their_types(client):
    for name, kind in (("style.css", "text/css"), ("live.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        response = client.get(f"/static/{name}")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(kind)


@pytest.mark.parametrize("path", ["/static/../pages.py", "/static/%2e%2e/pages.py", "/static/nothing.css"])
def test_only_static_files_are_served(client, path):
    assert client.get(path).status_code == 404


def test_templates_and_styles_name_no_other_host():
    own = [file for file in Path(STATIC).iterdir() if file.is_file()]
    for file in [*own, *(Path(STATIC).parent / "templates").iterdir()]:
        text = file.read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "://" not in text, file


def test_templates_hold_no_code_that_htmx_would_evaluate():
    """The content policy admits none; a filter of a trigger (`click[…]`) would be code too."""
    for file in (Path(STATIC).parent / "templates").iterdir():
        text = file.read_text(encoding="utf-8")
        assert "hx-on" not in text, file
        assert not re.search(r'hx-[a-z:]+="\s*(js|javascript):', text), file
        assert not re.search(r'hx-trigger="[^"{]*\[', text), file


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "\N{EN DASH}"),
        (0.000512, "0.000512"),
        (0.01234, "0.0123"),
        (1.5, "1.50"),
        (51.1, "51.1"),
        (51100, "51,100"),
        (7.66e32, f"7.66\N{NO-BREAK SPACE}{formatting.TIMES}\N{NO-BREAK SPACE}10³²"),
    ],
)
def test_numbers_have_three_digits(value, shown):
    assert formatting.number(value) == shown


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (formatting.kernel_time(0.0000041), "4.10 ns"),
        (formatting.kernel_time(0.0894), "89.4 µs"),
        (formatting.kernel_time(0.99999), "1.00 ms"),
        (formatting.kernel_time(1234.5), "1.23 s"),
        (formatting.kernel_time(None), "\N{EN DASH}"),
        (formatting.arithmetic_rate(51_100), "51.1 TFLOP/s"),
        (formatting.arithmetic_rate(0.0), "0 MFLOP/s"),
        (formatting.bandwidth(910), "910 GB/s"),
        (formatting.bandwidth(3350), "3.35 TB/s"),
    ],
)
def test_figures_have_the_unit_that_suits_their_size(shown, expected):
    assert shown == expected.replace(" ", "\N{NO-BREAK SPACE}")


def test_a_column_of_times_shares_unit_and_decimals():
    shown = formatting.time_column([0.0123, None, 1.5])
    said = [shown(value).replace("\N{NO-BREAK SPACE}", " ") for value in (0.0123, None, 1.5)]
    assert said == ["12.3 µs", "\N{EN DASH}", "1,500.0 µs"]


@pytest.mark.parametrize(
    ("ago_s", "said"),
    [(3, "3 s ago"), (61, "1 min ago"), (7300, "2 h ago"), (9 * 86400, "9 days ago"), (-90, "in 1 min")],
)
def test_ages_are_short(ago_s, said):
    assert f">{said}<" in formatting.age(NOW - timedelta(seconds=ago_s), NOW)


@pytest.mark.parametrize(("seconds", "said"), [(4.21, "4.2 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")])
def test_durations_are_short(seconds, said):
    assert formatting.duration(seconds) == said


@pytest.mark.parametrize(
    ("size", "said"), [(0, "0 bytes"), (512, "512 bytes"), (49_152, "48.0 KiB"), (2**34, "16.0 GiB")]
)
def test_sizes_are_short(size, said):
    assert formatting.binary_size(size) == said


def test_a_server_without_keys_asks_for_none(page):
    shown = page("/sign-in")
    assert "does not require access keys" in shown
    assert 'name="key"' not in shown


UNTOLD = (
    *("B over A", "B / A", "silent", "correct up to", "Bests that were", "Perhaps", "± ", "jobs waiting"),
    *("time_ms", "expected_loss", "library_ms", "target_ms"),
)
"""Words that a stranger did not understand, and names of fields."""
SHOWN = re.compile(r">([^<>{}]+)<")


def test_pages_have_no_words_that_only_we_understand():
    """In what templates show, without their code and attributes."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in (STATIC.parent / "templates").glob("*.html")}
    said = {name: " ".join(SHOWN.findall(re.sub(r"{[%#].*?[%#]}|{{.*?}}", "", text))) for name, text in texts.items()}
    assert [(name, word) for name, text in said.items() for word in UNTOLD if word in text] == []
    legend = texts["overview.html"]
    assert all(match in legend for match in ("range", "predicted", "nearest", "transferred", "estimated", "default"))
    assert [words in "".join(said.values()) for words in ("Latest changes", "offline", "relative to A")] == [True] * 3


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
