"""The figures of README.md and docs/results.md are those of the committed results; the two commands exist."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "h200" / "main_job.json"


@pytest.fixture
def main_job(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import main_job  # noqa: PLC0415 - benchmarks is no package

    yield main_job
    sys.modules.pop("main_job")


def test_the_table_is_made_from_the_results(main_job):
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    section = text.partition("<!-- main_job")[2].partition("-->\n")[2].partition("<!-- /main_job")[0]
    assert section == main_job.readme_section(json.loads(RESULTS.read_text(encoding="utf-8")))


def test_the_kernels_tables_are_made_from_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from kernel_table import readme  # noqa: PLC0415 - benchmarks is no package

    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/results.md"))
    results = json.loads(RESULTS.with_name("kernels.json").read_text(encoding="utf-8"))
    for name, made in readme.readme_sections(results).items():
        section = text.partition(f"<!-- {name}:")[2].partition("-->\n")[2].partition(f"<!-- /{name}")[0]
        assert section == made


def test_every_problem_of_the_main_job_has_a_row(main_job):
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    wanted = [(entry.kernel, entry.shape, entry.compiler) for entry in main_job.entries()]
    # The jobs with nvcc come last, take minutes, and may be missing.
    assert [(r["kernel"], r["shape"], r["compiler"]) for r in rows] == wanted[: len(rows)]
    assert all(compiler != "nvrtc" for _, _, compiler in wanted[len(rows) :])
    assert all(row["best"]["match"] == "exact" for row in rows)


@pytest.mark.parametrize("target", ["run", "test"])
def test_the_two_commands_are_targets_of_the_makefile(target):
    assert f"\n{target}: ##" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"\nmake {target} " in (ROOT / "README.md").read_text(encoding="utf-8")
