"""What compiles for a GPU compiles on the CPU device, and has the documented values there."""

import ctypes
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from contracts.builtins import BUILTINS, INPUTS, TYPES, operands
from contracts.device import outcome_of
from contracts.row_sum import PROBLEM, ROW_SUM, configuration
from contracts.variant import needs_nvrtc

from tilewright.tuner.compile import nvrtc
from tilewright.tuner.devices.cpu.compile import HOST_FOLDER, find_compiler, translation_unit
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.devices.cpu.process import LOG_CHARACTERS
from tilewright.tuner.outcome import Outcome

PLACES = 4

STATEMENTS = """
  if (n == 12345) {
    __nanosleep(1); __threadfence_system(); __builtin_assume(n > 3); assert(n > 3);
    cudaStream_t s = 0; cudaError_t e = cudaSuccess;
    longlong2 two = make_longlong2(clock64(), clock());
    ulonglong4 four = make_ulonglong4(1, 2, 3, 4); uchar1 one = make_uchar1(1);
    out[0] = two.x + two.y + four.w + one.x + (s != 0) + (e != cudaSuccess) + __match_any_sync(~0u, n) + __activemask();
    int all; out[1] = __match_all_sync(~0u, n, &all) + __reduce_add_sync(~0u, n) + __reduce_max_sync(~0u, int(n)) + all;
    out[2] = __syncthreads_count(n) + __syncthreads_and(n) + __reduce_xor_sync(~0u, n); __brkpt(); __trap();
  }
"""


def probe_source():
    """One kernel that calls every built-in with its inputs."""
    order = list(TYPES)
    calls = []
    for number, builtin in enumerate(BUILTINS):
        kinds = builtin.types[1:]
        values = [f"in<{TYPES[k][0]}>(x, {order.index(k) * PLACES + place}, i)" for place, k in enumerate(kinds)]
        result = f"{TYPES[builtin.types[0]][0]} r = "
        if builtin.is_atomic:
            body = f"{result}{values[0]}; {builtin.name}({', '.join(['&r', *values[1:]])});"
        else:
            body = f"{result}{builtin.name}({', '.join(values)});"
        calls.append(
            f"#pragma unroll 1\n  for (int i = 0; i < {INPUTS}; ++i) {{ {body} put(out + {number * INPUTS} + i, r); }}"
        )
    return f"""
#if !defined(__CUDACC__) || !defined(__CUDACC_RTC__)
#error "neither is defined"
#endif
template <class T> __device__ T in(const unsigned long long* x, int place, int i) {{
  T value; memcpy(&value, x + place * {INPUTS} + i, sizeof value); return value;
}}
template <class T> __device__ void put(unsigned long long* out, T value) {{ memcpy(out, &value, sizeof value); }}
extern "C" __global__ void probe(unsigned long long* out, const unsigned long long* x,
                                 const __grid_constant__ unsigned n)
{{
{STATEMENTS}
{chr(10).join(calls)}
}}
"""


def library_of(source, folder, flags=()):
    """The kernel `probe` of that source, as a function of this process: out, x, n, and threads of the block."""
    compiler = find_compiler()
    unit = folder / "probe.cpp"
    unit.write_text(translation_unit(compiler, ["probe"], source, {}, "probe.cu") + '#include "library.inc"\n')
    path = folder / "probe.so"
    command = [*compiler.command, *compiler.flags("library"), "-O1", *flags, f"-I{HOST_FOLDER}", str(unit)]
    ended = subprocess.run(
        [*command, str(HOST_FOLDER / "block.cpp"), "-o", str(path)], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise RuntimeError(ended.stderr)
    launch = ctypes.CDLL(str(path)).host_library_launch

    def run(out, x=None, n=0, threads=1):
        cells = [ctypes.c_void_p(out.ctypes.data), ctypes.c_void_p(0 if x is None else x.ctypes.data), ctypes.c_uint(n)]
        launch((ctypes.c_uint * 6)(1, 1, 1, threads, 1, 1), (ctypes.c_void_p * 3)(*map(ctypes.addressof, cells)))

    return run


def as_slots(array):
    slots = np.zeros((len(array), 8 // array.itemsize), array.dtype)
    slots[:, 0] = array
    return slots.view(np.uint64).ravel()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    x = np.concatenate([as_slots(operands(letter, place)) for letter in TYPES for place in range(PLACES)])
    out = np.zeros(len(BUILTINS) * INPUTS, np.uint64)
    library_of(probe_source(), tmp_path_factory.mktemp("probe"))(out, x)
    return out.reshape(len(BUILTINS), INPUTS)


def expected(builtin, i):
    values = [operands(letter, place)[i].item() for place, letter in enumerate(builtin.types[1:])]
    right = builtin.right(*values)
    dtype = np.dtype(TYPES[builtin.types[0]][1])
    if dtype.kind in "iu":
        return np.array(int(right) & (1 << 8 * dtype.itemsize) - 1, f"u{dtype.itemsize}").view(dtype)
    with np.errstate(over="ignore"):
        return np.array(right, dtype)


def agree(found, right, ulps):
    if not ulps or not np.isfinite(right):
        return np.array_equal(found, right, equal_nan=found.dtype.kind == "f")
    return abs(found.astype(float) - right.astype(float)) <= ulps * max(
        np.spacing(abs(right)), np.spacing(right.dtype.type(1e-3))
    )


@pytest.mark.in_turn(6)
@pytest.mark.parametrize("number", range(len(BUILTINS)), ids=lambda n: f"{BUILTINS[n].name}-{BUILTINS[n].types}")
def test_a_builtin_has_the_documented_values(number, results):
    builtin = BUILTINS[number]
    dtype = np.dtype(TYPES[builtin.types[0]][1])
    found = results[number].view(dtype).reshape(INPUTS, -1)[:, 0]
    wrong = [
        (i, found[i], right)
        for i in range(INPUTS)
        if not agree(found[i], (right := expected(builtin, i)), builtin.ulps)
    ]
    assert not wrong


@needs_nvrtc
def test_all_of_them_compile_for_a_gpu():
    image, _ = nvrtc.compile_cubin(probe_source(), ("--gpu-architecture=sm_90", "--std=c++17", "--Ofast-compile=max"))
    assert image


OWN = """
__device__ unsigned __brev(unsigned x) { return 7; }
__device__ float erfinvf(float x) { return 8; }
__device__ long long atomicMax(long long* p, long long value) { return 9; }
extern "C" __global__ void probe(unsigned long long* out, const unsigned long long* x, unsigned n) {
  long long cell = 0;
  out[0] = __brev(n), out[1] = erfinvf(0.5f), out[2] = atomicMax(&cell, 1ll);
  float a = 1.000244140625f + n, b = a, c = -1.0f - n;
  out[3] = __fmul_rn(a, b) + c == fmaf(a, b, c);
}
"""


def test_a_function_of_the_users_file_wins_and_a_rounded_product_is_not_fused(tmp_path):
    out = np.zeros(4, np.uint64)
    library_of(OWN, tmp_path, ["-O3"])(out)
    assert out.tolist() == [7, 8, 9, 0]


TOGETHER = """
extern "C" __global__ void probe(unsigned long long* out, const unsigned long long* x, unsigned n) {
  const unsigned t = threadIdx.x;
  unsigned long long* mine = out + 8 * t;
  if (t % 3 == 0) { mine[0] = __activemask(); }
  else if (t % 3 == 1) { mine[0] = __activemask(); }
  mine[1] = __match_any_sync(~0u, t % 5), mine[2] = __reduce_add_sync(~0u, t),
  mine[3] = __reduce_max_sync(~0u, int(t) - 40);
  mine[4] = __syncthreads_count(t % 2), mine[5] = __syncthreads_and(t < 63) != 0,
  mine[6] = __syncthreads_or(t == 3) != 0;
  int all; mine[7] = __match_all_sync(~0u, t / 32, &all) & all;
}
"""


def test_warps_and_blocks_act_together(tmp_path):
    out = np.zeros((64, 8), np.uint64)
    library_of(TOGETHER, tmp_path)(out, threads=64)
    for t in range(64):
        warp = range(t // 32 * 32, t // 32 * 32 + 32)
        branch = sum(1 << s % 32 for s in warp if s % 3 == t % 3) if t % 3 < 2 else 0
        match = sum(1 << s % 32 for s in warp if s % 5 == t % 5)
        most = max(s - 40 for s in warp)
        assert out[t].tolist() == [branch, match, sum(warp), most % 2**64, 32, 0, 1, 1]


@pytest.mark.parametrize(
    "call", ["__isGlobal(out)", "0; __prof_trigger(1)", "__cvta_generic_to_shared(out)", "__CUDA_ARCH__"]
)
def test_what_cannot_be_computed_is_refused_by_name(call, tmp_path):
    kernel = 'extern "C" __global__ void probe(unsigned long long* out, const unsigned long long*, unsigned)'
    name = call.split("(")[0].split()[-1]
    with pytest.raises(RuntimeError, match=f"{name}.*the CPU device has no "):
        library_of(f"{kernel} {{ out[0] = {call}; }}", tmp_path)


LOUD = r"""
#include <stdio.h>
extern "C" __global__ void row_sum(const float* x, float* y) {
  if (threadIdx.x) return;
  for (int i = 0; i < 400; ++i) printf("row %d holds %f\n", blockIdx.x, x[0]);
  float sum = 0;
  for (int i = 0; i < N; ++i) sum += x[blockIdx.x * N + i];
  y[blockIdx.x] = sum;
  if (FAILS) __trap();
}
"""


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_kernel_prints_goes_to_its_log_and_not_into_the_answers(fails, tmp_path):
    (tmp_path / "good.cu").write_text(f"#define N 300\n#define FAILS {int(fails)}\n{LOUD}")
    device = CpuDevice()
    bench = device.bench(replace(ROW_SUM, folder=tmp_path), PROBLEM, seed=7)
    outcome, log = outcome_of(bench, configuration("good"))
    bench.close()
    device.close()
    assert outcome == (Outcome.LAUNCH_FAILED if fails else Outcome.MEASURED), log
    assert ("row 0 holds" in log) == fails
    assert len(log) < LOG_CHARACTERS
