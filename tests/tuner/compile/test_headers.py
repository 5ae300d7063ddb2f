"""What nvcc gives a source unasked and NVRTC lacks: headers of C, C++ and CUDA, CUB, Thrust and libcu++."""

import pytest
from contracts.variant import needs_nvrtc

from tilewright.tuner.compile import cccl, nvrtc
from tilewright.tuner.compile.compilation import Compilation
from tilewright.tuner.compile.compiler import compile_nvrtc
from tilewright.tuner.compile.std_headers import given_headers, prelude, without_cuda_headers
from tilewright.tuner.errors import TrialFailure, first_error

NAMES = (
    "cassert",
    "cstdint",
    "cstdio",
    "stdio.h",
    "stdlib.h",
    "inttypes.h",
    "float.h",
    "math.h",
    "algorithm",
    "limits",
)
INCLUDES = "\n".join(f"#include <{name}>" for name in NAMES)


@needs_nvrtc
def test_headers_of_c_and_cpp_compile():
    source = f"""{INCLUDES}
#include <cuda_runtime.h>
extern "C" __global__ void k(float* y, uint32_t n, int64_t m) {{
  assert(n > 0);
  float least = std::min(y[0], FLT_MAX), most = std::numeric_limits<float>::lowest();
  std::swap(least, most);
  static_assert(std::is_same<std::decay_t<const float&>, float>::value && std::is_integral_v<uint8_t>, "");
  y[n] = std::sqrt(std::fabs(least)) + most + static_cast<float>(m);
}}"""
    assert compile_nvrtc(source, {}, "sm_80", "k").cubin.startswith(b"\x7fELF")


@needs_nvrtc
def test_words_that_nvcc_knows_unasked_compile_and_errors_keep_their_lines():
    source = 'extern "C" __global__ void k(double* y, uint n) {\n  uint8_t a = n; y[a] = M_PI * INFINITY + INT_MIN;\n}'
    assert compile_nvrtc(source, {}, "sm_80", "k").cubin.startswith(b"\x7fELF")
    with pytest.raises(Exception, match=r"kernel.cu\(2\): error: identifier \"missing\""):
        compile_nvrtc(source.replace("M_PI", "missing"), {}, "sm_80", "k")


def test_a_source_that_needs_none_is_compiled_as_it_is():
    plain = 'extern "C" __global__ void k(float* y) { *y = 1; }'
    assert (prelude(plain), given_headers(plain, has_toolkit=False)) == ("", {})
    own = "#define M_PI 3.0\ntypedef unsigned int uint;\nusing uint8_t = unsigned char;\nuint8_t x = M_PI; uint y;"
    assert prelude(own) == ""


@needs_nvrtc
def test_what_is_given_is_part_of_the_key(monkeypatch):
    work = Compilation("#include <cmath>\n__global__ void k() {}", (), "sm_80", "k")
    before = work.key()
    monkeypatch.setattr("tilewright.tuner.compile.std_headers.fingerprint", lambda _source: "other headers")
    assert work.key() != before


def test_headers_that_only_nvcc_needs_go_for_the_host_compiler():
    source = '#include <cuda_runtime.h>\n  # include "device_launch_parameters.h" // blockIdx\n#include <cuda_fp16.h>\n'
    assert without_cuda_headers(source) == "\n\n#include <cuda_fp16.h>\n"


@needs_nvrtc
@pytest.mark.parametrize(
    "call",
    [
        *("pow(2, n)", "pow(x, 2.0)", "sqrt(n)", "floor(n / 2)", "fabs(n)", "exp(n)", "atan2(n, 2)", "fmax(x, 2.0)"),
        *("fmod(n, 2)", "std::pow(2, n)", "std::sqrt(n)", "log2(n)", "hypot(x, n)", "isnan(n)"),
    ],
)
def test_functions_of_numbers_of_other_types_are_those_of_doubles(call):
    source = f'extern "C" __global__ void k(double* y, int n, float x) {{ y[0] = {call}; }}\n'
    assert compile_nvrtc(source, {}, "sm_90", "k").cubin


@needs_nvrtc
def test_an_error_beside_such_a_call_is_the_one_that_is_told():
    source = 'extern "C" __global__ void k(double* y, int n) {\n  y[0] = sqrt(n);\n  y[1] = missing;\n}\n'
    with pytest.raises(TrialFailure, match=r'kernel.cu\(3\): error: identifier "missing"'):
        compile_nvrtc(source, {}, "sm_90", "k")


SOURCE = """
#include <cooperative_groups.h>
extern "C" __global__ void copy(const float* x, float* y) { y[RANK] = x[RANK]; }
"""


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """A toolkit whose header is not NVIDIA's: what is tried is where it is looked for."""
    include = tmp_path / "include"
    (include / "cccl" / "nv").mkdir(parents=True)
    (include / "cooperative_groups.h").write_text("#include <nv/rank>\n")
    (include / "cccl" / "nv" / "rank").write_text("#define RANK threadIdx.x\n")
    monkeypatch.setattr(nvrtc, "library_folders", lambda: iter([tmp_path / "nowhere" / "lib", tmp_path / "lib64"]))
    nvrtc.header_folders.cache_clear()
    yield tmp_path
    nvrtc.header_folders.cache_clear()


@needs_nvrtc
def test_nvrtc_finds_the_headers_of_a_toolkit_and_those_that_they_include(toolkit):
    assert nvrtc.header_folders() == (toolkit / "include", toolkit / "include" / "cccl")
    assert compile_nvrtc(SOURCE, {}, "sm_80", "copy").cubin.startswith(b"\x7fELF")


@needs_nvrtc
def test_without_headers_the_log_names_the_one_that_is_missing(toolkit):
    (toolkit / "include" / "cooperative_groups.h").unlink()
    assert nvrtc.header_folders() == ()
    with pytest.raises(TrialFailure, match=r"cooperative_groups\.h"):
        compile_nvrtc(SOURCE, {}, "sm_80", "copy")


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
@pytest.mark.in_turn(3)
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


@pytest.mark.in_turn(2)
@needs_cccl
def test_what_nvrtc_does_not_take_of_thrust_is_named_with_the_remedy():
    with pytest.raises(TrialFailure) as failure:
        compile_nvrtc("#include <thrust/sort.h>\n__global__ void k(int* x) { *x = 1; }", {}, "sm_90", "k")
    assert "<thrust/sort.h>; nvcc may: use --compiler pycuda" in first_error(failure.value.log)


@pytest.fixture
def cccl_toolkit(tmp_path, monkeypatch):
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
def test_the_headers_version_is_in_the_key_of_sources_that_include_them_only(cccl_toolkit):
    with_cub, plain = "#include <cub/cub.cuh>\n__global__ void k() {}", "#include <cmath>\n__global__ void k() {}"
    keys = []
    for number in (101700, 300001):
        put_version(cccl_toolkit / "cccl", number)
        cccl.version.cache_clear()
        cccl.folders.cache_clear()
        assert cccl.folders() == (cccl_toolkit / "cccl", cccl_toolkit)
        keys.append((key(with_cub), key(plain)))
    (before, plain_before), (after, plain_after) = keys
    assert before != after
    assert plain_before == plain_after


def test_headers_are_found_beside_those_of_the_target_and_without_a_folder_of_their_own(cccl_toolkit):
    put_version(cccl_toolkit.parent / "targets" / "sbsa-linux" / "include", 101700)
    assert cccl.folders() == (cccl_toolkit.parent / "targets" / "sbsa-linux" / "include",)
    assert cccl.version() == "CUB 101700"


@needs_nvrtc
def test_the_whole_of_cub_is_its_parts_for_the_device_even_where_it_refuses_nvrtc(cccl_toolkit):
    put_version(cccl_toolkit / "cccl", 300500)
    (cccl_toolkit / "cccl" / "cub" / "device").mkdir()
    (cccl_toolkit / "cccl" / "cub" / "device" / "host.cuh").write_text("#error host\n")
    (cccl_toolkit / "cccl" / "cub" / "part.cuh").write_text("#define PART 1\n")
    parts = (
        "#error no NVRTC\n#include <cub/part.cuh>\n#include <cub/device/host.cuh>\n#include <cub/util_allocator.cuh>\n"
    )
    (cccl_toolkit / "cccl" / "cub" / "cub.cuh").write_text(parts)
    source = "#include <cub/cub.cuh>\n__global__ void k(int* x) { *x = PART; }"
    assert compile_nvrtc(source, {}, "sm_90", "k").cubin


@needs_nvrtc
def test_without_a_toolkit_the_header_the_setting_and_the_remedy_are_named(cccl_toolkit):
    with pytest.raises(TrialFailure) as failure:
        compile_nvrtc(f"#include <cub/cub.cuh>\n{BLOCK_SUM}", {}, "sm_90", "k")
    said = first_error(failure.value.log)
    assert all(word in said for word in ("<cub/cub.cuh> was not found", "CUDA_HOME", "install a CUDA toolkit"))
    unused = "#ifdef WITH_CUB\n#include <cub/cub.cuh>\n#endif\n__global__ void k(uint8_t* x) { *x = 1; }"
    assert compile_nvrtc(unused, {}, "sm_90", "k").cubin
