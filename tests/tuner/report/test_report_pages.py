"""A report's page: what its numbers and sentences say; its files are whole or not there."""

from dataclasses import replace
from pathlib import Path

import pytest
import recorded_pages
from hypothesis import given
from hypothesis import strategies as st
from made_ladder import SIZES, STEPS, made_report, time_of

from tilewright.tuner.report import pages, tables
from tilewright.tuner.report.pages import files, findings, protocol, reasons
from tilewright.tuner.report.rows import crossings


@pytest.fixture
def page():
    return files(made_report())["gemm.md"]


def table(page, title):
    """The rows of a section's table, by heading."""
    section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
    headings, _, *rows = ([cell.strip() for cell in x[2:-2].split(" | ")] for x in section.splitlines() if x[:1] == "|")
    return [dict(zip(headings, row, strict=True)) for row in rows]


def test_pages_are_those_of_the_record():
    made = recorded_pages.pages()
    assert sorted(made) == sorted(path.name for path in recorded_pages.RECORD.iterdir())
    for name, text in made.items():
        assert text == (recorded_pages.RECORD / name).read_text(encoding="utf-8"), "meant? python -m recorded_pages"


def test_numbers_of_a_row_are_where_their_headings_say(page):
    results = {row["step"]: row for row in table(page, "Results")}
    tiled = results["tiled"]
    assert (tiled["time (ms)"], tiled["x first kernel"], tiled["error / bound"]) == ("0.2500", "2.000", "0.5000")
    assert float(tiled["GFLOP/s"]) == pytest.approx(2 * 1024**3 / 0.25 / 1e6, rel=1e-3)
    assert float(tiled["% of peak"]) == pytest.approx(100 * float(tiled["GFLOP/s"]) / 60000, rel=1e-3)
    assert float(tiled["% of bandwidth, data sheet"]) == pytest.approx(100 * float(tiled["GB/s"]) / 4800, rel=1e-3)
    assert results["CPU, one-thread loop"]["% of bandwidth, measured"] == ""  # the host has no part in it
    moved = {row["step"]: row for row in table(page, "Bytes moved")}
    assert (moved["tiled"]["share of untiled, predicted"], moved["tiled"]["tile"]) == ("0.06250", "16 x 16")


def test_every_size_of_every_step_has_a_row(page):
    rows = table(page, "Every size")
    assert {(row["size"], row["step"]) for row in rows} == {
        (str(size), title) for size in SIZES for _, title, *_ in STEPS.values()
    }
    assert "Every size" not in files(made_report(sweep=()))["gemm.md"]


def test_a_step_that_was_left_out_says_why(page):
    assert "needs ptx" in page


def test_the_cpu_devices_page_says_so(page):
    assert "CPU device" not in page
    assert "CPU device" in files(made_report(kind="cpu"))["gemm.md"]


def test_how_the_host_was_timed_is_said_where_there_was_time_for_no_sweep_too():
    report = made_report(sweep=())
    assert "The host's loop is timed in CPU seconds" in protocol(report)
    on_the_device = tuple(step for step in report.steps if step.place not in {"loop", "blas"})
    assert "The host's loop" not in protocol(replace(report, steps=on_the_device))


def test_the_crossing_is_where_the_curves_cross_and_is_told():
    report = made_report()
    alone, moved = (crossings(report, "cpu_blas", transfers=transfers) for transfers in (False, True))
    assert 2 < alone < moved < 1024
    told = next(line for line in findings(report) if "BLAS" in line)
    assert f"launches alone, from {alone:.0f} on" in told
    assert f"with transfers in and out, from {moved:.0f} on" in told


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
        if self.name.endswith(".json"):
            raise KeyboardInterrupt
        return real(self, *arguments, **named)

    real = Path.write_text
    monkeypatch.setattr(Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pages.write(made_report(formula="changed"), folder)
    assert {path: path.read_text() for path in folder.iterdir()} == before


@given(st.floats(1e-5, 1e9))
def test_a_cell_keeps_four_digits_and_has_no_exponent(value):
    text = tables.number(value)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=6e-4)
