"""Several launches of one variant on the CPU device: in order, each with its own geometry, as one executable."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.kernels.kernel import Kernel, Launch, Preparation, Tensor, Variant, shape_of
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cpu import runner as cpu_runner
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import TunerError
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.host import HostFunction

SOURCE = """
extern "C" __global__ void reverse_twice(const REAL* x, REAL* y, REAL* z, unsigned char* workspace) {
  __shared__ REAL block[32];
  block[threadIdx.x] = 2 * x[blockIdx.x * 32 + threadIdx.x];
  __syncthreads();
  y[blockIdx.x * 32 + threadIdx.x] = block[threadIdx.x];
  if (WORKSPACE) reinterpret_cast<REAL*>(workspace)[blockIdx.x] = block[0];
}
extern "C" __global__ void reverse(const REAL* x, REAL* y, REAL* z, unsigned char* workspace) {
  const unsigned i = blockIdx.x * 8 + threadIdx.x;
  z[i] = y[SHAPE_N - 1 - i] + (WORKSPACE ? reinterpret_cast<REAL*>(workspace)[i / 32] : 0);
}
"""


def reference(problem, arrays, _scalars):
    y = 2.0 * arrays["x"].astype(np.float64)
    return {"y": y, "z": y[::-1] + np.repeat(y[::32], 32) * KEEPS[problem.shape["n"]]}


KEEPS = {320: 0, 640: 1}
"""By length, whether the second launch reads what the first has left in the workspace."""


def kernel_in(folder, source=SOURCE):
    (folder / "reverse.cu").write_text(source)
    return Kernel(
        name="reverse",
        folder=folder,
        arguments=tuple(
            Tensor(name, role, shape_of("n")) for name, role in (("x", "input"), ("y", "output"), ("z", "output"))
        ),
        variants=(
            Variant(
                "plain",
                "reverse.cu",
                lambda _c, p: Launch((p.shape["n"] // 8, 1, 1), (8, 1, 1)),
                workspace_bytes=lambda _c, p: 4 * (p.shape["n"] // 32) * KEEPS[p.shape["n"]],
                before=(Preparation("twice", lambda _c, p: Launch((p.shape["n"] // 32, 1, 1), (32, 1, 1))),),
            ),
        ),
        reference=reference,
        example_shape={"n": 320},
    )


@pytest.mark.parametrize("n", sorted(KEEPS))
def test_a_launch_finds_what_those_before_it_wrote_also_with_several_processes(tmp_path, monkeypatch, n):
    monkeypatch.setattr(cpu_runner, "_WORK_OF_A_PROCESS", 1)
    monkeypatch.setattr(cpu_runner.os, "sched_getaffinity", lambda _pid: set(range(3)))
    flag = f"#define WORKSPACE {KEEPS[n]}\n"
    # Without a workspace there is no parameter for it either.
    text = flag + (SOURCE if KEEPS[n] else SOURCE.replace(", unsigned char* workspace", "").replace("workspace)", "z)"))
    kernel, device = kernel_in(tmp_path, text), CpuDevice()
    problem, configuration = kernel.problem({"n": n}), Configuration.of("plain", {})
    bench = device.bench(kernel, problem, seed=1)
    try:
        assert bench.runner.processes(bench.compile(configuration)) == (1 if KEEPS[n] else 3)
        evaluation = bench.evaluate(configuration, "warm")
        assert evaluation.outcome is Outcome.MEASURED, evaluation.log
    finally:
        bench.close()
        device.close()
    x = np.arange(n, dtype=np.float32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    function = HostFunction(kernel, problem, Choice(configuration, "pinned"))
    function.launch(tuple(array.ctypes.data for array in (x, y, z)), (), 0, None)
    expected = reference(problem, {"x": x}, {})
    assert np.array_equal(y, expected["y"])
    assert np.array_equal(z, expected["z"])


def test_launches_with_other_parameters_are_refused(tmp_path):
    text = "#define WORKSPACE 0\n" + SOURCE.replace(", unsigned char* workspace", "").replace("workspace)", "z)")
    kernel = kernel_in(tmp_path, text.replace("reverse(const REAL* x", "reverse(int n, const REAL* x"))
    device = CpuDevice()
    bench = device.bench(kernel, kernel.problem({"n": 320}), seed=1)
    try:
        with pytest.raises(TunerError, match="the launches of a variant must have the same parameters"):
            bench.verify(bench.compile(Configuration.of("plain", {})))
    finally:
        bench.close()
        device.close()
