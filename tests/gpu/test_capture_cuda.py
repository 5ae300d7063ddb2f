"""Programs of PyCUDA and CuPy captured on a GPU; what is adopted of them is checked and computes what they computed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tilewright.kernels.own import own_kernel
from tilewright.tuner.capture.adopt import adopt_launch
from tilewright.tuner.capture.capture import Capture, CaptureError, capture
from tilewright.tuner.kernel_check.check import check_kernel
from tilewright.tuner.kernel_check.report import KernelCheckReport
from tilewright.tuner.outcome import Outcome

pytestmark = pytest.mark.gpu
PAGE = (Path(__file__).parents[2] / "docs/capture.md").read_text()

MORE_OF_PYCUDA = '''
import pycuda.driver as drv
import pycuda.tools

other = SourceModule("""
#ifndef WIDTH
#define WIDTH 64
#endif
__constant__ float weights[3];
__global__ void blur(float *out, const float *in, int n) {
  __shared__ float tile[WIDTH + 2];
  int i = blockIdx.x * WIDTH + threadIdx.x;
  for (int k = threadIdx.x; k < WIDTH + 2; k += WIDTH) {
    int from = blockIdx.x * WIDTH + k - 1;
    tile[k] = from >= 0 && from < n ? in[from] : 0;
  }
  __syncthreads();
  if (i < n) out[i] = weights[0] * tile[threadIdx.x] + weights[1] * tile[threadIdx.x + 1]
                    + weights[2] * tile[threadIdx.x + 2];
}
""", options=["-DWIDTH=128"])
address, size = other.get_global("weights")
drv.memcpy_htod(address, np.array([0.25, 0.5, 0.25], np.float32))
blur = other.get_function("blur").prepare("PPi")
stream = drv.Stream()
pool = pycuda.tools.DeviceMemoryPool()
out = gpuarray.zeros(n, np.float32, allocator=pool.allocate)
for _ in range(50):
    blur.prepared_async_call((-(-n // 128), 1), (128, 1, 1), stream, out.gpudata, x.gpudata, n)
    blur.prepared_call((1, 1), (128, 1, 1), drv.mem_alloc(4 * n), int(x.gpudata), 100)
blur.prepared_timed_call((2, 1), (128, 1, 1), out.gpudata, x.gpudata, 200)()
host = np.zeros(n, np.float32)
scale(drv.Out(host), drv.In(x.get()), np.float32(2), np.int32(n), grid=(n // 64, 1), block=(32, 1, 1))
assert np.allclose(host[:100], 2 * x.get()[:100])
assert blur.num_regs > 0
del out
pool.stop_holding()
'''

MORE_OF_CUPY = '''
import numpy as np

sums = cupy.RawKernel(r"""
extern "C" __global__ void sums(double *out, const float *in, int rows, int columns) {
  int column = blockIdx.x * BLOCK + threadIdx.x;
  if (column >= columns) return;
  double sum = 0;
  for (int row = 0; row < rows; ++row) sum += in[row * columns + column];
  out[column] = sum;
}
""", "sums", options=("-DBLOCK=64",))
assert isinstance(sums, cupy.RawKernel) and isinstance(scale, cupy.RawKernel)
matrix, out = cupy.arange(15_000, dtype=cupy.float32).reshape(30, 500) / 1000, cupy.zeros(500)
for _ in range(100):
    sums((8,), (64,), (out, matrix, np.int32(30), np.int32(500)))
assert cupy.allclose(out, matrix.astype(float).sum(0))
assert scale.num_regs > 0
scale.max_dynamic_shared_size_bytes = 1024
scale((41,), (128,), (y, x, cupy.float32(3), cupy.int32(n)), shared_mem=1024)
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    stream.begin_capture()
    sums((9,), (64,), (out, matrix, np.int32(30), np.int32(500)))
    graph = stream.end_capture()
    graph.launch()
stream.synchronize()
'''


def example(name: str) -> str:
    (text,) = re.findall(rf"`{name}`:\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return text


def captured(folder: Path, text: str, **options: object) -> Capture:
    program = folder / "app.py"
    program.write_text(text)
    return capture([sys.executable, str(program)], folder / "seen", **options)


def is_right(device, folder: Path) -> list[tuple[str, str]]:
    """Outcome and log of the folder's default and last configuration on the GPU, after its check without one."""
    kernel = own_kernel(folder)
    report = KernelCheckReport(kernel.name)
    check_kernel(kernel, report, capabilities=[(9, 0)], shapes=[], configurations=1, say=print)
    assert report.ok, report.findings
    problem = kernel.problem(kernel.example_shape)
    bench = device.bench(kernel, problem, seed=1)
    try:
        space = kernel.space(problem, device.model.limits)
        evaluations = [bench.evaluate(one, "warm") for one in (space.defaults()[0], space.feasible[-1])]
    finally:
        bench.close()
    return [(one.outcome, one.log) for one in evaluations]


def test_a_pycuda_program_is_captured_shown_adopted_and_right(device, tmp_path):
    seen = captured(tmp_path, example("app.py") + MORE_OF_PYCUDA, limit_bytes=1 << 24)
    rows = {(row["entry"], row["calls"], tuple(row["grid"])): row for row in seen.launches if row["calls"] > 1}
    assert set(rows) == {("scale", 1000, (40, 1)), ("blur", 50, (79, 1)), ("blur", 50, (1, 1))}
    assert all(0.0005 < row["time_ms"] / row["calls"] < 1 for row in rows.values())
    blur = rows["blur", 50, (79, 1)]
    shapes = [one.get("shape") for one in blur["arguments"]]
    assert shapes == [[10_000], [10_000], None]
    assert rows["blur", 50, (1, 1)]["arguments"][0]["bytes"] >= 40_000
    assert any(row["calls"] == 1 and row["arguments"][0].get("shape") == [10_000] for row in seen.launches)
    name = rows["scale", 1000, (40, 1)]["name"]
    for one, parameters in ((name, {"TILE", "block_size_x"}), (blur["name"], {"WIDTH"})):
        adopted = adopt_launch(seen, one, target=tmp_path / "made")
        assert {p.name for p in own_kernel(adopted.folder).variants[0].parameters} == parameters
        assert is_right(device, adopted.folder) == [(Outcome.MEASURED, "")] * 2


def test_a_cupy_program_is_captured_shown_adopted_and_right(device, cupy, tmp_path):
    seen = captured(tmp_path, example("app_cupy.py") + MORE_OF_CUPY, limit_bytes=1 << 24)
    rows = {(row["entry"], row["calls"]): row for row in seen.launches}
    assert set(rows) == {("scale<float, 2>", 1000), ("scale<float, 2>", 1), ("sums", 100)}
    assert all(0.0005 < row["time_ms"] / row["calls"] < 1 for row in seen.launches if row["calls"] > 1)
    for key, parameters in ((("scale<float, 2>", 1000), {"GIVEN_TILE", "block_size_x"}), (("sums", 100), {"BLOCK"})):
        adopted = adopt_launch(seen, rows[key]["name"], target=tmp_path / "made")
        assert {p.name for p in own_kernel(adopted.folder).variants[0].parameters} == parameters
        assert is_right(device, adopted.folder) == [(Outcome.MEASURED, "")] * 2


def test_a_program_that_forks_and_launches_there_leaves_nothing(gpu, tmp_path):
    fork = (
        "import os, signal\nif os.fork() == 0:\n    signal.alarm(10)\n    try:\n        "
        "scale(y, x, np.float32(3), np.int32(n), grid=(40, 1), block=(128, 1, 1))\n"
        "    except Exception as error:\n        print(type(error))\n    os._exit(0)\nos.wait()\n"
    )
    with pytest.raises(CaptureError, match="forks, and launches in the fork"):
        captured(tmp_path, example("app.py") + fork)
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]
