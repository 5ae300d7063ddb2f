"""CUB, Thrust and libcu++ by NVRTC, as nvcc takes them: with a toolkit's real headers, and what is said without."""

import pytest
from contracts.variant import needs_nvrtc

from tilewright.tuner.compile import cccl, nvrtc
from tilewright.tuner.compile.compilation import Compilation
from tilewright.tuner.compile.compiler import compile_nvrtc
from tilewright.tuner.errors import TrialFailure, first_error

needs_cccl = pytest.mark.skipif(
    not nvrtc.is_available() or not cccl.folders(), reason="needs NVRTC and the headers of a CUDA toolkit with CUB"
)

BLOCK_SUM = """
__global__ void k(int64_t* sums, const int* numbers) {
  typedef cub::BlockReduce<int64_t, 128> Reduce;
  __shared__ Reduce::TempStorage storage;
  const int64_t sum = Reduce(storage).Sum(numbers[threadIdx.x]);
  if (threadIdx.x == 0) *sums = sum < INT_MAX ? sum : INT_MAX;
}
"""
ATOMIC = """
__global__ void k(int* count, float* most) {
  cuda::atomic_ref<int, cuda::thread_scope_device>(*count).fetch_add(1);
  *most = std::max(*most, std::numeric_limits<float>::max()) + INFINITY;
}
"""
TUPLE = "__global__ void k(float* x) { auto pair = thrust::make_tuple(1, 2.0f); *x = thrust::get<1>(pair); }"


@needs_cccl
@pytest.mark.parametrize(
    ("names", "body"),
    [
        ("cub/cub.cuh", BLOCK_SUM),
        ("cstdint climits stdio.h cub/block/block_reduce.cuh", BLOCK_SUM),
        ("cub/block/block_reduce.cuh cub/device/device_reduce.cuh cstdint", BLOCK_SUM),
        ("cuda/atomic limits cuda_runtime.h", ATOMIC),
        ("thrust/tuple.h", TUPLE),
    ],
)
def test_a_source_with_such_headers_compiles(names, body):
    source = "".join(f"#include <{name}>\n" for name in names.split()) + body
    assert compile_nvrtc(source, {}, "sm_90", "k").resources.registers


@needs_cccl
def test_what_nvrtc_does_not_take_of_thrust_is_named_with_the_remedy():
    with pytest.raises(TrialFailure) as failure:
        compile_nvrtc("#include <thrust/sort.h>\n__global__ void k(int* x) { *x = 1; }", {}, "sm_90", "k")
    assert "<thrust/sort.h>; nvcc may: use --compiler pycuda" in first_error(failure.value.log)


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """No toolkit but what a test puts into CUDA_PATH: what is tried is where it is looked for."""
    for name in nvrtc.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    monkeypatch.setattr(cccl, "USUAL", ())
    monkeypatch.setattr(cccl.shutil, "which", lambda _name: None)
    monkeypatch.setattr(cccl, "library_folders", lambda: iter(()))
    monkeypatch.setattr(cccl, "header_folders", lambda: ())
    monkeypatch.setattr(nvrtc, "header_folders", lambda: ())
    functions = (cccl.folders, cccl.version, cccl.own_headers)
    for function in functions:
        function.cache_clear()
    yield tmp_path / "include"
    for function in functions:
        function.cache_clear()


def put_version(folder, number):
    (folder / "cub").mkdir(parents=True, exist_ok=True)
    (folder / "cub" / "version.cuh").write_text(f"#define CUB_VERSION {number}\n")


def key(source):
    return Compilation(source, (), "sm_90", "k").key()


@needs_nvrtc
def test_the_headers_version_is_in_the_key_of_sources_that_include_them_only(toolkit):
    with_cub, plain = "#include <cub/cub.cuh>\n__global__ void k() {}", "#include <cmath>\n__global__ void k() {}"
    keys = []
    for number in (101700, 300001):
        put_version(toolkit / "cccl", number)
        cccl.version.cache_clear()
        cccl.folders.cache_clear()
        assert cccl.folders() == (toolkit / "cccl", toolkit)
        keys.append((key(with_cub), key(plain)))
    (before, plain_before), (after, plain_after) = keys
    assert before != after
    assert plain_before == plain_after


def test_headers_are_found_beside_those_of_the_target_and_without_a_folder_of_their_own(toolkit):
    put_version(toolkit.parent / "targets" / "sbsa-linux" / "include", 101700)
    assert cccl.folders() == (toolkit.parent / "targets" / "sbsa-linux" / "include",)
    assert cccl.version() == "CUB 101700"


@needs_nvrtc
def test_the_whole_of_cub_is_its_parts_for_the_device_even_where_it_refuses_nvrtc(toolkit):
    put_version(toolkit / "cccl", 300500)
    (toolkit / "cccl" / "cub" / "device").mkdir()
    (toolkit / "cccl" / "cub" / "device" / "host.cuh").write_text("#error host\n")
    (toolkit / "cccl" / "cub" / "part.cuh").write_text("#define PART 1\n")
    parts = (
        "#error no NVRTC\n#include <cub/part.cuh>\n#include <cub/device/host.cuh>\n#include <cub/util_allocator.cuh>\n"
    )
    (toolkit / "cccl" / "cub" / "cub.cuh").write_text(parts)
    source = "#include <cub/cub.cuh>\n__global__ void k(int* x) { *x = PART; }"
    assert compile_nvrtc(source, {}, "sm_90", "k").cubin


@needs_nvrtc
def test_without_a_toolkit_the_header_the_setting_and_the_remedy_are_named(toolkit):
    with pytest.raises(TrialFailure) as failure:
        compile_nvrtc(f"#include <cub/cub.cuh>\n{BLOCK_SUM}", {}, "sm_90", "k")
    said = first_error(failure.value.log)
    assert all(word in said for word in ("<cub/cub.cuh> was not found", "CUDA_HOME", "install a CUDA toolkit"))
    unused = "#ifdef WITH_CUB\n#include <cub/cub.cuh>\n#endif\n__global__ void k(uint8_t* x) { *x = 1; }"
    assert compile_nvrtc(unused, {}, "sm_90", "k").cubin
