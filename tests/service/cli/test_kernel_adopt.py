"""`tilewright kernels adopt`: the page's example, JSON, one line for an error."""

from __future__ import annotations

import re
from pathlib import Path

from tilewright.kernels.own import own_kernel

PAGE = Path(__file__).parents[3] / "docs/kernel-tuner.md"


def test_the_example_of_the_page_becomes_a_kernel_that_passes_its_check(run, unreachable, tmp_path, monkeypatch):
    (text,) = re.findall(r"`saxpy.py`:\n\n```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "saxpy.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    ran = run("kernels", "adopt", "saxpy.py")
    assert ran.status == 0, ran.err
    assert ran.out.split() == ["kernel", "saxpy", "then", "tilewright", "kernels", "check", "saxpy"]
    kernel = own_kernel(tmp_path / "saxpy")
    default = kernel.variants[0].space().default()
    assert dict(default.items) == {"block_size_x": 256, "tile": 1}
    checked = run("kernels", "check", "saxpy", "--no-compile", "--configurations", "1", "--shape", "n=77")
    assert checked.status == 0, checked.out
    assert "adopted\tfloat32\tsm_90\t16\t15" in checked.out


def test_calls_as_json_and_a_script_of_which_nothing_can_be_taken_over(run, unreachable, tmp_path):
    script = tmp_path / "host.py"
    script.write_text("from kernel_tuner import tune_kernel\ntune_kernel('f', 'void f() {}', 1, [], {}, lang='C')\n")
    ran = run("kernels", "adopt", str(script), "--folder", str(tmp_path / "made"), "--json")
    assert ran.status == 1
    refused = "its source is in another language; kernels in CUDA are taken over"
    call = {"call": 1, "kernel_name": "f", "folder": None, "refused": refused, "notes": []}
    assert ran.json == {"notes": [], "calls": [call]}
    assert ran.err.splitlines() == [f"error {script}: none of its 1 calls could be taken over"]
    assert not (tmp_path / "made").exists()


def test_a_script_that_is_not_there_is_a_wrong_argument(run, unreachable, tmp_path):
    ran = run("kernels", "adopt", str(tmp_path / "none.py"))
    assert (ran.status, ran.err.startswith("error there is no script")) == (2, True)
