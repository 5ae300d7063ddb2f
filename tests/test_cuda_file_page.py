"""docs/cuda-file.md: its commands make, check and tune its file; what it calls not supported is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.kernels.own import own_kernel
from tilewright.tuner.cuda_source.passed import UnclearSourceError
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.kernel_check.first import first_declaration
from tilewright.tuner.loop.tune import Budget, Hooks, tune

PAGE = (Path(__file__).parents[1] / "docs" / "cuda-file.md").read_text(encoding="utf-8")
UNSUPPORTED = re.findall(r"^\| `([^`]*__global__[^`]*|void k[^`]*)` \| ([^|]+) \|$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """The page's kernel, made and checked by the page's first two commands."""
    folder = tmp_path_factory.mktemp("project")
    for name, code in re.findall(r"^`([\w.]+)`[^\n]*:\n\n```cuda\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        (folder / name).write_text(code, encoding="utf-8")
    assert sorted(path.name for path in folder.iterdir()) == ["edges.cu", "pixels.h"]
    [script] = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    new, check, tuning = script.strip().splitlines()
    for line in (new, f"{check} --no-compile --configurations 2"):
        words = line.removeprefix("tilewright ").split()
        ran = subprocess.run(
            [sys.executable, "-m", "tilewright.service.cli", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "--tune edges --shape height=480,width=640 --trials 6 --once" in tuning
    return own_kernel(folder / "edges")


@pytest.mark.in_turn(2)
def test_the_declaration_is_right_but_for_what_the_page_says(kernel):
    problem = kernel.problem({"height": 7, "width": 5})
    assert {tensor.name: (tensor.role, tensor.shape(problem)) for tensor in kernel.tensors} == {
        "image": ("input", (7, 5)),
        "out": ("output", (7, 5)),
    }
    assert [parameter.name for parameter in kernel.variants[0].parameters] == ["BLOCK_SIZE_X", "BLOCK_SIZE_Y"]
    source = kernel.source("plain")
    assert "std::" not in source
    assert "main" not in source


def test_it_is_tuned(kernel):
    device, trials = CpuDevice(), []
    bench = device.bench(kernel, kernel.problem({"height": 48, "width": 64}), 1)
    try:
        space = kernel.space(bench.problem, device.model.limits)
        result = tune(bench, kernel, space, Budget(trials=4), seed=1, hooks=Hooks(trials.append))
    finally:
        bench.close()
        device.close()
    assert result.best is not None
    assert {one.trial.evaluation.outcome for one in trials} == {"measured"}
    assert len(trials) == 4


@pytest.mark.parametrize(("source", "said"), UNSUPPORTED)
def test_what_is_not_supported_is_refused_in_the_words_of_the_page(source, said):
    with pytest.raises(UnclearSourceError, match=re.escape(said.strip())):
        first_declaration(source, "k.cu")


def test_the_page_names_what_is_not_supported():
    assert len(UNSUPPORTED) == 9
