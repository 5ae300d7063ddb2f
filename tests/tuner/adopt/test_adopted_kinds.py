"""Kinds of scripts that public collections have: tests, texture references, sums of which each block writes a part."""

import pytest
from adopting import adopted, verified

from tilewright.kernels.own import own_kernel
from tilewright.tuner.devices.cpu.device import CpuDevice


@pytest.fixture
def verifications():
    """Whether each configuration of a folder's kernel is right."""
    device = CpuDevice()

    def verified(folder):
        kernel = own_kernel(folder)
        problem = kernel.problem(kernel.example_shape)
        bench = device.bench(kernel, problem, seed=1)
        space = kernel.space(problem, device.model.limits)
        try:
            return {one.values["block_size_x"]: bench.verify(bench.compile(one)).is_right for one in space.feasible}
        finally:
            bench.close()

    yield verified
    device.close()


TESTS = """
import numpy as np
import pytest
from kernel_tuner import run_kernel

@pytest.fixture
def call():
    source = "__global__ void twice(float *y, const float *x, int n) { int i = blockIdx.x * block_size_x + threadIdx.x;"
    source += " if (i < n) y[i] = 2 * x[i]; }"
    x = np.random.randn(1000).astype(np.float32)
    return ["twice", source, 1000, [np.zeros_like(x), x, np.int32(1000)]]

@pytest.mark.parametrize("block_size_x", [64, 128, 256])
def test_twice(call, block_size_x):
    y, *_ = run_kernel(*call, {"block_size_x": block_size_x})
    assert np.allclose(y, 2 * call[-1][1])

def test_another_kernel():
    x = np.ones(64, np.float32)
    run_kernel("f", "__global__ void f(float *x) { x[threadIdx.x] = block_size_x; }", 64, [x], {"block_size_x": 64})
"""


@pytest.mark.in_turn(2)
def test_tests_are_run_and_calls_that_differ_in_values_are_one_kernel(tmp_path, verifications):
    twice, other = adopted(tmp_path, TESTS, name="test_script.py").calls
    assert (twice.kernel_name, other.kernel_name) == ("twice", "f")
    assert "the values of 3 calls of run_kernel are those of its parameters" in twice.notes
    assert verifications(twice.folder) == dict.fromkeys((64, 128, 256), True)
    assert own_kernel(other.folder).variants[0].parameters[0].values == (64,)


TEXTURES = """
import numpy as np
from kernel_tuner import tune_kernel

source = '''
texture<float, 2, cudaReadModeElementType> image;
static texture<int, 1> places;
__global__ void picked(float* y, const float by) {
  int x = blockIdx.x * block_size_x + threadIdx.x;
  y[x] = by * tex2D(image, x + 0.5f, tex1Dfetch(places, x) + 0.5f);
}
'''
image, places = np.random.randn(5, 64).astype(np.float32), (np.arange(64) % 6).astype(np.int32)
how = {"array": image, "address_mode": ["border", "border"], "filter_mode": "linear"}
answer = [np.append(image, np.zeros((1, 64)), 0)[places, np.arange(64)].astype(np.float32) * 2, None]
textures = {"image": how, "places": places}
tune_kernel("picked", source, 64, [np.zeros(64, np.float32), np.float32(2)], {"block_size_x": [32, 64]},
            answer=answer, texmem_args=textures)
inside = source.replace("__global__", "__device__ float read() { return tex2D(image, 0, 0); } __global__")
tune_kernel("picked", inside, 64, [np.zeros(64, np.float32), np.float32(2)], {"block_size_x": [32, 64]},
            texmem_args=textures)
"""


def test_texture_references_become_texture_objects(tmp_path, verifications):
    taken, refused = adopted(tmp_path, TEXTURES).calls
    assert "image is a texture object now, which the function takes last" in taken.notes
    image, places = (one.texture for one in own_kernel(taken.folder).arguments[2:])
    assert (image.memory, image.filter, image.address) == ("array", "linear", "border")
    assert places.memory == "linear"
    assert verifications(taken.folder) == {32: True, 64: True}
    assert refused.refused.startswith("the texture image is read by another function than picked")


PARTS = """
import numpy as np
from kernel_tuner import tune_kernel

source = '''
__device__ void finish(DTYPE v, DTYPE *out) {
  __shared__ DTYPE part[block_size_x];
  part[threadIdx.x] = v;
  __syncthreads();
  for (int half = block_size_x / 2; half; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0] WRONG;
}
__global__ void total(DTYPE *parts, DTYPE *x, int n) {
  int i = blockIdx.x * block_size_x + threadIdx.x;
  finish(i < n ? x[i] : 0, parts);
}
'''
x = (100 * np.random.randn(4099)).astype(np.NUMPY)
arguments = [np.zeros(129, np.NUMPY), x, np.int32(4099)]
tune_kernel("total", source, 4099, arguments, {"block_size_x": [32, 64, 128]})
"""


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(("c_type", "dtype"), [("float", "float32"), ("int", "int32")])
def test_parts_of_a_sum_are_compared_by_their_sum(tmp_path, verifications, c_type, dtype):
    text = PARTS.replace("DTYPE", c_type).replace("NUMPY", dtype)
    wrong = "+ (block_size_x == 64 && blockIdx.x == 0)"
    right = adopted(tmp_path, text.replace("WRONG", "")).calls[0]
    assert "parts: each block writes a part; their sums are compared" in right.notes[0]
    assert verifications(right.folder) == {32: True, 64: True, 128: True}
    (tmp_path / "other").mkdir()
    assert verifications(adopted(tmp_path / "other", text.replace("WRONG", wrong)).calls[0].folder)[64] is False


HOST = """
#include <cstdio>
#include "scaled.cu"
extern "C" float run(float* y, float* x, float* weights, int n) {
  float *x_there, *slopes = nullptr;
  cudaMalloc(&x_there, n * sizeof(float));
  cudaMemcpy(x_there, x, n * sizeof(float), cudaMemcpyHostToDevice);
  cudaMemcpyToSymbol(w, weights, 2 * sizeof(float));
#if WAY == 2
  cudaMemcpyToSymbolAsync(slope, slopes, sizeof(float));
#endif
  dim3 blocks(grid_size_x), threads(block_size_x, 1, 1);
  LAUNCH
  return 1;
}
"""
SCALED = """
__constant__ float w[2];
__constant__ float slope;
__global__ void scaled(float* y, const float* x, int n) {
  int i = blockIdx.x * block_size_x + threadIdx.x;
#if WAY == 2
  if (i < n) y[i] = slope * x[i];
#else
  if (i < n) y[i] = WAY * (w[0] + w[1]) * x[i];
#endif
}
"""
OF_HOST = """
import numpy as np
from kernel_tuner import tune_kernel

x, n = np.random.randn(1000).astype(np.float32), np.int32(1000)
arguments = [np.zeros_like(x), x, np.array([0.25, 0.75], np.float32), n]
tune_kernel("run", ["host.cu", "scaled.cu"], 1000, arguments, {"block_size_x": [32, 64], "WAY": [2, 1]}, lang="C")
"""


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ("scaled<<<blocks, threads>>>(y, x_there, n);", ""),
        ("for (int i = 0; i < 3; ++i) scaled<<<blocks, threads>>>(y, x_there, n);", "or one several times"),
        ("scaled<<<blocks, threads>>>(slopes, x_there, n);", "passes slopes, which is neither one of its arguments"),
        ("dim3 few(n / 32); scaled<<<few, threads>>>(y, x_there, n);", "the host computes few"),
    ],
)
def test_the_kernel_that_a_function_of_the_host_launches(tmp_path, launch, said, verifications):
    (tmp_path / "scaled.cu").write_text(SCALED)
    (tmp_path / "host.cu").write_text(HOST.replace("LAUNCH", launch))
    [call] = adopted(tmp_path, OF_HOST).calls
    assert said in call.refused
    if not said:
        [variant] = own_kernel(call.folder).variants
        assert "w[2] = {\n2.5e-01f, 7.5e-01f}" in (call.folder / "scaled.cu").read_text()
        assert [one.values for one in variant.parameters] == [(32, 64), (1,)]
        assert verifications(call.folder) == {32: True, 64: True}


BESIDE = """
import numpy as np
from kernel_tuner import run_kernel, tune_kernel

naive = "__global__ void naive(float *y, const float *x) { int i = blockIdx.x * block_size_x + threadIdx.x; "
naive += "y[i] = x[i]; }"
x = np.random.randn(1024).astype(np.float32)
y, *_ = run_kernel("naive", NAIVE, 1024, [np.zeros_like(x), x], {"block_size_x": 64})
fast = naive.replace("naive", "fast").replace("= x[i]", "= x[i] * (block_size_x == 32 ? 2 : 1)")
tune_kernel("fast", fast, 1024, [np.zeros_like(x), x], {"block_size_x": [32, 64, 128]}, answer=[ANSWER, None])
"""


def test_an_answer_that_run_kernel_computes_is_computed_on_the_cpu(tmp_path, verifications):
    call = adopted(tmp_path, BESIDE.replace("NAIVE", "naive").replace("ANSWER", "y")).calls[-1]
    assert "the answer is what naive computes on the CPU device" in call.notes
    assert verifications(call.folder) == {32: False, 64: True, 128: True}


ROUNDED = """
import numpy as np
from kernel_tuner import run_kernel, tune_kernel

source = "__global__ void NAME(float *y, const float *x) { int i = blockIdx.x * block_size_x + threadIdx.x; "
source += "float sum = 0; for (int at = 0; at < 300; ++at) sum += x[(i + ORDER) % 4096] * x[(i + 7 * (ORDER)) % 4096];"
source += "y[i] = SUM; }"
x = np.random.RandomState(1).randn(4096).astype(np.float32)
naive = source.replace("NAME", "naive").replace("ORDER", "at").replace("SUM", "sum")
y, *_ = run_kernel("naive", naive, 4096, [np.zeros_like(x), x], {"block_size_x": 64})
fast = source.replace("NAME", "fast").replace("ORDER", "299 - at")
fast = fast.replace("SUM", "i == 7 && block_size_x == 32 ? sum + 0.01f : sum")
tune_kernel("fast", fast, 4096, [np.zeros_like(x), x], {"block_size_x": [32, 64]}, answer=[y, None])
"""


def test_an_answer_of_the_cpu_admits_that_a_kernel_rounds_otherwise(tmp_path, verifications):
    """On a GPU no result is the CPU's bit for bit, and numpy.allclose refuses sums that are nearly 0."""
    call = adopted(tmp_path, ROUNDED).calls[-1]
    assert verifications(call.folder) == {32: False, 64: True}


def test_shared_memory_of_a_class_or_of_another_function_is_said_to_be_untold(tmp_path):
    helper = "__device__ float of(float x) { __shared__ float s[64]; s[threadIdx.x] = x; return s[threadIdx.x]; } "
    called = f"naive = {helper!r} + naive.replace('x[i]', 'of(x[i])')"
    text = BESIDE.replace("NAIVE", "naive").replace("ANSWER", "y").replace("x = np", f"{called}\nx = np", 1)
    assert any("static shared memory could not be told" in note for note in adopted(tmp_path, text).calls[-1].notes)


@pytest.mark.parametrize(
    ("naive", "answer", "said"),
    [
        ("naive", "2 * y", "the answer is what another kernel computes, which was not run"),
        ("naive.replace('x[i]', 'no_such[i]')", "y", "which failed on the CPU device: it is not taken over"),
    ],
)
def test_an_answer_that_cannot_be_computed_is_left_out_with_a_note(tmp_path, naive, answer, said):
    call = adopted(tmp_path, BESIDE.replace("NAIVE", naive).replace("ANSWER", answer)).calls[-1]
    assert any(said in note for note in call.notes)
    assert own_kernel(call.folder).check is None


def script(kernel, arguments, tuned, size="4099", more=""):
    return f"""
import numpy as np
from kernel_tuner import tune_kernel
n = {size}
x = np.random.randn(n).astype(np.float32)
tune_kernel("k", '''__global__ void k({kernel}''', n, [{arguments}], {tuned}{more})
"""


INDEX = "int i = blockIdx.x * block_size_x + threadIdx.x;"
POSITIVE = f"int *y, const float *x, int n) {{ {INDEX} if (i < n) y[i] = method > 0 && x[i] > 0; }}"
WORKING = """float *y, const float *x, int n) {
  int first = (blockIdx.x * block_size_x + threadIdx.x) * work;
  for (int i = first; i < first + work; ++i) if (i < n) y[i] = x[i] + 1;
}"""


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("kernel", "output", "tuned"),
    [
        (POSITIVE, "np.zeros(n, np.int32)", "{'block_size_x': [32, 64], 'method': [1, 2, 3]}"),
        (WORKING, "np.zeros_like(x)", "{'block_size_x': [32, 64], 'work': [1, 2, 4]}"),
        (WORKING, "np.ones_like(x)", "{'block_size_x': [32, 64], 'work': [1, 2, 4]}"),
    ],
)
def test_a_parameter_that_changes_which_elements_a_block_writes_is_tuned(tmp_path, kernel, output, tuned):
    [call] = adopted(tmp_path, script(kernel, f"{output}, x, np.int32(n)", tuned)).calls
    assert not [note for note in call.notes if "changes the result" in note]
    assert len(own_kernel(call.folder).variants[0].parameters) == 2


def test_a_float_and_a_boolean_keep_their_text_in_the_source(tmp_path):
    kernel = f"float *y, const float *x, int n) {{ {INDEX} if (i < n) y[i] = x[i] * (1 / scale); }}"
    text = script(
        kernel, "np.zeros_like(x), x, np.int32(n)", "{'block_size_x': [32], 'scale': [2.0], 'on': [True, False]}"
    )
    [call] = adopted(tmp_path, text).calls
    source = (call.folder / "k.cu").read_text()
    assert all(f"#define {line}" in source for line in ("scale 2.0", "on True", "on False"))
    assert verified(call.folder, {"n": 4099})


def test_infinities_unsigned_arrays_and_names_of_block_sizes_are_taken_over(tmp_path):
    kernel = """unsigned char *y, const float *x, float low, int n) {
  int i = (blockIdx.x * BX + threadIdx.x) * BY + threadIdx.y;
  if (i < n) y[i] = fmaxf(x[i], low) > 0;
}"""
    arguments = "np.zeros(2 * n, np.uint8), x, np.float32(-np.inf), np.int32(n)"
    text = script(kernel, arguments, "{'BX': [32, 64]}", more=", block_size_names=['BX', 'BY'], grid_div_x=['BX']")
    [call] = adopted(tmp_path, text).calls
    assert all(verified(call.folder, {"n": 4099}))
    declaration = (call.folder / "declaration.py").read_text()
    assert 'float("-inf")' in declaration
    assert "np.uint8)" in declaration


def test_arrays_of_cupy_are_drawn_without_cupy(tmp_path):
    kernel = f"float *y, const float *x, int n) {{ {INDEX} if (i < n) y[i] = x[i]; }}"
    text = script(kernel, "cp.zeros_like(x), x, cp.int32(n)", "{'block_size_x': [32, 64]}", more=", lang='cupy'")
    text = text.replace("x = np.random.randn(n).astype(np.float32)", "x = cp.random.random(n, dtype=cp.float32)")
    [call] = adopted(tmp_path, f"import cupy as cp{text}").calls
    assert all(verified(call.folder, {"n": 4099}))
