import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from contracts.device import outcome_of
from contracts.row_sum import PROBLEM, ROW_SUM, configuration
from sampling import EXHAUSTIVE

from tilewright.tuner.devices.cpu import build as cpu_build
from tilewright.tuner.devices.cpu import compile as cpu_compile
from tilewright.tuner.devices.cpu import scratch as cpu_scratch
from tilewright.tuner.devices.cpu.build import HostBuilder
from tilewright.tuner.devices.cpu.compile import MODES, find_compiler, translation_unit
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import NoCompilerError, OutOfMemoryError, TrialFailure, first_error
from tilewright.tuner.outcome import Outcome


def test_a_cache_that_cannot_be_written_fails_no_trial(tmp_path):
    occupied = tmp_path / "cache"
    occupied.write_text("not a folder")
    device = CpuDevice(cache=occupied)
    bench = device.bench(ROW_SUM, PROBLEM, seed=7)
    program = bench.compile(configuration("good"))
    assert bench.verify(program).wrong == 0
    assert bench.compile(configuration("good")).compile_ms == 0
    bench.close()
    device.close()
    assert not program.path.exists()
    assert occupied.read_text() == "not a folder"


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda whole: b"", marks=EXHAUSTIVE),
        lambda whole: whole[: len(whole) // 2],
        pytest.param(lambda whole: bytes(len(whole)), marks=EXHAUSTIVE),
    ],
)
def test_a_damaged_program_is_built_again(tmp_path, damage):
    device = CpuDevice(cache=tmp_path)
    bench = device.bench(ROW_SUM, PROBLEM, seed=7)
    program = bench.compile(configuration("good")).path
    whole = program.read_bytes()
    program.chmod(0o755)
    program.write_bytes(damage(whole))
    assert outcome_of(bench, configuration("good"))[0] is Outcome.MEASURED
    assert program.read_bytes() == whole
    bench.close()
    device.close()


def test_a_full_disk_sends_programs_elsewhere(tmp_path, monkeypatch):
    full = tmp_path / "full"
    real = os.statvfs

    def statvfs(path):
        found = real(path)
        return os.statvfs_result((*found[:4], 0, *found[5:])) if Path(path) == full else found

    monkeypatch.setattr(cpu_build.os, "statvfs", statvfs)
    device = CpuDevice(cache=full)
    bench = device.bench(ROW_SUM, PROBLEM, seed=7)
    assert outcome_of(bench, configuration("good"))[0] is Outcome.MEASURED
    assert list(full.iterdir()) == []
    bench.close()
    device.close()


@pytest.mark.parametrize(("max_bytes", "kept"), [(500, 5), (499, 4), (445, 4), (444, 3), (112, 1)])
def test_a_full_cache_drops_what_was_used_longest_ago_down_to_nine_tenths(tmp_path, max_bytes, kept):
    for age_s in range(5):
        (tmp_path / str(age_s)).write_bytes(bytes(100))
        os.utime(tmp_path / str(age_s), (1e9 - age_s, 1e9 - age_s))
    cpu_build.evict(tmp_path, max_bytes=max_bytes)
    assert sorted(path.name for path in tmp_path.iterdir()) == list("01234")[:kept]


def test_what_a_killed_process_was_making_goes_when_nobody_can_be_making_it_any_more(tmp_path):
    for name, age_s in ((".new-left", 7200), (".new-at-work", 60), ("somebody's", 7200)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.cpp").write_bytes(bytes(100))
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    cpu_build.evict(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new-at-work", "somebody's"]


def test_other_flags_make_other_programs(tmp_path, monkeypatch):
    builder = HostBuilder(find_compiler(), tmp_path)
    before, _ = builder.program(ROW_SUM, PROBLEM, configuration("good"))
    monkeypatch.setitem(MODES, "fast", ("-O2",))
    after, took_ms = builder.program(ROW_SUM, PROBLEM, configuration("good"))
    assert after != before
    assert took_ms > 0


@pytest.mark.in_turn(2)
def test_two_processes_may_fill_one_cache(tmp_path):
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from contracts.row_sum import *; from tilewright.tuner.devices.cpu.device import CpuDevice\n"
        "device = CpuDevice(cache=Path(sys.argv[1])); bench = device.bench(ROW_SUM, PROBLEM, 1)\n"
        "assert bench.verify(bench.compile(configuration('good'))).wrong == 0\n"
        "bench.close(); device.close()"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parents[3])]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".new-")]


def test_a_killed_process_leaves_nothing_for_good(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_scratch, "_root_with_room", lambda _bytes: tmp_path)
    monkeypatch.setattr(cpu_scratch, "_GRACE_S", 0.0)
    script = (
        "import sys, time; from pathlib import Path; from tilewright.tuner import cpu_scratch\n"
        "cpu_scratch._root_with_room = lambda _bytes: Path(sys.argv[1])\n"
        "folder = cpu_scratch.PrivateFolder(1); print(folder.path, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        abandoned = Path(process.stdout.readline().strip())
        cpu_scratch.PrivateFolder(1).close()
        assert abandoned.is_dir()  # its process lives
        process.send_signal(signal.SIGKILL)
    cpu_scratch.PrivateFolder(1).close()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_compiler_is_named_with_the_remedy(monkeypatch):
    with pytest.raises(NoCompilerError, match=r"no-such-compiler.*install g\+\+"):
        CpuDevice("no-such-compiler")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "neither-this")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    cpu_compile._identify.cache_clear()
    with pytest.raises(NoCompilerError, match="tilewright\\[zig\\]"):
        find_compiler()
    cpu_compile._identify.cache_clear()


def test_cxx_goes_first(monkeypatch):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("only ziglang here")
    monkeypatch.setenv("CXX", compiler)
    assert find_compiler().command == (compiler,)


def test_a_source_keeps_its_line_numbers():
    compiler = find_compiler()
    text = translation_unit(
        compiler, ["row_sum"], "a\n#pragma unroll\nb\n#pragma unroll 4\n", {"REAL": "float"}, "x.cu"
    )
    assert text.split('#line 1 "x.cu"\n')[1].count("\n") == 6
    if compiler.name == "g++":
        assert "#pragma GCC unroll 4\n" in text


MATHEMATICS = """
template <class T, class U> struct is_same { static constexpr bool value = false; };
template <class T> struct is_same<T, T> { static constexpr bool value = true; };
#define IS(type, expression) static_assert(is_same<type, decltype(expression)>::value, #expression)
extern "C" __global__ void row_sum(float f, double d, int i, long long l, unsigned u, bool* out) {
  IS(float, exp(f)); IS(double, exp(d)); IS(double, exp(i)); IS(double, sqrt(u)); IS(float, tanh(f)); IS(float, erf(f));
  IS(float, pow(f, f)); IS(double, pow(f, 2)); IS(double, fmax(d, f)); IS(float, fmin(f, 0.0f)); IS(double, fmin(0, d));
  IS(int, abs(i)); IS(float, abs(f)); IS(double, abs(d)); IS(long long, abs(l)); IS(float, ldexp(f, 2));
  IS(float, fma(f, f, f)); IS(double, fma(d, d, d)); IS(float, frexp(f, &i)); IS(bool, isnan(f)); IS(bool, isfinite(i));
  IS(long, lround(f));
  out[0] = isnan(f) && isinf(d) && signbit(d);
}
"""


def test_functions_of_c_s_mathematics_are_overloaded_as_in_cuda(tmp_path):
    builder = HostBuilder(find_compiler(), tmp_path / "cache")
    kernel = replace(ROW_SUM, folder=tmp_path)
    headers = "" if find_compiler().name == "ziglang" else "#include <cmath>\n#include <math.h>\n#include <vector>\n"
    for before in {"", headers}:
        (tmp_path / "good.cu").write_text(before + MATHEMATICS)
        builder.program(kernel, PROBLEM, configuration("good"))


def test_a_header_that_only_gpus_have_is_named(tmp_path):
    kernel = replace(ROW_SUM, folder=tmp_path)
    (tmp_path / "good.cu").write_text(f"#include <cub/cub.cuh>\n{MATHEMATICS}")
    with pytest.raises(TrialFailure) as failure:
        HostBuilder(find_compiler(), tmp_path / "cache").program(kernel, PROBLEM, configuration("good"))
    said = "error: the CPU device has no <cub/cub.cuh>, a header of CUDA's: tune on a GPU"
    assert first_error(failure.value.log) == said


def test_arrays_that_find_no_room_are_refused(monkeypatch):
    monkeypatch.setattr(cpu_scratch.shutil, "disk_usage", lambda _path: _Full())
    with pytest.raises(OutOfMemoryError, match="has space for"):
        cpu_scratch.PrivateFolder(1000)


class _Full:
    free = 0
