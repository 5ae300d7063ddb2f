"""What nvcc gives a source unasked, and the C and C++ headers that device code includes, compile by NVRTC too."""

import pytest
from contracts.variant import needs_nvrtc

from tilewright.tuner.compile.compilation import Compilation
from tilewright.tuner.compile.compiler import compile_nvrtc
from tilewright.tuner.compile.std_headers import given_headers, prelude, without_cuda_headers
from tilewright.tuner.errors import TrialFailure

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
