from __future__ import annotations

import contextlib
import resource
from dataclasses import replace

import pytest
from compilations import SOURCE, WORK

from tilewright.tuner.compile import compilation
from tilewright.tuner.compile.compilation import arch_of, read_resources
from tilewright.tuner.compile.compiler import compile_nvrtc
from tilewright.tuner.errors import NoCompilerError, TrialFailure
from tilewright.tuner.outcome import Resources


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_resources_are_what_ptxas_says_without_what_the_driver_reserves(arch):
    compiled = compile_nvrtc(SOURCE, dict(WORK.definitions), arch, "scale")
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.resources.shared_bytes == 1024
    assert 4 <= compiled.resources.registers <= 32
    assert compiled.resources.spill_bytes == 0
    assert compiled.compile_ms > 0


@pytest.mark.parametrize("source", [SOURCE, "#error no", '#include "missing.h"'])
def test_the_limit_of_the_stack_stays_as_it_is(source):
    """NVRTC lifts it, and leaves it so after a catastrophic error, unless it is told not to."""
    before = resource.getrlimit(resource.RLIMIT_STACK)
    with contextlib.suppress(TrialFailure):
        compile_nvrtc(source, dict(WORK.definitions), "sm_90", "scale")
    assert resource.getrlimit(resource.RLIMIT_STACK) == before


def test_spills_are_counted():
    source = """
    extern "C" __global__ void __launch_bounds__(1024) spill(float* x, int n) {
      float v[128];
      for (int i = 0; i < 128; ++i) v[i] = x[i * 1024 + threadIdx.x];
      for (int j = 0; j < n; ++j)
        for (int i = 0; i < 128; ++i) v[i] = v[i] * v[(i + 1) % 128] + x[j];
      for (int i = 0; i < 128; ++i) x[i * 1024 + threadIdx.x] = v[i];
    }"""
    resources = compile_nvrtc(source, {}, "sm_90", "spill").resources
    assert resources.registers == 64  # 65,536 registers for 1,024 threads
    assert resources.spill_bytes > 0


def test_resources_are_those_of_the_entry_asked_for():
    log = (
        "ptxas info    : Compiling entry function 'other' for 'sm_90'\n"
        "ptxas info    : Used 99 registers, used 1 barriers, 4096 bytes smem\n"
        "ptxas info    : Compiling entry function 'mine' for 'sm_90'\n"
        "    8 bytes stack frame, 12 bytes spill stores, 30 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 0 barriers\n"
    )
    assert read_resources(log, "mine") == Resources(40, 0, 42)
    assert read_resources(log, "other") == Resources(99, 4096, None)
    assert read_resources(log, "absent") == Resources()


def test_a_function_of_the_host_beside_the_kernel_is_no_fault():
    on_host = "float reference(const float* x) { return 3 * x[0]; }\n"
    assert compile_nvrtc(on_host + SOURCE, dict(WORK.definitions), "sm_90", "scale").resources.registers
    with pytest.raises(TrialFailure, match="undeclared"):
        compile_nvrtc("float reference() { return undeclared; }\n" + SOURCE, dict(WORK.definitions), "sm_90", "scale")


def test_the_key_changes_with_everything_that_the_cubin_depends_on(monkeypatch):
    changed = [
        replace(WORK, source=SOURCE + " "),
        replace(WORK, definitions=(("REAL", "double"),)),
        replace(WORK, arch="sm_80"),
        replace(WORK, entry="other"),
    ]
    keys = {work.key() for work in (WORK, *changed)}
    monkeypatch.setattr(compilation, "compiler_version", lambda _compiler: "99.9")
    keys.add(WORK.key())
    assert len(keys) == 6
    assert WORK.key() == replace(WORK).key()


def test_a_missing_nvcc_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    compilation.compiler_version.cache_clear()
    with pytest.raises(NoCompilerError, match="install the CUDA toolkit, or use --compiler nvrtc"):
        compilation.compiler_version("pycuda")


def test_arch_names():
    assert [arch_of(cc) for cc in ((7, 5), (9, 0), (12, 1))] == ["sm_75", "sm_90", "sm_121"]
