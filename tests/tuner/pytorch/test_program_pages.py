"""docs/serving.md and docs/fine-tuning.md: their programs run, and say what the pages promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

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
def test_the_pages_program_runs(page, says, tmp_path):
    environment = {"TILEWRIGHT_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", program_of(page)], capture_output=True, text=True, env=environment, check=False
    )
    found = re.fullmatch(says, ended.stdout)
    assert found, ended.stdout + ended.stderr
    numbers = [float(one) for one in found.groups()]
    assert numbers == sorted(numbers, reverse=True)  # a loss falls
