"""docs/triton.md: its kernel is loaded, compiled and right, and its application runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from triton_kernels.scaled import CONFIGURATION, PROBLEM, scaled_in

from tilewright.kernels.catalogue import _import_from, _kernel_of
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.devices.cpu.runner import Program
from tilewright.tuner.outcome import Resources
from tilewright.tuner.triton.interpreter import InterpretedProgram, _arguments

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "triton.md").read_text(encoding="utf-8")
EXAMPLES = ("triton_layer_norm", "triton_matmul", "triton_softmax")

CALL = """
x = torch.arange(3000.0)
assert torch.equal(added(x, x), 2 * x)
print(add.best_config.kwargs, add.best_config.num_warps)
"""


def loaded(folder):
    return _kernel_of(folder, _import_from(folder))


@pytest.fixture
def folder(tmp_path):
    """The page's folder, written as the page says."""
    for name, code in re.findall(r"`(triton_add/[\w.]+)`:\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code, encoding="utf-8")
    assert sorted(path.name for path in (tmp_path / "triton_add").iterdir()) == ["add.py", "declaration.py"]
    return tmp_path / "triton_add"


def test_the_pages_declaration_loads_without_triton(folder):
    kernel = loaded(folder)
    assert (kernel.name, kernel.entry, kernel.is_triton) == ("triton_add", "add", True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_load_without_triton_and_are_named(name):
    kernel = loaded(ROOT / "examples" / name)
    assert kernel.name == name
    assert f"`examples/{name}`" in PAGE


def test_the_pages_kernel_is_right(folder):
    pytest.importorskip("triton")
    kernel, device = loaded(folder), CpuDevice()
    bench = device.bench(kernel, kernel.problem({"n": 333}), seed=1)
    try:
        assert bench.verify(bench.compile(Configuration.of("blocks", {"BLOCK": 64, "num_warps": 1}))).is_right
    finally:
        bench.close()
        device.close()


@pytest.mark.parametrize(
    ("name", "shape", "values"),
    [
        ("triton_softmax", {"m": 5, "n": 40}, {"BLOCK": 16, "ROWS": 4, "num_warps": 1, "num_stages": 2}),
        ("triton_softmax", {"m": 5, "n": 40}, {"BLOCK": 64, "ROWS": 1, "num_warps": 1, "num_stages": 2}),
        ("triton_layer_norm", {"m": 3, "n": 40}, {"BLOCK": 16, "num_warps": 1, "num_stages": 2}),
        ("triton_layer_norm", {"m": 3, "n": 40}, {"BLOCK": 64, "num_warps": 1, "num_stages": 2}),
        (
            "triton_matmul",
            {"m": 20, "n": 33, "k": 17},
            {
                "BLOCK_M": 16,
                "BLOCK_N": 16,
                "BLOCK_K": 16,
                "GROUP_M": 4,
                "PRECISION": 0,
                "num_warps": 1,
                "num_stages": 1,
            },
        ),
    ],
)
def test_the_examples_are_right(name, shape, values):
    """On each kind of inputs, by both ways through a row."""
    pytest.importorskip("triton")
    kernel, device = loaded(ROOT / "examples" / name), CpuDevice()
    bench = device.bench(kernel, kernel.problem(shape), seed=1)
    try:
        program = bench.compile(Configuration.of(kernel.variants[0].name, values))
        assert [v.message() for v in bench.verify_each_kind(program) if not v.is_right] == []
    finally:
        bench.close()
        device.close()


def test_the_pages_application_runs(folder, tmp_path):
    """Triton's interpreter launches it on tensors of the CPU, by the declaration's default."""
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    (application,) = (b for b in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if "added(" in b)
    path = tmp_path / "application.py"
    path.write_text(application + CALL, encoding="utf-8")
    settings = {
        "TRITON_INTERPRET": "1",
        "TILEWRIGHT_KERNEL_FOLDERS": str(folder),
        "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache"),
    }
    command = [sys.executable, str(path)]
    environment = {**os.environ, **settings}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment, check=False)
    assert ran.stdout.strip() == "{'BLOCK': 1024} 4", ran.stderr
    assert "UntunedWarning: no result for triton_add n=3000" in ran.stderr


@pytest.fixture
def bench(tmp_path):
    device = CpuDevice(cache=tmp_path / "cache")
    bench = device.bench(scaled_in(tmp_path), PROBLEM, 1)
    yield bench
    bench.close()
    device.close()


def test_arrays_numbers_and_constants_arrive_as_they_are_said(bench):
    kernel = bench.kernel
    launches = tuple(one for _, one in kernel.variants[0].launches("", CONFIGURATION.values, PROBLEM))
    program = Program(Path("scaled.triton.json"), CONFIGURATION, launches, Resources(), 0.0)
    words = bench.runner.command(program, "verify 1 255 0", "out", bench._sources, bench._scalars)
    start = words.index("verify") + len(("verify", "1", "255", "0")) + 7 * len(launches)
    rest = iter(words[start:])
    x, y, *numbers = _arguments(rest, InterpretedProgram.of(kernel, PROBLEM, CONFIGURATION).types)
    assert [(one.name, one.size, one.writable) for one in (x, y)] == [("x", 400, False), ("y", 400, True)]
    assert numbers == [100, 1, 2.0]
    assert next(rest, None) is None
