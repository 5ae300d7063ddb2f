"""A script becomes folders that can be loaded and computed; one that cannot is refused, and leaves nothing behind."""

from pathlib import Path

import numpy as np
import pytest
from adopting import adopted, verified

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.own import odd_shapes, own_kernel
from tilewright.tuner.adopt.run import AdoptionError
from tilewright.tuner.devices.cpu.device import CpuDevice

ADD = """
import json
import sys
import numpy
from kernel_tuner import tune_kernel, util
from kernel_tuner.observers import BenchmarkObserver
from kernel_tuner.file_utils import store_output_file

class Registers(BenchmarkObserver):
    def get_results(self):
        return {}

source = '''
__global__ void vector_add(float *c, float *a, float *b, int n) {
    int i = blockIdx.x * block_size_x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
'''
size = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
a, b = numpy.random.randn(2, size).astype(numpy.float32)
arguments = [numpy.zeros_like(a), a, b, numpy.int32(size)]
results, env = tune_kernel("vector_add", source, size, arguments, {"block_size_x": [32, 64, 96]},
                           observers=[Registers()], metrics={"GB/s": lambda p: size / p["time"]})
with open("best.json", "w") as file:
    json.dump(util.get_best_config(results, "time"), file)
assert json.load(open("best.json"))["time"] == 1
store_output_file(f"results_{env['device_name']}_sm{env['compute_capability']}.json", results, env["best_config"])
"""

SCALE = """
import numpy as np
import kernel_tuner

with open("scale.cu") as file:
    source = file.read()
rows, columns = 48, 64
x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
y = np.zeros_like(x)
tuned = dict(block_size_x=[8, 16, 32], block_size_y=[1, 4], ROWS=[1, 2, 3], kind=["float", "double"], V=[1, 2])

def close(answer, result, atol=None):
    return np.allclose(answer[0], result[0] / SCALE, atol=atol)

SCALE = 2
kernel_tuner.tune_kernel(
    "scale<kind>", source, lambda p: (columns, rows), [y, x, np.float32(2), np.int32(columns)], tuned,
    grid_div_y=["block_size_y * ROWS"], restrictions=[lambda p: p["ROWS"] < 3, "V == 1 or ROWS == 1"],
    answer=[x, None, None, None], verify=close, atol=1e-3, smem_args={"size": "4 * block_size_x"},
    cmem_args={"offset": np.array([0.5, 0], np.float32)}, compiler_options=["-O3", "-DTWO=2", "-arch=sm_70"],
    block_size_names=["block_size_x", "block_size_y"], lang="CUDA", verbose=True)
"""
SCALE_SOURCE = """
#include "row.h"
#define block_size_x 16
__constant__ float offset[2];
template <typename T>
__global__ void scale(T_FLOAT *y, const float *x, float factor, int width) {
  extern __shared__ float tile[];
  int column = blockIdx.x * block_size_x + threadIdx.x;
  tile[threadIdx.x] = offset[0] + offset[1];
  for (int i = 0; i < ROWS; i += V)
    for (int v = 0; v < V; ++v) {
      int row = (blockIdx.y * ROWS + i + v) * block_size_y + threadIdx.y;
      y[row * width + column] = (T)(x[row * width + column] * factor * tile[threadIdx.x] * TWO);
    }
}
"""


def test_a_script_becomes_a_kernel_for_any_size_and_nothing_that_it_writes_is_kept(tmp_path):
    (tmp_path / "best.json").write_text("measured")
    adoption = adopted(tmp_path, ADD, "3000")
    [call] = adoption.calls
    assert call.notes == (
        "metrics are not taken over",
        "observers are not taken over: what is minimised is the time",
    )
    kernel = own_kernel(call.folder)
    assert (kernel.name, dict(kernel.example_shape)) == ("vector_add", {"n": 3000})
    assert [(t.name, t.role) for t in kernel.tensors] == [("c", "output"), ("a", "input"), ("b", "input")]
    assert kernel.variants[0].parameters[0].values == (32, 64, 96)
    assert verified(call.folder, {"n": 101}) == [True, True]
    assert (tmp_path / "best.json").read_text() == "measured"
    assert {path.name for path in tmp_path.iterdir()} == {"best.json", "made", "script.py"}
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"vector_add"}


def test_all_that_a_call_can_say_is_in_its_folder(tmp_path):
    (tmp_path / "scale.cu").write_text(SCALE_SOURCE)
    (tmp_path / "row.h").write_text("#define T_FLOAT float\n")
    [call] = adopted(tmp_path, SCALE).calls
    assert not call.refused
    assert call.notes == ("without the flags -O3 -arch=sm_70", "for this size only")
    kernel = own_kernel(call.folder)
    assert (kernel.entry, kernel.flags) == ("scale<kind>", ("-DTWO=2",))
    assert {path.name for path in call.folder.iterdir()} == {
        *("declaration.py", "scale.cu", "row.h", "x.npy", "answer_y.npy"),
    }
    with pytest.raises(InvalidProblemError, match="must be 3072, as found there"):
        kernel.problem({"n": 3073})
    assert odd_shapes(kernel) == [{"n": 3072}]
    problem = kernel.problem(kernel.example_shape)
    device = CpuDevice()
    space = kernel.space(problem, device.model.limits)
    device.close()
    values = [one.values for one in space.feasible]
    assert len(values) == 3 * 2 * 3 * 2  # ROWS = V = 1, ROWS = 2 with V = 1, and ROWS = 1 with V = 2
    assert all(one.ROWS < 3 and (one.V_index == 0 or one.ROWS == 1) for one in values)
    launch = kernel.variants[0].launch(space.defaults()[0].values, problem)
    assert (launch.grid, launch.block, launch.shared_bytes) == ((2, 12, 1), (32, 4, 1), 128)
    assert np.array_equal(np.load(call.folder / "answer_y.npy").ravel(), np.arange(48 * 64))
    assert verified(call.folder, dict(kernel.example_shape)) == [True, True]
    (call.folder / "answer_y.npy").unlink()
    np.save(call.folder / "answer_y.npy", np.arange(48 * 64) + 1)
    assert verified(call.folder, dict(kernel.example_shape)) == [False, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_package", "needs the package no_such_package, which this Python does not have"),
        ("raise ValueError('no data')", "failed before it called Kernel Tuner: ValueError: no data, line 1"),
        ("import sys\nsys.exit(3)", "it exited with 3"),
        ("print('hello')", "calls neither tune_kernel nor run_kernel"),
        ("import os\nprint('out of luck', flush=True)\nos._exit(7)", "ended with status 7: out of luck"),
    ],
)
def test_a_script_that_yields_no_call_is_refused_and_leaves_nothing(tmp_path, text, said):
    with pytest.raises(AdoptionError, match=said.replace("(", r"\(")):
        adopted(tmp_path, text)
    assert {path.name for path in tmp_path.iterdir()} == {"script.py"}


def test_a_script_that_does_not_end_is_ended_with_what_it_started(tmp_path):
    text = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'input()'])\nwhile True: pass"
    with pytest.raises(AdoptionError, match="did not end within 1 s: allow more by --time-limit"):
        adopted(tmp_path, text, limit_s=1)
    assert {path.name for path in tmp_path.iterdir()} == {"script.py"}


REFUSED = """
import numpy as np
from kernel_tuner import tune_kernel
from kernel_tuner.accuracy import TunablePrecision
x, n, source = np.ones(64, np.float32), np.int32(64), "__global__ void f(float *x, int n) { x[threadIdx.x] = n; }"
tuned = {"block_size_x": [32, 64]}
tune_kernel("f", source, 64, [x, n], tuned, texmem_args={"t": x})
tune_kernel("f", source, 64, [x, n], tuned, lang="OpenCL")
tune_kernel("f", "__kernel void f() {}", 64, [x, n], tuned)
tune_kernel("f", source, 64, [TunablePrecision("t", x), n], tuned)
tune_kernel("f", source, 64, [x], tuned)
tune_kernel("f", source, 64, [x.astype(np.longdouble), n], tuned)
tune_kernel("f", source, 64, [x, n], tuned, restrictions=["width > 3"])
tune_kernel("f", source, 64, [x, n], tuned)
tune_kernel("f", source, 64, [x, n], tuned)
1 / 0
"""


def test_calls_are_refused_one_by_one(tmp_path):
    adoption = adopted(tmp_path, REFUSED)
    assert [call.refused for call in adoption.calls] == [
        "the source has no texture reference t, which texmem_args fill",
        "it is in OpenCL; kernels in CUDA are taken over",
        "its source is in OpenCL; kernels in CUDA are taken over",
        "argument 1 is another one for each configuration",
        "the function takes 2 arguments, and 1 are passed",
        "an argument is of float128, which is not supported",
        "restriction 'width > 3' uses width, which is no parameter",
        "",
        "",
    ]
    assert [call.folder.name for call in adoption.calls if call.folder] == ["f", "f_2"]
    [note] = adoption.notes
    assert note.startswith("the script failed after call 9, whose result is made up, so calls may be missing: ")
    assert note.endswith("ZeroDivisionError: division by zero, line 16")


def test_a_folder_that_exists_stays_as_it_is(tmp_path):
    there = tmp_path / "made" / "vector_add"
    there.mkdir(parents=True)
    with pytest.raises(AdoptionError, match="vector_add exists already: name another place by --folder"):
        adopted(tmp_path, ADD)
    assert [path.name for path in there.parent.iterdir()] == ["vector_add"]
    assert not list(there.iterdir())


def test_a_call_of_run_kernel_alone_is_a_kernel_of_one_configuration(tmp_path):
    text = ADD.replace("tune_kernel(", "run_kernel(").replace("import tune_kernel", "import run_kernel")
    text = text.partition("results, env")[0] + 'run_kernel("vector_add", source, size, arguments, {"block_size_x": 64})'
    [call] = adopted(tmp_path, text).calls
    assert own_kernel(call.folder).variants[0].parameters[0].values == (64,)


def test_what_another_kernel_computes_is_the_answer(tmp_path):
    text = ADD.replace("import tune_kernel,", "import run_kernel, tune_kernel,")
    text = text.replace(
        "results, env = tune_kernel(",
        'right = run_kernel("vector_add", source, size, arguments, {"block_size_x": 64})\nresults, env = tune_kernel(',
    ).replace("observers=", "answer=[right[0], None, None, None], observers=")
    call = adopted(tmp_path, text).calls[-1]
    assert "the answer is what vector_add computes on the CPU device" in call.notes
    arrays = {name: np.load(call.folder / f"{name}.npy") for name in ("a", "b", "answer_c")}
    assert np.array_equal(arrays["answer_c"], arrays["a"] + arrays["b"])


SMOOTH = """
import numpy as np
from kernel_tuner import tune_kernel
source = '''
#define width 5
__global__ void smooth(float *y, const float *x, float *sums, int n) {
  int i = blockIdx.x * block_size_x + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < width / step * step; k += step)
    for (int s = 0; s < step; ++s) sum += x[i + k + s];
  for (int k = width / step * step; k < width; ++k) sum += x[i + k];
  if (i < n) y[i] = sum;
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
'''
n = 1000
x = np.random.randn(2000).astype(np.float32)
tuned = {"block_size_x": [64, 32], "width": [1, 3, 5, 7], "step": [1, 2, 3], "unused": [1, 2, 3]}
arguments = [np.zeros(n, np.float32), x, np.zeros(n, np.float32), np.int32(n)]
tune_kernel("smooth", source, n, arguments, tuned, restrictions=["width + step < 10"])
"""


def test_a_parameter_that_changes_the_result_is_an_axis_and_one_that_does_not_is_tuned(tmp_path):
    [call] = adopted(tmp_path, SMOOTH).calls
    assert call.notes[0] == "width: changes the result, so it is an axis of the problem now"
    assert call.notes[1].startswith("sums: each block writes a part; their sums are compared")
    kernel = own_kernel(call.folder)
    assert dict(kernel.example_shape) == {"n": 1000, "width": 1}
    assert [one.name for one in kernel.variants[0].parameters] == ["block_size_x", "step", "unused"]
    with pytest.raises(InvalidProblemError, match="must be 1 or 3 or 5 or 7, as found there"):
        kernel.problem({"n": 1000, "width": 2})
    limits = CpuDevice().model.limits
    counts = [len(kernel.space(kernel.problem({"n": 1000, "width": width}), limits).feasible) for width in (5, 7)]
    assert counts == [2 * 3 * 3, 2 * 2 * 3]  # step = 3 is out where the width is 7
    assert verified(call.folder, {"n": 1000, "width": 7}) == [True, False]  # blocks of 32 threads, not 64: other sums
    assert "#define width SHAPE_WIDTH" in (call.folder / "smooth.cu").read_text()


PRECISE = """
import numpy as np
from kernel_tuner import tune_kernel
from kernel_tuner.accuracy import AccuracyObserver, TunablePrecision
source = '''template <typename T> __global__ void twice(int n, const T *x, T *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + x[i];
}'''
x = np.random.randn(3000)
arguments = [np.int32(3000), TunablePrecision("real", x), TunablePrecision("real", np.zeros_like(x))]
tuned = {"block_size_x": [32, 64], "real": ["float", "double"]}
tune_kernel("twice<real>", source, 3000, arguments, tuned, answer=[None, None, 2 * x],
            observers=[AccuracyObserver("RMSE", "error")])
"""


def test_a_precision_that_is_tuned_is_the_dtype_of_the_problem(tmp_path):
    [call] = adopted(tmp_path, PRECISE).calls
    assert call.notes[1:] == (
        "real is the dtype of the problem now",
        "the answer is for one precision of several: it is not taken over",
    )
    kernel = own_kernel(call.folder)
    assert (kernel.dtypes, kernel.entry) == (("float32", "float64"), "twice<REAL>")
    assert [one.name for one in kernel.variants[0].parameters] == ["block_size_x"]
    assert verified(call.folder, {"n": 101}) == [True, True]


def test_zeros_that_are_read_would_hide_a_wrong_result(tmp_path):
    [call] = adopted(tmp_path, ADD.replace("a, b, numpy.int32", "a, 0 * b, numpy.int32")).calls
    assert call.notes[2:] == ("b is all zeros and is read: random numbers take their place",)
    assert own_kernel(call.folder).inputs is None


SEEDED = """
import numpy
from kernel_tuner import tune_kernel
source = "__global__ void copy(float *y, const float *x) { y[blockIdx.x * 64 + threadIdx.x] = x[threadIdx.x]; }"
x = numpy.random.rand(1 << 20).astype(numpy.float32)
tune_kernel("copy", source, 1 << 20, [numpy.zeros_like(x), x], {"block_size_x": [64]},
            answer=[None, numpy.array([x.sum(dtype=float)])], verify=lambda right, found, atol: True)
"""


def test_large_contents_that_can_be_drawn_again_need_no_file(tmp_path):
    [call] = adopted(tmp_path, SEEDED, limit_bytes=1 << 10).calls
    kernel = own_kernel(call.folder)
    made = kernel.inputs(kernel.problem(kernel.example_shape), np.random.default_rng(1))["x"]
    assert made.sum(dtype=float) == np.load(call.folder / "answer_x.npy")[0]
    assert not (call.folder / "x.npy").exists()


WITHOUT_GPU = """
import cupy as cp
import numpy as np
import pycuda.driver as drv
from kernel_tuner.kernelbuilder import PythonKernel
x = cp.random.randn(4000).astype(cp.float32)
y = drv.pagelocked_empty(4000, np.float32, mem_flags=drv.host_alloc_flags.PORTABLE)
source = "__global__ void twice(float *y, float *x, int n) { y[threadIdx.x] = 2 * x[threadIdx.x]; }"
doubled = PythonKernel("twice", source, 4000, [y, x, np.int32(4000)], {"block_size_x": 128},
                       inputs=[0, 1, 1], outputs=[1, 0, 0])
assert doubled(y, x, np.int32(4000)).shape == cp.asnumpy(y).shape
"""


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="with a GPU the script gets the real packages")
def test_a_script_that_uses_the_gpu_for_its_arrays_runs_without_one(tmp_path):
    adoption = adopted(tmp_path, WITHOUT_GPU)
    assert adoption.notes == ["arrays of cupy, pycuda were made by NumPy: there is no GPU here"]
    [call] = adoption.calls
    assert [(t.name, t.role) for t in own_kernel(call.folder).tensors] == [("y", "output"), ("x", "input")]
