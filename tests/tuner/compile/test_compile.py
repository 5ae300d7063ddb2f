"""Compilations: their errors, sources that compile by themselves, and entries that are templates."""

import contextlib
import re
import resource
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from compilations import SOURCE, WORK
from contracts.variant import needs_nvrtc
from sampling import sampled

from tilewright.kernels.kernel import Kernel, Launch, Tensor, Variant, shape_of
from tilewright.kernels.own import limits_of
from tilewright.kernels.sources.source import INCLUDE, resolved
from tilewright.kernels.space import choice
from tilewright.tuner.compile import compilation, nvrtc
from tilewright.tuner.compile.compilation import OPTIONS, Compilation, arch_of, read_resources, symbol_of
from tilewright.tuner.compile.compiler import compile_now, compile_nvrtc
from tilewright.tuner.devices.cpu.device import CpuDevice
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


HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FLAGS = ROOT / "kernels" / "compile_flags.txt"
SOURCES = sorted(
    [
        *ROOT.glob("kernels/*/*.cu"),
        *ROOT.glob("examples/*/*.cu"),
        *ROOT.glob("tuner/**/*.cu"),
    ]
)
HEADERS = sorted(INCLUDE.rglob("*.cuh"))

QUICK = "--Ofast-compile=max"
"""What is the same before optimisations is the same after them."""


def architecture(path):
    """Where its instructions are: those of Hopper's variants are on one architecture only, clusters there and later."""
    return "sm_90a" if re.search("sm90|wgmma|quantized/held", str(path.relative_to(ROOT))) else "sm_80"


def include_flag():
    """The `-I` of kernels/compile_flags.txt, which clangd reads for every file below it."""
    (flag,) = [line for line in FLAGS.read_text().split() if line.startswith("-I")]
    return f"-I{FLAGS.parent / flag.removeprefix('-I')}"


def name(path):
    return str(path.relative_to(ROOT))


def is_usual(path, compared):
    """One of each folder is compared, every third compiles: test_compile_kernels compiles all as they are used."""
    is_first = path == next(other for other in SOURCES if other.parent == path.parent)
    return compared == is_first and (is_first or SOURCES.index(path) % 3 == 0)


@needs_nvrtc
@pytest.mark.in_turn(4)
@pytest.mark.parametrize(
    ("path", "compared"),
    sampled(((path, compared) for path in SOURCES for compared in (False, True)), is_usual),
    ids=lambda value: name(value) if isinstance(value, Path) else "compared" if value else "alone",
)
def test_nvrtc_makes_the_same_of_a_file_as_of_its_resolved_text(path, compared, monkeypatch):
    monkeypatch.chdir(path.parent)
    options = [f"--gpu-architecture={architecture(path)}", *OPTIONS, QUICK]
    alone, log = nvrtc.compile_cubin(path.read_text(), [*options, include_flag()])
    assert "warning" not in log, log
    assert not compared or alone == nvrtc.compile_cubin(resolved(path), options)[0]


@needs_nvrtc
@pytest.mark.in_turn(3)
@pytest.mark.parametrize("path", HEADERS, ids=name)
def test_a_shared_header_compiles_as_the_only_one(path):
    text = f'#include "{path.relative_to(INCLUDE)}"\n'
    _, log = nvrtc.compile_cubin(text, ["--gpu-architecture=sm_90a", *OPTIONS, QUICK, include_flag()])
    assert "error" not in log, log


@cache
def nvcc():
    """The command, where it compiles an empty kernel; some machines have one that lacks its parts."""
    command = shutil.which("nvcc")
    if command is None:
        return None
    probe = [command, "-cubin", "-arch=sm_80", "-x", "cu", "-o", "/dev/null", "-"]
    works = subprocess.run(probe, input="__global__ void empty() {}", text=True, capture_output=True, check=False)
    return command if works.returncode == 0 else None


# NVRTC compiles every file above.
NVCC_SAMPLE = {"kernels/linear/tensor_sm90.cu"}


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("path", sampled(SOURCES, lambda path: name(path) in NVCC_SAMPLE), ids=name)
def test_nvcc_compiles_a_file_from_its_folder(path, tmp_path):
    command = nvcc()
    if command is None:
        pytest.skip("needs an nvcc that works")
    arguments = [f"-arch={architecture(path)}", *OPTIONS, include_flag(), "-cubin", "-o", tmp_path / "out"]
    done = subprocess.run(
        [command, *arguments, path.name], cwd=path.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr


SCALED = """
#include <factor.h>
#include "step.cuh"
namespace ours {
template <typename T, int Block>
__global__ void __launch_bounds__(Block) scaled(const T* x, T* y) {
  const int i = blockIdx.x * Block + threadIdx.x;
  if (i < SHAPE_N) y[i] = step(x[i]) * FACTOR;
}
}
"""


@pytest.fixture
def kernel(tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "factor.h").write_text("#define FACTOR (THREE - 1)\n")
    (tmp_path / "common" / "step.cuh").write_text("__device__ inline float step(float x) { return x + OFFSET; }\n")
    (tmp_path / "scaled.cu").write_text(SCALED)
    return Kernel(
        name="scaled",
        entry="ours::scaled<REAL, block>",
        folder=tmp_path,
        arguments=(Tensor("x", "input", shape_of("n")), Tensor("y", "output", shape_of("n"))),
        variants=(
            Variant(
                "plain",
                "scaled.cu",
                lambda c, p: Launch((-(-p.shape["n"] // c.block), 1, 1), (c.block, 1, 1)),
                (choice("block", 64, 128),),
            ),
        ),
        reference=lambda _p, arrays, _s: 2 * (arrays["x"].astype("f8") + 1),
        flags=("-DTHREE=3", "-DOFFSET=1", "--fmad=false"),
        include_folders=(tmp_path / "common",),
        example_shape={"n": 1000},
    )


def test_the_cpu_device_runs_the_instance_of_the_configuration(kernel):
    device = CpuDevice()
    bench = device.bench(kernel, kernel.problem({"n": 301}), seed=1)
    try:
        for configuration in kernel.space(bench.problem, device.model.limits).feasible:
            assert bench.verify(bench.compile(configuration)).is_right
    finally:
        bench.close()
        device.close()


@needs_nvrtc
def test_a_cubin_holds_the_instance_under_the_name_that_is_found_in_it(kernel):
    problem = kernel.problem({"n": 301})
    small, large = kernel.space(problem, limits_of((7, 5))).feasible
    work = Compilation.of(kernel, problem, small, "sm_75", "nvrtc")
    compiled = compile_now(work)
    assert symbol_of(compiled.cubin, kernel.entry) == "_ZN4ours6scaledIfLi64EEEvPKT_PS1_"
    assert compiled.resources.registers
    other = compile_now(Compilation.of(kernel, problem, large, "sm_75", "nvrtc"))
    assert "Li128E" in symbol_of(other.cubin, kernel.entry)
    plain = Compilation("__global__ void scale(float* x) { *x = 1; }", (), "sm_75", "scale")
    assert symbol_of(compile_now(plain).cubin, "scale") == "_Z5scalePf"
    exported = compile_now(replace(plain, source=f'extern "C" {plain.source}'))
    assert symbol_of(exported.cubin, "scale") == "scale"
    assert symbol_of(exported.cubin, "cale") == "cale"  # no such function: the driver reports it when it is loaded
    with pytest.raises(TrialFailure, match="is a template, which takes --compiler nvrtc"):
        compile_now(Compilation.of(kernel, problem, small, "sm_75", "pycuda"))


def test_flags_are_part_of_what_is_hashed(kernel):
    (variant,) = kernel.variants
    assert kernel.source(variant.name).endswith("// compiled with --fmad=false")
