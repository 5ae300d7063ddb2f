"""A report's pages: the same numbers everywhere, nothing fetched from anywhere, whole or not there."""

import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import recorded_pages
from hypothesis import given
from hypothesis import strategies as st
from made_ladder import SIZES, made_report, time_of

from tilewright.tuner.report import pages, tables
from tilewright.tuner.report.charts import HEIGHT, WIDTH, log_axis, tick_text
from tilewright.tuner.report.figures import crossings, figures
from tilewright.tuner.report.ladders import LADDERS
from tilewright.tuner.report.pages import files, findings, protocol, reasons

FETCHING = {"src", "href", "data", "action", "poster", "srcset", "xlink:href", "background"}


class Seen(HTMLParser):
    """Cells by table, tags, and attributes that would make a browser fetch something."""

    def __init__(self):
        super().__init__()
        self.tables, self.tags, self.fetches, self._in_cell = [], set(), [], False

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.fetches += [(tag, name) for name, _ in attrs if name in FETCHING or name.startswith("on")]
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in {"td", "th"}:
            self.tables[-1][-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag):
        if tag in {"td", "th"}:
            self._in_cell = False

    def handle_data(self, data):
        if self._in_cell:
            self.tables[-1][-1][-1] += data


@pytest.fixture
def made():
    return pages.files(made_report())


@pytest.fixture
def seen(made):
    parser = Seen()
    parser.feed(made["gemm.html"])
    return parser


def test_the_page_fetches_nothing_and_runs_nothing(made, seen):
    assert seen.fetches == []
    assert not seen.tags & {"script", "link", "img", "iframe", "object", "embed", "form"}
    assert not re.search(r"url\(|@import|https?:", made["gemm.html"])


def test_every_number_on_the_page_is_in_the_csv(made, seen):
    steps = list(csv.DictReader(io.StringIO(made["gemm-steps.csv"])))
    sizes = list(csv.DictReader(io.StringIO(made["gemm-sizes.csv"])))
    held = {cell for row in (*steps, *sizes) for cell in row.values()}
    results, moves, traffic, *_, every_size = seen.tables
    for table in (results, moves, traffic, every_size):
        shown = {cell for row in table[1:] for cell in row if re.search(r"\d", cell)}
        assert shown
        assert shown <= held
    assert len(every_size) == 1 + len(sizes)


def test_markdown_has_the_cells_of_the_page_but_for_every_size(made, seen):
    lines = [line[2:-2].split(" | ") for line in made["gemm.md"].splitlines() if line.startswith("| ")]
    in_markdown = [cell.strip() for line in lines for cell in line]
    on_page = [cell for table in seen.tables[:-1] for row in table for cell in row]
    assert in_markdown == on_page


def test_pages_are_those_of_the_record():
    made = recorded_pages.pages()
    assert sorted(made) == sorted(path.name for path in recorded_pages.RECORD.iterdir())
    for name, text in made.items():
        assert text == (recorded_pages.RECORD / name).read_text(encoding="utf-8"), "meant? python -m recorded_pages"


def test_numbers_of_a_row_are_where_their_columns_say(made):
    tiled = next(r for r in csv.DictReader(io.StringIO(made["gemm-steps.csv"])) if r["step"] == "tiled")
    assert (tiled["time_ms"], tiled["times_first_kernel"], tiled["error_over_bound"]) == ("0.2500", "2.000", "0.5000")
    assert float(tiled["gflops"]) == pytest.approx(2 * 1024**3 / 0.25 / 1e6, rel=1e-3)
    assert float(tiled["percent_of_peak_flops"]) == pytest.approx(100 * float(tiled["gflops"]) / 60000, rel=1e-3)
    assert float(tiled["percent_of_datasheet_bandwidth"]) == pytest.approx(
        100 * float(tiled["gb_per_s"]) / 4800, rel=1e-3
    )
    assert (tiled["predicted_share"], tiled["asked_share"], tiled["tile"]) == ("0.06250", "0.1000", "16 x 16")
    loop = next(r for r in csv.DictReader(io.StringIO(made["gemm-steps.csv"])) if r["step"].endswith("loop"))
    assert loop["percent_of_measured_bandwidth"] == loop["host_to_device_ms"] == ""  # the host has no part in them


def test_a_step_that_was_left_out_says_why(made):
    assert "needs ptx" in made["gemm.html"]
    assert "needs ptx" in made["gemm.md"]


def test_names_are_text_and_not_markup(made):
    assert "<BLAS>" not in made["gemm.html"]
    assert "CPU, &lt;BLAS&gt; &amp; more" in made["gemm.html"]


def test_how_the_host_was_timed_is_said_where_there_was_time_for_no_sweep_too():
    report = made_report(sweep=())
    assert "The host's loop is timed in CPU seconds" in protocol(report)
    on_the_device = tuple(step for step in report.steps if step.place not in {"loop", "blas"})
    assert "The host's loop" not in protocol(replace(report, steps=on_the_device))


def test_the_cpu_devices_pages_say_so():
    assert "CPU device" not in pages.files(made_report())["gemm.html"]
    for name in ("gemm.html", "gemm.md"):
        assert "CPU device" in pages.files(made_report(kind="cpu"))[name]


def test_pictures_are_xml_and_stay_in_their_frame():
    found = figures(made_report())
    assert len(found) == 7
    for figure in found:
        root = ET.fromstring(figure.svg)  # noqa: S314 - made a line above
        width, height = (float(size) for size in root.attrib["viewBox"].split()[2:])
        assert width == WIDTH
        for text in root.iter("text"):
            if "x" in text.attrib:
                assert 0 <= float(text.attrib["x"]) <= width, text.text
                assert 0 <= float(text.attrib["y"]) <= height, text.text
        for path in root.iter("path"):
            for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.attrib["d"]):
                assert -8 <= float(x) <= WIDTH + 8
                assert -8 <= float(y) <= HEIGHT + 8


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=lambda ladder: ladder.kernel)
def test_every_step_of_a_ladder_has_a_colour(ladder):
    page = files(made_report())["gemm.html"]
    for slot in range(len(ladder.steps)):
        assert page.count(f"--s{slot}: #") == 2  # light and dark
        assert f".s{slot} {{ stroke: var(--s{slot}); }}" in page


def test_a_series_is_drawn_in_full():
    chart = figures(made_report())[1].svg
    assert chart.count("<title>tiled, ") == len(SIZES)


def test_a_report_without_a_sweep_or_a_roof_has_fewer_pictures():
    report = made_report(sweep=())
    assert [figure.title for figure in figures(report)] == ["The steps", "Arithmetic intensity and roofline"]
    assert "Every size" not in pages.files(report)["gemm.html"]


def test_the_crossing_is_where_the_curves_cross_and_is_told():
    report = made_report()
    alone, moved = (crossings(report, "cpu_blas", transfers=transfers) for transfers in (False, True))
    assert 2 < alone < moved < 1024
    told = next(line for line in findings(report) if "BLAS" in line)
    assert f"launches alone, from {alone:.0f} on" in told
    assert f"with transfers in and out, from {moved:.0f} on" in told


def test_findings_state_the_tiles_beside_the_prediction():
    (line,) = (line for line in findings(made_report()) if "tiles of 16" in line)
    assert "1/16" in line
    assert "1/10.0" in line


def test_a_reason_that_the_table_contradicts_is_corrected():
    slower = made_report(
        kind="cpu",
        steps=tuple(replace(s, time=time_of(1.0)) if s.key == "tiled" else s for s in made_report().steps),
    )
    said = dict(reasons(slower))
    assert said["tiled"].startswith(
        "One sentence. And another. Here it is not so: it takes 2.000 times as long as naive, "
    )
    assert "CPU" in said["tiled"]
    assert said["library"].endswith("Measured: 8.000 times as fast as naive.")  # the fastest step, not the one before
    assert said["naive"] == "One sentence. And another."  # the first on the device is held against nothing
    for text in files(slower).values():
        assert "Why each step is faster" not in text
    told = dict(reasons(made_report()))
    assert told["tiled"].endswith("Measured: 2.000 times as fast as naive.")
    alike = tuple(replace(s, time=time_of(0.5)) if s.key == "tiled" else s for s in made_report().steps)
    assert dict(reasons(made_report(steps=alike)))["tiled"].endswith("as fast as naive, within the noise.")


def test_files_appear_whole_or_not_at_all(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    written = pages.write(made_report(), folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in written)
    before = {path: path.read_text() for path in written}

    def interrupted(self, *arguments, **named):
        if self.name.endswith(".csv"):
            raise KeyboardInterrupt
        return real(self, *arguments, **named)

    real = Path.write_text
    monkeypatch.setattr(Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pages.write(made_report(formula="changed"), folder)
    assert {path: path.read_text() for path in folder.iterdir()} == before


@given(st.lists(st.floats(1e-9, 1e12), min_size=1, max_size=20), st.sampled_from((2, 10)))
def test_an_axis_holds_its_values(values, by):
    axis = log_axis(values, 10.0, 500.0, by=by)
    assert all(10 - 1e-6 <= axis.place(value) <= 500 + 1e-6 for value in values)
    assert [axis.place(tick) for tick in axis.ticks] == sorted(axis.place(tick) for tick in axis.ticks)
    assert 2 <= len(axis.ticks) <= 10


@given(st.floats(1e-5, 1e9))
def test_a_cell_keeps_four_digits_and_has_no_exponent(value):
    text = tables.number(value)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=6e-4)


def test_ticks_are_short():
    assert [tick_text(value) for value in (0.001, 20, 10000, 2e6, 0)] == ["0.001", "20", "10k", "2M", "0"]
