"""The check of a kernel of one's own finds what is wrong with it, and nothing where nothing is."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from contracts.launches_on_host import SANITIZING, needs_line_numbers
from contracts.variant import needs_nvrtc
from sampling import sampled

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Reference
from tilewright.kernels.own import odd_shapes, own_kernel
from tilewright.kernels.space import Constraint
from tilewright.tuner.compile import cccl, nvrtc
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.kernel_check.check import (
    check_compiling,
    check_kernel,
    check_reference,
    check_results,
    check_spaces,
)
from tilewright.tuner.kernel_check.first import first_declaration
from tilewright.tuner.kernel_check.report import Finding, KernelCheckReport

EXAMPLE = Path(__file__).parents[3] / "examples/convolution2d"
SHAPE = {"h": 9, "w": 35, "r": 3, "s": 2}


def small(kernel, **changes):
    """The kernel in float32 with its variant `tiled` alone, and a small example: quick to try."""
    return replace(kernel, dtypes=("float32",), variants=(kernel.variant("tiled"),), example_shape=SHAPE, **changes)


@pytest.fixture
def folder(tmp_path):
    for path in EXAMPLE.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.fixture
def device():
    device = CpuDevice()
    yield device
    device.close()


def change(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def computed(kernel, device):
    report = KernelCheckReport(kernel.name)
    check_results(kernel, [SHAPE], report, device, configurations=1)
    return report


def compiled(kernel):
    report, pool = KernelCheckReport(kernel.name), CompilePool(workers=1)
    try:
        check_compiling(kernel, [(9, 0)], report, pool)
    finally:
        pool.close()
    return report


def test_the_example_computes_right_under_the_sanitizers_too(device):
    needs_line_numbers()
    report = computed(small(own_kernel(EXAMPLE)), device)
    assert (report.ok, report.findings) == (True, [])
    assert report.verified >= 1
    assert report.sanitized == 2


@SANITIZING
def test_a_wrong_result_is_found_and_said_with_its_configuration(folder, device):
    change(folder / "problem.cuh", "f[a * FILTER_COLUMNS] * x", "f[0] * x")
    report = computed(small(own_kernel(folder)), device)
    (found,) = (one for one in report.findings if one.part == "result")
    assert not report.ok
    assert found.message == "the result is wrong"
    assert re.search(r"tiled BLOCK_X=32 .* h=9,w=35,r=3,s=2; \d+ components are out of bounds", found.where)


def test_what_the_default_leaves_unwritten_is_noted_where_there_is_no_reference(folder, device):
    """A kernel that writes every second component agrees with itself."""
    kernel = replace(small(own_kernel(folder)), reference=None)
    assert not computed(kernel, device).findings
    change(folder / "problem.cuh", "j < W) y[", "j < W && j % 2 == 0) y[")
    report = computed(replace(small(own_kernel(folder)), reference=None), device)
    (found,) = report.findings
    assert (report.ok, found.severity) == (True, "note")
    assert found.where == "153 of 315 components of y, h=9,w=35,r=3,s=2"
    assert "give a `reference`" in found.message


@SANITIZING
def test_a_missing_barrier_is_found_by_its_line(folder, device):
    change(folder / "tiled.cu", "  __syncthreads();\n", "")
    report = computed(small(own_kernel(folder)), device)
    races = [one for one in report.findings if one.part == "memory"]
    assert races
    assert not report.ok
    needs_line_numbers()
    assert any("filter[i] = f[i]" in one.where or "tile[" in one.where for one in races)


def test_a_variant_that_hangs_is_run_once(folder, device):
    change(folder / "tiled.cu", "__syncthreads();", "__syncthreads(); for (volatile int on = 1; on;) {}")
    device.run_timeout_s = 0.5
    report = KernelCheckReport("convolution2d")
    check_results(small(own_kernel(folder)), [SHAPE, {**SHAPE, "h": 5}], report, device, configurations=2)
    (found,) = report.findings
    assert "timed_out" in found.message
    assert (report.verified, report.sanitized) == (1, 0)


@pytest.mark.in_turn(3)
@needs_nvrtc
def test_corners_of_the_example_compile(folder):
    report = compiled(small(own_kernel(folder)))
    assert report.ok, report.findings
    assert report.compiled >= 5


@needs_nvrtc
def test_a_compile_error_is_one_line_however_many_configurations_have_it(folder):
    change(folder / "tiled.cu", "__syncthreads();", "__syncthreads(); nothing_like_this;")
    report = compiled(small(own_kernel(folder)))
    (found,) = report.findings
    assert (found.part, found.places) == ("compile", report.compiled)
    assert "nothing_like_this" in found.message
    assert "\n" not in str(found)


@needs_nvrtc
def test_shared_memory_that_is_not_declared_is_found(folder):
    change(
        folder / "tiled.cu",
        "  const unsigned tile_row",
        "  __shared__ volatile REAL more[64]; more[threadIdx.x % 64] = 1;\n  const unsigned tile_row",
    )
    (found,) = (one for one in compiled(small(own_kernel(folder))).findings if one.severity == "error")
    assert "static shared memory is more than static_shared_bytes declares" in found.message
    assert "256 bytes, declared 0" in found.where


@pytest.mark.in_turn(3)
@needs_nvrtc
@pytest.mark.skipif(not cccl.folders(), reason="needs the headers of a CUDA toolkit with CUB")
def test_shared_memory_whose_size_the_compiler_alone_knows_is_a_note(folder):
    more = "  __shared__ volatile REAL more[64]; more[threadIdx.x % 64] = 1;\n"
    change(folder / "tiled.cu", "  const unsigned tile_row", f"{more}  const unsigned tile_row")
    source = (folder / "tiled.cu").read_text()
    (folder / "tiled.cu").write_text(f"#include <nv/target>\n{source}")
    found = compiled(small(own_kernel(folder))).findings
    assert [one.severity for one in found if "static shared memory is more" in one.message] == ["note"]


def lenient(problem, arrays, scalars):
    right = own_kernel(EXAMPLE).reference(problem, arrays, scalars)
    return replace(right, magnitude=right.magnitude * 1e9)


def misshapen(problem, arrays, scalars):
    right = own_kernel(EXAMPLE).reference(problem, arrays, scalars)
    return replace(right, value=right.value.T, magnitude=right.magnitude.T)


def endless(problem, arrays, scalars):
    shape = (problem.shape["h"], problem.shape["w"])
    return Reference(np.full(shape, np.inf), np.ones(shape), 1)


def absent(problem, arrays, scalars):
    return arrays["z"]


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (lenient, "would accept an output of zeros"),
        (misshapen, "and it returns (35, 9)"),
        (endless, "not finite"),
        (absent, "it raised KeyError: 'z'"),
    ],
)
def test_a_reference_that_decides_nothing_is_refused(reference, said):
    report = KernelCheckReport("convolution2d")
    check_reference(small(own_kernel(EXAMPLE), reference=reference), [SHAPE], report)
    (found,) = report.findings
    assert said in found.message
    assert not report.ok


def test_the_examples_reference_has_no_flaw():
    report = KernelCheckReport("convolution2d")
    check_reference(small(own_kernel(EXAMPLE)), [SHAPE, dict.fromkeys(SHAPE, 1)], report)
    assert report.findings == []


@pytest.mark.parametrize(
    ("flops", "bytes_moved", "is_sound"), [(0, 1, True), (None, None, True), (-1, 1, False), (0, 0, False)]
)
def test_work_is_not_negative_and_something_moves(flops, bytes_moved, is_sound):
    kernel = small(own_kernel(EXAMPLE), flops=lambda _p: flops, bytes_moved=lambda _p: bytes_moved)
    report = KernelCheckReport("convolution2d")
    check_reference(kernel, [SHAPE], report)
    assert report.ok == is_sound


@pytest.mark.parametrize(
    "name", sampled(sorted(catalogue().by_name), lambda name: name not in {"attention", "linear_quantized"})
)  # those two take eleven and five seconds
def test_references_that_are_known_to_be_sound_are_not_refused(name):
    kernel, report = catalogue().get(name), KernelCheckReport(name)
    check_reference(kernel, odd_shapes(kernel), report)
    assert report.findings == []


def test_spaces_are_counted_before_and_after_constraints():
    kernel, report = small(own_kernel(EXAMPLE)), KernelCheckReport("convolution2d")
    check_spaces(kernel, [(7, 5), (9, 0)], report)
    assert [(size.variant, size.target, size.before) for size in report.spaces] == [
        ("tiled", "sm_75", 5 * 6 * 5 * 4 * 5),
        ("tiled", "sm_90", 5 * 6 * 5 * 4 * 5),
    ]
    assert all(0 < size.after < size.before for size in report.spaces)
    assert report.ok


@pytest.mark.parametrize(
    ("holds", "said"),
    [
        (lambda c, p, d: c.ROWS > 99, "no configuration for example_shape on any of sm_90"),
        (lambda c, p, d: c.NOT_DECLARED > 0, "a constraint or launch raises"),
    ],
)
def test_constraints_that_leave_nothing_or_raise_are_found(holds, said):
    kernel = small(own_kernel(EXAMPLE))
    variant = replace(kernel.variant("tiled"), constraints=(Constraint("never", holds),))
    report = KernelCheckReport("convolution2d")
    broken = replace(kernel, variants=(variant,))
    check_kernel(broken, report, capabilities=[(9, 0)], shapes=[SHAPE], compile_it=False)
    assert any(said in one.message for one in report.findings), report.findings
    assert (report.ok, report.verified) == (False, 0)


def test_nothing_is_computed_where_there_is_nothing_to_compare_with():
    report = KernelCheckReport("convolution2d")
    kernel = small(own_kernel(EXAMPLE), reference=absent)
    check_kernel(kernel, report, capabilities=[(9, 0)], shapes=[SHAPE], compile_it=False)
    assert (report.ok, report.verified) == (False, 0)


def test_the_same_at_two_places_is_one_finding_that_counts_them():
    report = KernelCheckReport("k")
    report.add(Finding("note", "compile", where, "registers spill to memory") for where in ("first", "second"))
    report.add([Finding("error", "compile", "first", "registers spill to memory")])
    assert [str(one) for one in report.findings] == [
        "compile: first (and 1 more): registers spill to memory",
        "compile: first: registers spill to memory",
    ]
    assert not report.ok


def test_nothing_computed_is_an_error(device, monkeypatch):
    none = Constraint("never", lambda _c, p, _d: p.shape["h"] != SHAPE["h"])
    kernel = own_kernel(EXAMPLE)
    kernel = replace(kernel, variants=tuple(replace(v, constraints=(*v.constraints, none)) for v in kernel.variants))
    report = check_kernel(
        kernel, KernelCheckReport(kernel.name), capabilities=[(9, 0)], shapes=[SHAPE], compile_it=False
    )
    assert not report.ok
    (error,) = [finding for finding in report.findings if finding.severity == "error"]
    assert str(error) == (
        "result: h=9,w=35,r=3,s=2: no configuration was run. "
        "Give a --shape that has one, or skip this check with --no-run"
    )


def test_a_header_that_only_a_gpu_s_compiler_has_is_noted_and_the_rest_is_checked(folder):
    change(folder / "problem.cuh", "#pragma once", "#pragma once\n#include <cuda_awaited.h>")
    kernel = small(own_kernel(folder))
    report = check_kernel(kernel, KernelCheckReport(kernel.name), capabilities=[(9, 0)], compile_it=False)
    (header,) = (f for f in report.findings if "cuda_awaited.h" in f.message)
    assert (header.severity, report.verified) == ("note", 0)
    assert header.message.startswith("not computed on the CPU, which has no <cuda_awaited.h>")
    errors = [finding.message for finding in report.findings if finding.severity == "error"]
    assert errors == ["nothing was compiled and nothing was computed, so nothing is known of this kernel"]


def test_without_nvrtc_the_rest_is_checked_and_what_is_left_out_is_noted(monkeypatch):
    monkeypatch.setattr(nvrtc, "is_available", lambda: False)
    kernel = small(own_kernel(EXAMPLE))
    report = check_kernel(
        kernel, KernelCheckReport(kernel.name), capabilities=[(9, 0)], shapes=[SHAPE], configurations=1
    )
    assert report.ok
    assert report.verified
    assert "not compiled for GPUs: NVRTC is not installed" in str(report.findings[0])


def test_a_scalar_that_the_source_takes_as_an_int_is_an_error(folder):
    change(folder / "direct.cu", "convolution2d(const REAL* __restrict__ x", "convolution2d(int x")
    report = check_kernel(
        own_kernel(folder), KernelCheckReport("convolution2d"), capabilities=[(9, 0)], compile_it=False, run_it=False
    )
    (found,) = [finding for finding in report.findings if finding.severity == "error"]
    assert (found.part, found.places) == ("declaration", 2)  # in both dtypes
    assert "parameter 1 is `int x`" in found.message


CASES = {
    "fill": """__global__ void fill(float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 1;
}""",
    "lengths": """struct Point { float x, y, z; };
__global__ void lengths(const Point* p, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = sqrtf(p[i].x * p[i].x + p[i].y * p[i].y + p[i].z * p[i].z);
}""",
    "doubled": """#include <cstdio>
#include <cuda_runtime.h>
#include <vector>
__device__ float twice(float v) { return 2 * v; }
__global__ void doubled(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = twice(x[i]);
}
int main() { std::vector<float> h(3); doubled<<<1, 256>>>(nullptr, nullptr, 3); printf("%d", (int)h[0]); }""",
    "scaled": """namespace mine {
static __constant__ float factor = 2;
__global__ void scaled(const float* x, float* y, int n) {
  static __shared__ float part[256];
  extern __shared__ __align__(16) unsigned char bytes[];
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) part[threadIdx.x] = x[i];
  __syncthreads();
  if (i < n) y[i] = factor * part[threadIdx.x];
}
}""",
}


def checked(tmp_path, name, text, **options):
    made = first_declaration(text, f"{name}-1.cu")
    (tmp_path / made.file_name).write_text(made.source)
    (tmp_path / "declaration.py").write_text(made.declaration)
    kernel = own_kernel(tmp_path)
    return check_kernel(kernel, KernelCheckReport(name), capabilities=[(9, 0)], configurations=1, **options)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("name", CASES)
def test_a_file_as_people_have_it_passes_unedited(tmp_path, name):
    report = checked(tmp_path, name, CASES[name])
    assert report.ok, report.findings
    assert report.verified


def test_inline_ptx_is_left_to_gpus_with_a_note(tmp_path):
    text = (
        '__global__ void lane(int* y, int n) { int id; asm("mov.u32 %0, %%laneid;" : "=r"(id)); if (n > 0) y[0] = id; }'
    )
    report = checked(tmp_path, "lane", text)
    assert report.ok
    assert "which has no ptx" in str(report.findings)


@needs_nvrtc
def test_an_error_in_the_source_is_quoted_with_its_line(tmp_path):
    text = CASES["fill"].replace("= 1;", "= no_such_function();")
    report = checked(tmp_path, "fill", text)
    assert not report.ok
    assert any(
        "fill-1.cu:3" in f.message and "no_such_function" in f.message for f in report.findings if f.part == "result"
    )
    assert any("kernel.cu(3): error" in f.message for f in report.findings if f.part == "compile")


def test_a_check_that_ran_nothing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(nvrtc, "is_available", lambda: False)
    report = checked(tmp_path, "fill", CASES["fill"], run_it=False)
    assert not report.ok
    assert "nothing was compiled and nothing was computed" in str(report.findings)
