"""What a program launches becomes a capture, and a launch of it a kernel; a program that cannot be captured, a line.

PyCUDA is the stand-in of `libraries/`: tests/gpu/test_capture_cuda.py has the same with the real ones.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.kernels.own import own_kernel
from tilewright.tuner.capture.adopt import adopt_launch
from tilewright.tuner.capture.capture import Capture, CaptureError, capture
from tilewright.tuner.devices.cpu.device import CpuDevice

START = '''
import sys
import numpy as np
import pycuda.driver as drv
from pycuda.compiler import SourceModule
from pycuda import gpuarray

module = SourceModule("""
#define TILE 2
__global__ void scale(float *y, const float *x, float a, int n) {
  for (int t = 0; t < TILE; ++t) {
    int i = (blockIdx.x * TILE + t) * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
  }
}
""", options=["-O3", "--use_fast_math"])
scale = module.get_function("scale")
x = gpuarray.to_gpu(np.arange(1000, dtype=np.float32))
y = gpuarray.to_gpu(np.zeros(1000, np.float32))
'''
CALLED = "scale(y, x, np.float32(3), np.int32(1000), block=(64, 1, 1), grid=(8, 1))\n"
MANY = f"for _ in range(500):\n    {CALLED}"


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Captures a program."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "libraries"))

    def run(text: str, *arguments: str, **options: object) -> Capture:
        program = tmp_path / "app.py"
        program.write_text(text)
        return capture([sys.executable, str(program), *arguments], tmp_path / "seen", **options)

    return run


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "app.py")


def test_every_way_to_launch_is_counted_and_described(ran):
    text = START + MANY + (
        "scale.prepare('PPfi')\n"
        "for _ in range(40):\n"
        "    scale.prepared_call((1, 1), (32, 1, 1), y.gpudata, x.gpudata, 2.0, 10)\n"
        "    scale.prepared_async_call((2, 1), (32, 1, 1), None, y.gpudata, x.gpudata, 2.0, 10, shared_size=64)\n"
        "raw = drv.mem_alloc(400)\n"
        "scale.prepared_timed_call((3, 1), (32, 1, 1), raw, int(x.gpudata), 2.0, 10)()\n"
        "host = np.zeros(20, np.float32)\n"
        "scale(drv.Out(host), drv.In(host), np.array(2, np.float32), np.int32(20), block=(4, 1, 1))\n"
    )  # fmt: skip
    captured = ran(text)
    rows = {(tuple(row["grid"]), row["calls"], row["is_exact"]): row for row in captured.launches}
    assert set(rows) == {
        ((8, 1), 500, True),
        ((1, 1), 40, True),
        ((2, 1), 40, True),
        ((3, 1), 1, True),
        ((1, 1), 1, True),
    }
    assert sum(row["share"] for row in captured.launches) == pytest.approx(1)
    first = rows[(8, 1), 500, True]
    array = {"kind": "tensor", "dtype": "float32", "shape": [1000], "bytes": 4000}
    number = {"kind": "scalar", "dtype": "int32", "value": 1000}
    assert first["arguments"] == [array, array, {"kind": "scalar", "dtype": "float32", "value": 3.0}, number]
    assert (first["entry"], first["library"], first["block"]) == ("scale", "PyCUDA", [64, 1, 1])
    assert (first["options"], "__global__" in first["source"]) == (["-O3", "--use_fast_math"], True)
    assert rows[(2, 1), 40, True]["shared_bytes"] == 64
    assert rows[(3, 1), 1, True]["arguments"][0] == {"kind": "pointer", "shape": [400], "bytes": 400}
    assert rows[(3, 1), 1, True]["arguments"][1] == array  # its address alone
    assert rows[(1, 1), 1, True]["arguments"][2] == {"kind": "scalar", "dtype": "float32", "value": 2.0}
    assert sorted({row["name"] for row in captured.launches}) == ["scale", *(f"scale_{n}" for n in range(2, 6))]


def test_a_capture_is_read_as_it_was_written(ran, tmp_path):
    captured = ran(START + CALLED)
    assert Capture.load(tmp_path / "seen") == captured
    assert left_behind(tmp_path / "seen") == ["capture.json"]
    with pytest.raises(CaptureError, match=r"there is no kernel 'other' in .*Kernels: scale"):
        captured.launch("other")


def test_shapes_of_one_grid_share_its_calls(ran):
    short = "z = gpuarray.to_gpu(np.zeros(100, np.float32))\n"
    captured = ran(START + short + MANY + MANY.replace("(y, x,", "(y, z,").replace("np.int32(1000)", "np.int32(100)"))
    assert sum(row["calls"] for row in captured.launches) == pytest.approx(1000, abs=1)
    assert [row["is_exact"] for row in captured.launches] == [False, False]


def test_a_launch_becomes_a_kernel_with_the_results_of_the_program_as_its_reference(ran, tmp_path):
    captured = ran(START + MANY, limit_bytes=1 << 20)
    adopted = adopt_launch(captured, "scale", target=tmp_path / "made")
    kernel = own_kernel(adopted.folder)
    space = kernel.variants[0].space()
    assert dict(space.default().items) == {"TILE": 2, "block_size_x": 64}
    assert {one.name: one.values for one in space.parameters} == {
        "TILE": (1, 2, 4, 8),
        "block_size_x": (16, 32, 64, 128, 256),
    }
    assert (kernel.flags, kernel.verified) == (("--use_fast_math",), None)
    np.testing.assert_array_equal(np.load(adopted.folder / "answer_y.npy"), 3 * np.arange(1000, dtype=np.float32))
    device, problem = CpuDevice(), kernel.problem(kernel.example_shape)
    bench = device.bench(kernel, problem, seed=1)
    try:
        feasible = kernel.space(problem, device.model.limits).feasible
        assert all(bench.verify(bench.compile(one)).is_right for one in [feasible[0], feasible[-1]])
    finally:
        bench.close()
        device.close()


def test_without_contents_any_size_may_be_asked_for(ran, tmp_path):
    adopted = adopt_launch(ran(START + CALLED), "scale", target=tmp_path / "made")
    kernel = own_kernel(adopted.folder)
    assert kernel.verified == "against the kernel's default configuration, not a reference"
    assert kernel.problem({"n": 77}).shape == {"n": 77}
    assert any("contents were not kept" in text for text in adopted.notes)


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("import sys; sys.exit(7)", 7, "ended with status 7: nothing is kept of it"),
        (START + CALLED + "raise ValueError", 1, "ended with status 1"),
        (START + CALLED + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, "ended with status 137"),
        (START, 3, "launched nothing through Triton, PyCUDA's SourceModule, CuPy's RawModule or RawKernel"),
        (START + "import os\nif os.fork() == 0:\n    " + CALLED + "    os._exit(0)\nos.wait()\n" + MANY, 1, "forks"),
        (START + MANY + "import os\nif os.fork() == 0:\n    " + CALLED + "    os._exit(0)\nos.wait()\n", 1, "forks"),
        (
            START + CALLED + "import subprocess\nif len(sys.argv) < 2:\n"
            "    subprocess.run([sys.executable, __file__, 'again'], check=True)\n",
            1,
            "2 processes of",
        ),
        (
            START
            + "import os, signal\nif len(sys.argv) > 1:\n    "
            + CALLED
            + "    os.kill(os.getpid(), signal.SIGTERM)\n"
            "import subprocess\nsubprocess.run([sys.executable, __file__, 'again'])\n",
            3,
            "are killed before they end, and so write nothing: let them end by themselves",
        ),
    ],
)
def test_a_program_that_cannot_be_captured_is_one_line_and_leaves_nothing(ran, tmp_path, text, status, words):
    with pytest.raises(CaptureError, match=words) as refused:
        ran(text)
    assert (refused.value.status, "\n" in str(refused.value)) == (status, False)
    assert left_behind(tmp_path) == []


def test_a_fork_that_launches_nothing_is_no_matter(ran):
    captured = ran(START + MANY + "import os\nif os.fork() == 0:\n    sys.exit()\nos.wait()\n" + CALLED)
    assert [row["calls"] for row in captured.launches] == [501]


def test_contents_over_the_limit_leave_nothing(ran, tmp_path):
    with pytest.raises(CaptureError, match=r"of scale .* 0.01526 MiB, over the limit of 0.009537.*--contents-limit"):
        ran(START + CALLED, limit_bytes=10_000)
    assert left_behind(tmp_path) == []


def test_a_folder_that_is_there_is_kept(ran, tmp_path):
    (tmp_path / "seen").mkdir()
    with pytest.raises(CaptureError, match="is there already; name another folder by --out"):
        ran(START + CALLED)


def test_what_starts_no_python_and_what_is_not_there_are_told(tmp_path):
    with pytest.raises(CaptureError, match="starts no Python that takes PYTHONPATH") as refused:
        capture(["true"], tmp_path / "seen")
    assert refused.value.status == 3
    with pytest.raises(CaptureError, match="no-such-program: No such file"):
        capture(["no-such-program"], tmp_path / "seen")
    assert left_behind(tmp_path) == []


def test_a_kernel_without_a_source_is_shown_and_not_adopted(ran, tmp_path):
    captured = ran(START + CALLED.replace("scale(", "module.module.get_function('binary')("))
    assert [(row["name"], row["source"]) for row in captured.launches] == [("binary", None)]
    with pytest.raises(CaptureError, match="binary has no source that could be found"):
        adopt_launch(captured, "binary", target=tmp_path / "made")
    assert left_behind(tmp_path) == ["seen"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("#define TILE 2", "#define TILE 2\n__constant__ float f[4];"),
            "reads __constant__ f, whose contents are not",
        ),
        (("np.float32(3)", "np.full(1, 3.0)"), "argument 3 is a struct"),
    ],
)
def test_what_a_declaration_cannot_say_is_refused_and_leaves_nothing(ran, tmp_path, change, words):
    captured = ran((START + CALLED).replace(*change))
    with pytest.raises(CaptureError, match=words):
        adopt_launch(captured, "scale", target=tmp_path / "made")
    assert left_behind(tmp_path) == ["seen"]


def test_times_are_read_before_a_program_gives_its_context_back(ran):
    assert ran(START + CALLED + "drv.Context.pop()\n").launches[0]["time_ms"] > 0


def test_a_folder_without_a_capture_is_told(tmp_path):
    with pytest.raises(CaptureError, match="holds no capture: make one: tilewright capture --"):
        Capture.load(tmp_path)
    (tmp_path / "capture.json").write_text("{}")
    with pytest.raises(CaptureError, match="is no capture of the format tilewright-capture/1"):
        Capture.load(tmp_path)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ('{"format": ', "capture.json is no JSON"),
        ("[]", "is no capture of the format"),
        ('{"format": "tilewright-capture/1"}', "lacks what a capture has of each launch: capture the program again"),
        ('{"format": "tilewright-capture/1", "launches": [{"name": "f"}]}', "lacks what a capture has of each launch"),
    ],
)
def test_a_document_that_no_capture_wrote_is_told(tmp_path, document, words):
    (tmp_path / "capture.json").write_text(document)
    with pytest.raises(CaptureError, match=words):
        Capture.load(tmp_path)


def test_what_is_captured_can_be_loaded(ran):
    text = START + CALLED + CALLED.replace("scale(", "module.module.get_function('binary')(")
    captured = ran(text)
    assert Capture.load(captured.folder) == captured


def test_the_program_needs_no_tilewright_and_keeps_its_own_start(ran, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins; builtins.own_start = True")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'own'}{os.pathsep}{os.environ['PYTHONPATH']}")
    text = START + CALLED + "assert own_start\nassert not any(m.split('.')[0] == 'tilewright' for m in sys.modules)\n"
    assert ran(text).launches[0]["calls"] == 1
