"""The scripts of tools/ start: they import from the tests and from modules that move."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[1] / "tools"


@pytest.mark.parametrize("name", ["screenshots.py", "train_digits.py"])
def test_a_tool_tells_how_it_is_used(name):
    told = subprocess.run([sys.executable, TOOLS / name, "--help"], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("usage: ")
