"""docs/serving.md and docs/fine-tuning.md: their programs run, and say what the pages promise."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

import tilewright.torch as tw

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).parents[3]


def program_of(page):
    [code] = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return code


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("serving.md", r"decided: eager\n40 answers of 128 numbers\n"),
        ("fine-tuning.md", r"trained \d+ numbers: (\d\.\d+) to (\d\.\d+)\nmerged: off by \d\.\de-0[6-9]\n"),
    ],
)
def test_the_pages_program_runs(page, says, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    tw.use(None)
    exec(compile(program_of(page), page, "exec"), {"__name__": "__main__"})  # noqa: S102 - a page of ours
    found = re.fullmatch(says, said := capsys.readouterr().out)
    assert found, said
    numbers = [float(one) for one in found.groups()]
    assert numbers == sorted(numbers, reverse=True)  # a loss falls
