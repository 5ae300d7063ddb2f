"""`tilewright capture`: the page's example with a stand-in of PyCUDA, one line and an exit code for each error."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/capture.md").read_text()


@pytest.fixture
def program(tmp_path, monkeypatch, unreachable):
    """The page's `app.py`, in the current folder."""
    (text,) = re.findall(r"`app.py`:\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "app.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/tuner/capture/libraries"))
    return [sys.executable, "app.py"]


def test_the_example_of_the_page_is_captured_shown_adopted_and_checked(run, program, tmp_path):
    (block,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    commands = [line.split() for line in block.splitlines() if line.startswith("tilewright ")]
    assert [words[1] for words in commands] == ["capture", "capture", "capture", "kernels"]
    ran = [run(*(sys.executable if word == "python" else word for word in words[1:])) for words in commands]
    assert [one.status for one in ran] == [0] * 4, [one.err for one in ran]
    captured, shown, adopted, checked = ran
    assert captured.err == "1000 launches of 1 kind are in tilewright-capture. Then: tilewright capture show\n"
    head, row = (line.split("\t") for line in shown.out.splitlines())
    cells = dict(zip(head, row, strict=True))
    assert (cells["kernel"], cells["share"], cells["calls"]) == ("scale", "100.0%", "1000")
    assert (cells["grid"], cells["block"], cells["source"]) == ("40x1", "128x1x1", "PyCUDA")
    assert cells["arguments"] == "float32 10000, float32 10000, 3, 10000"
    assert "TILE: 1, 2, 4, 8; block_size_x: 32, 64, 128, 256, 512" in adopted.out
    assert "scale: no errors" in checked.out
    as_json = run("capture", "show", "--json").json
    assert (as_json["format"], [one["calls"] for one in as_json["launches"]]) == ("tilewright-capture/1", [1000])
    again = run("capture", "adopt", "scale")
    assert (again.status, "scale exists already: name another place by --folder" in again.err) == (1, True)


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["--", sys.executable, "-c", "raise SystemExit(5)"], 5, "ended with status 5: nothing is kept of it"),
        (["--", sys.executable, "-c", ""], 3, "launched nothing through Triton, PyCUDA's SourceModule"),
        (["--contents", "--contents-limit", "0.125", "--", sys.executable, "app.py"], 1, "limit of 0.125 MiB"),
        (["run", "--out", "no/such", "--", sys.executable, "app.py"], 1, "there is no folder"),
        (["show"], 2, "tilewright-capture holds no capture: make one: tilewright capture -- python app.py"),
        (["adopt", "scale", "--capture", "none"], 2, "none holds no capture"),
        (["python", "app.py"], 2, "a program stands behind --: tilewright capture -- python app.py"),
        (["--"], 2, "Missing argument 'PROGRAM'"),
        ([], 2, "Missing command. Try: tilewright capture --help"),
    ],
)
def test_an_error_is_one_line_with_its_exit_code_and_leaves_nothing(run, program, tmp_path, words, status, line):
    ran = run("capture", *words)
    assert (ran.status, line in ran.err) == (status, True), ran.err
    assert len([text for text in ran.err.splitlines() if text.startswith("error")]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]
