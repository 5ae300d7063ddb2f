"""Pages of results: what people see, also when there is nothing to see."""

import re

import pytest
from cpu_time import cost_s
from factories import CPU, H100, H200, NAIVE, OLD, SHAPE, TILED_16, TILED_32
from sqlalchemy import Engine, event, text

from tilewright.service.dashboard import views
from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.dashboard.pages import results as result_pages
from tilewright.service.operations import registry
from tilewright.service.operations.best import results_table
from tilewright.service.operations.best.results_table import COLUMNS
from tilewright.service.operations.studies import studies
from tilewright.service.operations.transaction import transaction
from tilewright.tuner.outcome import Outcome


def test_empty_results_say_what_to_do_next(page, commit):
    assert "tilewright up" in page("/results")
    commit(lambda rows: rows.device())
    assert "tilewright tune" in page("/results")


@pytest.mark.parametrize("path", ["/results", "/device-models/nvidia-h100"])
def test_tuning_is_not_proposed_where_no_worker_serves_the_model(page, commit, path):
    commit(lambda rows: (rows.best(), rows.model_alone(H100)))
    shown = page(path)
    assert "no worker serves NVIDIA H100" in shown
    assert "--device-model nvidia-h100" not in shown


def test_best_configuration_is_shown_with_its_ratios(page, commit):
    commit(lambda rows: rows.best(time_ms=0.5, library_ms=0.75))
    shown = page("/results")
    assert "m=256, n=100, k=784" in shown
    for part in (
        "TILE_WIDTH=16",
        "500\N{NO-BREAK SPACE}µs",
        "200\N{NO-BREAK SPACE}GFLOP/s",
        f"{TIMES}2.00",
        f"{TIMES}1.50",
        "ahead of cuBLAS 13.0",
        "NVIDIA H200",
    ):
        assert part in shown
    assert "driver 580.159, nvrtc 13.0" in shown
    assert "driver 580.159, CUDA 13.0, nvrtc 13.0, PyCUDA 2026.1, clocks default" in shown
    assert "is faster" not in shown


def test_page_says_plainly_that_the_library_is_faster(page, commit):
    commit(lambda rows: rows.best(time_ms=1.0, library_ms=0.5))
    assert "<strong>cuBLAS 13.0 is faster: use it</strong>" in page("/results")


def test_a_library_within_the_noise_is_level(page, commit):
    commit(lambda rows: rows.best(time_ms=1.0, library_ms=1.005))
    assert "level with cuBLAS 13.0" in page("/results")


def test_parameters_stand_in_the_order_of_the_declaration(page, commit):
    commit(lambda rows: rows.best(configuration=NAIVE))
    assert "BLOCK_X=32 BLOCK_Y=8" in page("/results")


def test_ties_roof_and_missing_library_are_said(page, commit):
    def make(rows):
        best = rows.best()
        best.ties, best.roof_ratio = 2, 0.634

    commit(make)
    shown = page("/results")
    assert "2 ties within the noise" in shown
    assert "63\N{NO-BREAK SPACE}%" in shown
    assert "no library was timed" in shown


def test_accuracy_and_errors_are_shown(page, commit):
    def make(rows):
        best = rows.best(library_ms=2.0, options={"accuracy": "tf32"})
        best.bound_ratio, best.library_bound_ratio = 0.25, 0.5

    commit(make)
    shown = page("/results")
    assert "accuracy=tf32" in shown
    assert "12\N{NO-BREAK SPACE}% of the allowed error, library 25\N{NO-BREAK SPACE}% of the allowed error" in shown


def test_the_time_of_a_pack_stands_beside_the_time_that_leaves_it_out(page, commit):
    def make(rows):
        trial = rows.trial_of(rows.best(time_ms=0.031, options={"packed_b": True}))
        trial.pack_ms = 0.012
        return trial.study_id

    study = f"/studies/{commit(make)}"
    asked = "/ask?kernel=gemm&device_model=nvidia-h200&shape=m=256,n=100,k=784&options=packed_b=true"
    for path in ("/results", study, f"{study}/trials/0", asked):
        text = " ".join(re.sub("<[^>]*>", " ", page(path)).replace("\N{NO-BREAK SPACE}", " ").split())
        assert "and 12.0 µs once to pack B" in text, path


def test_results_of_an_environment_that_no_device_has_are_marked(page, commit):
    commit(lambda rows: [rows.best(environment=OLD), rows.best(SHAPE | {"m": 7})])
    assert page("/results").count("(not current)") == 1


def test_filters_stand_in_the_address(page, commit):
    commit(
        lambda rows: [
            rows.best(),
            rows.best(SHAPE | {"m": 31}, model=H100),
            rows.best({"m": 77, "n": 88}, kernel="gemv"),
        ]
    )
    assert "m=77, n=88" not in page("/results?kernel=gemm&device_model=")
    only = page("/results?kernel=gemm&device_model=nvidia-h100")
    assert "m=31, n=100" in only
    assert "m=256, n" not in only
    assert '<option value="nvidia-h100" selected>' in only
    assert "There is no device model" in page("/results?device_model=nothing")


def test_age_is_relative_with_the_exact_time_in_title(page, commit):
    commit(lambda rows: rows.best())
    assert re.search(r'<time datetime="20\d\d-[^"]+" title="[^"]+ UTC" data-age>\d+ s ago</time>', page("/results"))


def test_curl_line_works_as_it_is(client, page, commit):
    commit(lambda rows: rows.best(options={"trans_b": True}))
    line = re.search(r"curl &#39;http://127.0.0.1:8000(.*?)&#39;", page("/results"))[1].replace("&amp;", "&")
    assert client.get(line).json()["match"] == "exact"


def test_models_with_a_living_worker_come_first(client, commit):
    commit(lambda rows: [rows.device(H100), rows.device(H200)])
    with transaction() as session:
        models, devices = registry.device_models(session), registry.devices(session)
    dead = [device.model_copy(update={"alive": device.model != "nvidia-h100"}) for device in devices]
    assert [section.model.slug for section in views.sections(models, dead, {})] == ["nvidia-h200", "nvidia-h100"]


def test_device_model_page_shows_devices_and_pages_through_results(page, commit):
    commit(lambda rows: [rows.best(SHAPE | {"m": 100 + i}) for i in range(52)])
    first = page("/device-models/nvidia-h200")
    assert "GPU-nvidia-h200" in first
    assert "66,900 GFLOP/s" in first
    older = re.search(r'<a href="([^"]+)" rel="next">Next page', first)[1].replace("&amp;", "&")
    second = page(older)
    rows_of = lambda text: set(re.findall(r"m=(1\d\d), n", text))  # noqa: E731
    assert rows_of(first) | rows_of(second) == {str(100 + i) for i in range(52)}
    assert not rows_of(first) & rows_of(second)
    assert "Next page" not in second


def test_of_many_device_models_those_with_most_results_are_shown(page, commit, monkeypatch):
    for module in (results_table, result_pages):
        monkeypatch.setattr(module, "MOST_MODELS", 1)
    commit(lambda rows: [rows.best(), rows.best(SHAPE | {"m": 512}), rows.best(model=H100)])
    heads = re.findall(r"<h2.*?</h2>", page("/results"), re.DOTALL)
    assert [model.name for model in (H200, H100) if any(model.name in head for head in heads)] == [H200.name]
    assert "with the most results are shown" in page("/results")
    assert "1 result<" in page(f"/results?device_model={H100.slug}")


def test_cpu_is_labelled_as_never_ranked_with_gpus(page, commit):
    commit(lambda rows: rows.best(model=CPU))
    assert "not ranked with GPUs" in page("/device-models/cpu%3Atest")


def test_study_lists_trials_fastest_or_newest_first_with_failures_marked(page, commit):
    def make(rows):
        study, problem, device = rows.study()
        job = rows.job(problem, device, study)
        rows.trial(study, job, TILED_16, 2.0)
        rows.trial(study, job, TILED_32, 1.0)
        rows.trial(study, job, NAIVE, outcome=Outcome.WRONG_RESULT).log = "first at <3>"
        return study.id

    study_id = commit(make)
    order = lambda text: re.findall(r'data-label="Trial"><a href="[^"]+">(\d+)', text)  # noqa: E731
    fastest = page(f"/studies/{study_id}")
    assert order(fastest) == ["1", "0", "2"]
    assert order(page(f"/studies/{study_id}?sort=newest")) == ["2", "1", "0"]
    assert order(page(f"/studies/{study_id}?sort=-time")) == ["0", "1", "2"]
    for column in studies.TRIAL_COLUMNS:
        upwards, downwards = (order(page(f"/studies/{study_id}?sort={sign}{column}")) for sign in ("", "-"))
        assert sorted(upwards) == sorted(downwards) == ["0", "1", "2"], column
    assert 'aria-sort="descending"><a href="/studies/' in page(f"/studies/{study_id}?sort=-rate")
    assert "must be one of time, trial" in page(f"/studies/{study_id}?sort=colour", 422)
    assert views.MARKS["wrong_result"] in fastest
    assert "first at &lt;3&gt;" in fastest
    wrong = page(f"/studies/{study_id}/trials/2")
    assert re.search(r"<h2>Verification error</h2>\s.*first at &lt;3&gt;", wrong)
    assert "<h2>Compiler log</h2>" in page(f"/studies/{study_id}/trials/1")
    assert "There is no page 3" in page(f"/studies/{study_id}?page=3")


@pytest.mark.parametrize("name", ["gemm", "linear", "softmax", "gemv"])
def test_kernel_page_shows_declaration_and_source(page, name):
    shown = page(f"/kernels/{name}")
    declared = registry.catalogue().get(name)
    for variant in declared.variants:
        assert f'id="source-{variant.name}"' in shown
        assert all(f"<code>{parameter.name}</code>" in shown for parameter in variant.parameters)
        assert "__global__" in page(f"/kernels/{name}/variants/{variant.name}")
    assert "no variant" in page(f"/kernels/{name}/variants/none", 404)
    assert name in page("/kernels")


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/device-models/nothing", 404, "no device model"),
        ("/kernels/nothing", 404, "no kernel"),
        ("/studies/7", 404, "no study"),
        ("/studies/99999999999999999999", 404, "no study"),
        ("/studies/first", 422, "The study id must be a valid integer, not &#39;first&#39;."),
        ("/studies/1?sort=best", 422, "sort"),
        ("/device-models/nvidia-h200?sort=colour", 422, "sort"),
        ("/jobs/0190a5a4-0000-7000-8000-000000000000", 404, "no job"),
        ("/jobs?state=eaten", 422, "The state must be one of"),
        ("/attention?kind=foo", 422, "The kind must be &#39;failing&#39;"),
        ("/kernels/gemm/problem", 422, "The shape is missing."),
    ],
)
def test_refusals_are_pages(page, commit, path, status, said):
    commit(lambda rows: rows.device())
    assert said in page(path, status)


@pytest.fixture
def statements():
    """Every statement that any engine runs, as it runs."""
    seen = []

    def note(_connection, _cursor, statement, *_of):
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield seen
    event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("path", ["/", "/results", "/device-models/nvidia-h200", "/jobs", "/kernels/gemm"])
def test_more_rows_take_no_more_statements(page, commit, statements, path):
    def taken():
        statements.clear()
        page(path)
        return len(statements)

    commit(lambda rows: [rows.best(), rows.best(model=H100)])
    few = taken()
    commit(lambda rows: [rows.best(SHAPE | {"m": m}, model=model) for m in range(1, 7) for model in (H200, H100)])
    assert taken() == few


@pytest.mark.exhaustive
def test_overview_of_ten_thousand_results_is_quick(client, page, commit):
    """Ten thousand results on two device models; the bound of 0.3 s is for the slower of the two pages."""
    commit(lambda rows: [rows.best(library_ms=0.5), rows.best(model=H100)])
    with transaction() as session:
        session.execute(text(MANY_RESULTS), {"count": 4_999})
    with transaction() as session:
        session.execute(text("ANALYZE"))  # as PostgreSQL does by itself within a minute
    for path in (
        "/",
        "/?family=square",
        "/results",
        "/results?kernel=gemm&device_model=nvidia-h100",
        "/device-models/nvidia-h200",
    ):
        shown = page(path)
        costs_s = []
        while not costs_s or (min(costs_s) >= 0.3 and len(costs_s) < 10):  # others may empty the processor's caches
            costs_s.append(cost_s(lambda path=path: page(path)))
        assert min(costs_s) < 0.3, path
    assert "5,000 results" in page("/results")
    assert shown.count("<tr>") < 100


# Every problem with a study, a trial and a best of its own on each device model of the seed; times differ by 40 %.
MANY_RESULTS = """
WITH seed AS (
    SELECT b.*, p.kernel_id, p.shape, p.dtype, p.options, t.kernel_variant_id, t.configuration, t.configuration_hash,
        g AS place, 0.8 + (g * 7919 + b.device_model_id * 104729) % 1009 / 1009.0 * 0.4 AS factor
    FROM best_configurations b JOIN problems p ON p.id = b.problem_id JOIN trials t ON t.id = b.trial_id,
        generate_series(1, :count) AS g
), problem AS (
    INSERT INTO problems (hash, kernel_id, shape, dtype, options)
    SELECT DISTINCT 'many ' || place, kernel_id, shape || jsonb_build_object('m', 1000 + place), dtype, options
    FROM seed RETURNING id, (shape ->> 'm')::int - 1000 AS place
), study AS (
    INSERT INTO studies (problem_id, device_model_id, environment_id, next_number, space_hash, space_size)
    SELECT problem.id, device_model_id, environment_id, 1, 'many', 100 FROM seed JOIN problem USING (place)
    RETURNING id, problem_id, device_model_id
), planned AS (
    SELECT seed.*, problem.id AS own_problem, study.id AS study_id, time_ms * factor AS own_ms
    FROM seed JOIN problem USING (place)
    JOIN study ON study.problem_id = problem.id AND study.device_model_id = seed.device_model_id
), trial AS (
    INSERT INTO trials (study_id, number, job_id, job_revision, epoch, kernel_variant_id, configuration,
        configuration_hash, outcome, time_ms, ranking_l2, warm_ms)
    SELECT study_id, 0, job_id, 0, 0, kernel_variant_id, configuration, configuration_hash, 'measured', own_ms, l2,
        own_ms
    FROM planned RETURNING id, study_id
)
INSERT INTO best_configurations (problem_id, device_model_id, environment_id, trial_id, job_id, time_ms, ci_low_ms,
    ci_high_ms, l2, gflops, gb_per_s, default_ms, slowest_ms, library_name, library_ms, library_faster)
SELECT own_problem, device_model_id, environment_id, trial.id, job_id, own_ms, own_ms * 0.99, own_ms * 1.01, l2,
    gflops / factor, gb_per_s / factor, default_ms, slowest_ms, library_name, library_ms, library_ms < own_ms
FROM planned JOIN trial USING (study_id)
"""


@pytest.fixture
def two_results(commit):
    """One with a tile of 16 that is far ahead of the library, one with a tile of 32 that has none."""
    commit(
        lambda rows: [
            rows.best(SHAPE | {"m": 8}, 2.0, configuration=TILED_16, library_ms=8.0),
            rows.best(SHAPE | {"m": 9}, 1.0, configuration=TILED_32),
        ]
    )


def tiles(shown: str) -> list[str]:
    """The tile of each row of the table of best configurations."""
    return re.findall(r"<code>TILE_WIDTH=(\d+)</code>", shown)


def test_best_configurations_are_sorted_by_any_column(page, two_results):
    path = "/device-models/nvidia-h200"
    assert tiles(page(path)) == ["32", "16"]
    assert tiles(page(f"{path}?sort=-time")) == ["16", "32"]
    assert tiles(page(f"{path}?sort=library")) == tiles(page(f"{path}?sort=-library")) == ["16", "32"]
    for column in COLUMNS:
        assert sorted(tiles(page(f"{path}?sort={column}"))) == ["16", "32"], column
    assert 'aria-sort="ascending"><a href="/device-models/nvidia-h200?sort=-time#best">Time' in page(
        f"{path}?sort=time"
    )


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("TILE_WIDTH=16", ["16"]),
        ("TILE_WIDTH=8..64", ["32", "16"]),
        ("time=0..1.5", ["32"]),
        ("TILE_WIDTH=64..128", []),
    ],
)
def test_best_configurations_are_filtered_by_parameter(page, two_results, select, expected):
    for path in ("/device-models/nvidia-h200", "/results"):
        shown = page(f"{path}?select={select}")
        assert tiles(shown) == expected
        assert ("No best configuration has" in shown) == (not expected)
        assert f'value="{select}"' in shown


def test_results_are_sorted_and_filtered_and_so_is_their_csv(client, page, two_results):
    assert tiles(page("/results?sort=-time")) == ["16", "32"]
    shown = page("/results?kernel=gemm&variant=tiled&select=TILE_WIDTH=16&sort=time")
    assert tiles(shown) == ["16"]
    assert 'href="/results?kernel=gemm&amp;variant=tiled&amp;select=TILE_WIDTH%3D16&amp;sort=-time"' in shown
    csv = re.search(r'href="(/v1/results[^"]+format=csv)"', shown)[1].replace("&amp;", "&")
    assert client.get(csv).text.count("\r\n") == 2
    assert tiles(page("/results?variant=naive")) == []


@pytest.mark.parametrize("path", ["/results", "/device-models/nvidia-h200"])
def test_a_filter_that_cannot_be_read_says_how_to_write_it_and_keeps_the_form(page, two_results, path):
    shown = page(f"{path}?kernel=gemm&select=TILE_WIDTH%3E16", 422)
    assert "must have the form NAME=LOW..HIGH or NAME=VALUE" in shown
    assert 'value="TILE_WIDTH&gt;16"' in shown
    assert tiles(shown) == []


def test_the_page_of_a_table_says_which_range_is_the_librarys(page, commit):
    times = {TILED_16: {1: 1.0, 512: 4.0}, TILED_32: {1: 2.0, 512: 3.0}}
    spans, name = [(1, 64, TILED_16), (65, 512, TILED_32, True)], "cuBLASLt 13.1.2 (its own choice)"
    known = {"library_ms": {1: 2.0, 512: 1.5}, "own_choice_ms": {512: 2.0}, "own_choice": name}
    shape = {"m": "1..512", "n": 512, "k": 512}
    table = commit(lambda rows: rows.table(shape, spans, times, **known))
    ours, theirs = re.findall(r'data-label="Library">(.*?)</td>', page(f"/tables/{table}"))
    assert (ours, theirs) == ("not faster at every size", f"<strong>launched: {name}</strong>")
