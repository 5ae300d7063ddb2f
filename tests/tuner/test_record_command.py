"""`tilewright record` of a program without PyTorch, which needs none here either."""

from __future__ import annotations

import sys

from tilewright.tuner.pytorch.recording.command import run


def test_a_program_without_pytorch_is_run_and_told_that_nothing_was_recorded(capfd, tmp_path):
    out = tmp_path / "seen.json"
    assert run([sys.executable, "-c", "print('its own')"], out=out) == 0
    said = capfd.readouterr()
    assert said.out == "its own\n"
    assert said.err.startswith("Nothing was recorded: the program did not import PyTorch")
    assert not out.exists()
