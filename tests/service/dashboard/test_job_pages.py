"""Pages of jobs: how far they are, what they found, and how a page that is open learns of it."""

import re
from urllib.parse import urlencode

import pytest
from factories import NAIVE, SHAPE, TILED_16, TILED_32

from tilewright.service.dashboard.charts.small import Bar, Curve
from tilewright.service.store.models import JobState, TuningJob
from tilewright.tuner.outcome import Outcome


def running(rows, *, trials=()):
    study, problem, device = rows.study(SHAPE | {"m": 7})
    job = rows.job(problem, device, study, JobState.RUNNING, len(trials))
    for configuration, time_ms in trials:
        outcome = Outcome.MEASURED if time_ms else Outcome.COMPILE_FAILED
        rows.trial(study, job, configuration, time_ms, outcome=outcome)
    return job.id


def test_only_pages_with_an_open_job_ask_again_without_scripts(page, commit):
    commit(lambda rows: rows.best())
    assert "http-equiv" not in page("/")
    assert "http-equiv" not in page("/jobs")
    commit(running)
    assert '<noscript><meta http-equiv="refresh"' in page("/")
    assert '<noscript><meta http-equiv="refresh"' in page("/jobs")


def test_running_job_shows_progress_best_and_marked_failures(page, commit):
    job_id = commit(lambda rows: running(rows, trials=[(TILED_16, 2.0), (NAIVE, None), (TILED_32, 0.5)]))
    shown = page(f"/jobs/{job_id}")
    assert f'hx-sse:connect="/v1/jobs/{job_id}/events"' in shown
    assert '<progress value="3" max="10"' in shown
    assert '<b class="figure">500\N{NO-BREAK SPACE}µs</b>' in shown
    assert "compile failed" in shown
    assert "2 measured" in shown
    assert re.findall(r'data-label="Trial"><a href="[^"]+">(\d+)', shown) == ["2", "1", "0"]


def test_curve_takes_only_improvements_and_goes_on_to_the_last_trial(page, commit):
    job_id = commit(lambda rows: running(rows, trials=[(NAIVE, None), (TILED_16, 2.0), (TILED_32, 0.5)]))
    shown = page(f"/jobs/{job_id}")
    assert "From 2,000\N{NO-BREAK SPACE}µs at the first measured trial to 500\N{NO-BREAK SPACE}µs after 3." in shown
    assert Curve.of([(2, 2.0), (3, 0.5)], 3).path in shown


def test_what_became_of_an_action_is_said_outside_of_what_is_refreshed(page, commit):
    job_id = commit(running)
    before, live = page(f"/jobs/{job_id}").split('<div id="job"')
    assert 'id="action-result"' in before
    assert 'id="action-result"' not in live


def test_queued_job_says_what_it_waits_for(page, commit):
    def queued(rows):
        _, problem, device = rows.study()
        return rows.job(problem, device, None, JobState.QUEUED, 0).id

    shown = page(f"/jobs/{commit(queued)}")
    assert "waits for a worker of nvidia-h200" in shown
    assert "Cancel" in shown


def test_ended_job_shows_its_finals_and_is_not_followed(page, commit):
    def done(rows):
        study, problem, device = rows.study()
        job = rows.job(problem, device, study)
        library = {"name": "cuBLAS 13.0", "time_ms": 0.4, "ci_ms": [0.4, 0.4], "faster": True, "speedup": 0.8}
        job.result = {
            "stopped_by": "trials",
            "best": {"time_ms": 0.5},
            "gain_over_default": 2.0,
            "gain_over_slowest": 5.0,
            "library": library,
            "ties": 1,
        }
        return job.id

    shown = page(f"/jobs/{commit(done)}")
    assert "hx-sse:connect" not in shown
    assert "every" not in shown.split('id="job"')[1].split(">")[0]
    assert "cuBLAS 13.0 is faster: use it" in shown
    assert "Ties within the noise</dt><dd>1<" in shown


def test_a_library_that_left_the_finals_is_named_with_its_reason(page, commit):
    def done(rows):
        study, problem, device = rows.study()
        job = rows.job(problem, device, study)
        gains = {"gain_over_default": 2.0, "gain_over_slowest": 5.0}
        outcome = {"library": None, "library_failure": "timed_out: no answer <in> time", "ties": 0}
        job.result = {"stopped_by": "trials", "best": {"time_ms": 0.5}} | gains | outcome
        return job.id

    shown = page(f"/jobs/{commit(done)}")
    assert "no library was timed <small>timed_out: no answer &lt;in&gt; time</small>" in shown


def test_a_result_without_a_winner_is_not_shown_as_one(page, commit):
    def imported(rows):
        study, problem, device = rows.study()
        job = rows.job(problem, device, study)
        job.result = {"stopped_by": "import"}
        return job.id

    shown = page(f"/jobs/{commit(imported)}")
    assert "Result of" not in shown
    assert "Winner" not in shown


def test_jobs_are_filtered_by_state(page, commit):
    commit(lambda rows: rows.best())
    commit(running)
    assert "m=7," in page("/jobs?state=running")
    assert "m=7," not in page("/jobs?state=done")
    assert "No jobs. Request one:" in page("/jobs?state=failed")


def test_the_list_has_the_apis_own_data_and_leads_on(client, page, commit):
    commit(lambda rows: [rows.best({"m": n, "n": 8, "k": 8}) for n in (8, 16, 24)])
    shown = page("/jobs?state=done&limit=2")
    assert 'href="/v1/jobs?state=done&amp;format=csv"' in shown
    assert client.get("/v1/jobs?state=done&limit=2&format=csv").text.count("\r\n") == 3
    older = re.search(r'href="([^"]+)" rel="next"', shown)[1].replace("&amp;", "&")
    assert 'href="/jobs?state=done&amp;limit=2">First page</a>' in page(older)


def test_text_from_outside_is_escaped(page, commit):
    def failed(rows):
        study, problem, device = rows.study()
        job = rows.job(problem, device, study, JobState.FAILED)
        job.error = "<script>alert(1)</script>"
        return job.id

    job_id = commit(failed)
    for path in ("/", "/jobs", f"/jobs/{job_id}"):
        assert "<script>" not in page(path)


def test_bar_goes_right_where_ours_is_faster_and_stays_inside():
    middle = Bar.of(1.0).middle
    assert Bar.of(2.0).x == middle
    assert Bar.of(0.5).x + Bar.of(0.5).width == middle
    assert Bar.of(100.0).width == middle
    assert Bar.of(0.001).x == 0


def test_curve_stays_inside_and_falls():
    curve = Curve.of([(1, 8.0), (5, 2.0), (9, 1.0)], 20)
    assert [y for _, y in curve.dots] == sorted(y for _, y in curve.dots)
    assert all(0 < x < curve.width and 0 < y < curve.height for x, y in curve.dots)
    assert Curve.of([], 20) is None


def rows_of(shown: str) -> list[str]:
    """The shape of each row of a table of jobs, in order."""
    return re.findall(r'<tr>\s*<th scope="row"><a href="/kernels/gemm/problem[^"]+">gemm (m=\d+)', shown)


@pytest.fixture
def three_jobs(commit):
    """Of m=8, 16 and 24: with little gain, much, and none yet; the second longest."""

    def make(rows):
        for m, gain, elapsed_s in ((8, 1.1, 5.0), (16, 4.5, 90.0), (24, None, 30.0)):
            job = rows.session.get_one(TuningJob, rows.best({"m": m, "n": 8, "k": 8}).job_id)
            job.elapsed_s = elapsed_s
            job.result = {"best": {"time_ms": 0.001 * m}, "gain_over_default": gain} if gain else None

    return commit(make)


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("", ["m=24", "m=16", "m=8"]),
        ("sort=-gain", ["m=16", "m=8", "m=24"]),
        ("sort=gain", ["m=8", "m=16", "m=24"]),
        ("sort=-duration", ["m=16", "m=24", "m=8"]),
        ("sort=best", ["m=8", "m=16", "m=24"]),
        ("sort=-gain&limit=1&page=2", ["m=8"]),
    ],
)
def test_jobs_are_sorted_by_any_column_those_without_a_value_last(page, three_jobs, sort, expected):
    assert rows_of(page(f"/jobs?{sort}")) == expected


def test_a_heading_sorts_and_says_how_the_table_is_sorted(page, three_jobs):
    shown = page("/jobs?state=done&sort=-gain")
    assert 'aria-sort="descending"><a href="/jobs?state=done&amp;sort=gain">Gain' in shown
    assert '<a href="/jobs?state=done&amp;sort=-duration">Duration' in shown
    assert shown.count("aria-sort") == 1
    assert "must be one of requested, problem" in page("/jobs?sort=colour", 422)


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ("m=16", ["m=16"]),
        ("16x8x8", ["m=16"]),
        ("24", ["m=24"]),
        ("GEMM h200 8", ["m=24", "m=16", "m=8"]),
        ("gemm, m=16,", ["m=16"]),
        ("softmax", []),
        ("m=16 m=8", []),
        ("%", []),
    ],
)
def test_jobs_are_searched_as_the_api_searches_them(client, page, three_jobs, search, expected):
    query = urlencode({"search": search})
    assert rows_of(page(f"/jobs?{query}")) == expected
    found = client.get(f"/v1/jobs?{query}").json()["items"]
    assert [f"m={job['problem']['shape']['m']}" for job in found] == expected


def test_a_job_has_its_duration_and_gain_and_its_device_by_name(page, commit):
    def make(rows):
        study, problem, device = rows.study()
        job = rows.job(problem, device, study)
        job.device_id, job.elapsed_s = device.id, 125.0
        job.result = {"best": {"time_ms": 0.25}, "gain_over_default": 2.5}
        return job.id

    job_id = commit(make)
    for path in ("/jobs", f"/jobs/{job_id}"):
        shown = page(path)
        for part in ("2 min 5 s", "\N{MULTIPLICATION SIGN}2.50", "250\N{NO-BREAK SPACE}µs", "device 0 on host"):
            assert part in shown, (path, part)
        assert ">GPU-nvidia-h200" not in shown  # the UUID is in the title
