"""The programs of docs/serving.md and docs/fine-tuning.md on a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "says"), [("serving.md", "40 answers of 128 numbers"), ("fine-tuning.md", "merged: off by")]
)
def test_the_pages_program_runs_on_a_gpu(torch, page, says):
    [code] = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert says in ended.stdout, ended.stdout + ended.stderr
