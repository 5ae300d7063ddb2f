"""A lock in two ranks that share a GPU, a GPU that nobody tuned for, and the programs of two pages of docs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tuner.pytorch.ranks import two_ranks
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.choice import TargetDevice
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches import cuda, gpu

pytestmark = pytest.mark.gpu


@pytest.fixture
def ranks(torch, tmp_path, monkeypatch):
    """The program of a rank, with the operators by configurations that compile quickly."""
    from tests.tuner.pytorch import conftest, locked_rank  # noqa: PLC0415 - they import torch

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    runtime = Runtime(only_tuned=True)
    runtime._pinned.configurations = conftest.Small(16)
    locked_rank.tw.use(runtime)
    yield locked_rank
    locked_rank.tw.use(None)


def test_two_ranks_have_the_same_choices_by_one_lock(ranks, tmp_path):
    first, second = two_ranks("locked_rank", ranks.lock_for("cuda", tmp_path / "tilewright.lock"), "cuda")
    assert first == second
    assert (first["applied"], first["said"]) == (True, [])
    assert [one.partition(" ")[0] for one in first["chosen"]] == ["layer_norm", "linear", "linear", "softmax"]


def test_two_ranks_that_start_cold_have_the_choices_of_the_first(gpu, tmp_path, monkeypatch):
    """They begin with different configurations, and their own clocks decide: on two GPUs where there are as many."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    first, second = two_ranks("warm_rank", tmp_path, "neither")
    assert {name: one for name, one in first.items() if name not in {"before", "reason"}} == {
        name: one for name, one in second.items() if name not in {"before", "reason"}
    }
    assert "calls each" in first["reason"]


@pytest.mark.filterwarnings("always")
def test_a_gpu_that_nobody_tuned_for_runs_the_model_as_it_was(torch, ranks, tmp_path, monkeypatch):
    unknown = TargetDevice("nvidia-never-seen", gpu.gpu_place(0).limits)
    for module in (gpu, cuda):
        monkeypatch.setattr(module, "gpu_place", lambda _ordinal: unknown)
    ranks.tw.use(Runtime(only_tuned=True, shipped_records=False, answers=AnswerCache(tmp_path / "answers")))
    model, x = ranks.model_on("cuda")
    with torch.no_grad():
        expected = model(x)
        with pytest.warns(ranks.tw.AccelerationWarning, match="none of its 5 .* on nvidia-never-seen. Tune it:"):
            assert not ranks.tw.accelerate(model, x, compiles=None, graph=False).is_applied
        torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "says"), [("serving.md", "40 answers of 128 numbers"), ("fine-tuning.md", "merged: off by")]
)
def test_the_pages_program_runs_on_a_gpu(torch, page, says):
    [code] = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert says in ended.stdout, ended.stdout + ended.stderr
