"""A declaration made from a source alone can be loaded, and says what the source shows."""

import pytest

from tilewright.kernels.kernel import Scalar, Tensor
from tilewright.kernels.own import own_kernel
from tilewright.tuner.cuda_source.passed import UnclearSourceError
from tilewright.tuner.kernel_check.first import first_declaration

SOURCE = """
#define BLOCK_X 32   // threads along a row
#ifndef BLOCK_Y
#define BLOCK_Y 8
#endif
#define UNROLL 3
#define WEIGHT 0.25f
#define UNUSED 7
// __global__ void old(float* x)
extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
Blur(const float* __restrict__ in, float *out, int H, const int W, float scale, float2 const* at, uint8_t mask[]) {
  const int x = blockIdx.x * BLOCK_X + threadIdx.x, y = blockIdx.y * BLOCK_Y + threadIdx.y;
  for (int i = 0; i < UNROLL; ++i) out[y * W + x] = in[y * W + x] * scale * WEIGHT + at[0].x;
  mask[y * W + x] += 1;
}
"""


def test_arguments_parameters_and_launch_are_those_of_the_source(tmp_path):
    made = first_declaration(SOURCE, "blur.cu")
    (tmp_path / "blur.cu").write_text(made.source)
    (tmp_path / "declaration.py").write_text(made.declaration)
    kernel = own_kernel(tmp_path)
    assert (kernel.name, kernel.entry, kernel.axes, kernel.dtypes) == ("blur", "Blur", ("h", "w"), ("float32",))
    problem = kernel.problem({"h": 100, "w": 50})
    found = [(a.name, a.role, a.dtype, a.shape(problem)) for a in kernel.arguments if isinstance(a, Tensor)]
    assert found == [
        ("in", "input", None, (100, 50)),
        ("out", "output", None, (100, 50)),
        ("at", "input", None, (100, 50, 2)),
        ("mask", "inout", "uint8", (100, 50)),
    ]
    numbers = [(a.name, a.dtype, a.number(problem)) for a in kernel.arguments if isinstance(a, Scalar)]
    assert numbers == [("H", "int32", 100), ("W", "int32", 50), ("scale", None, 1)]
    (variant,) = kernel.variants
    assert {p.name: p.values for p in variant.parameters} == {
        "BLOCK_X": (8, 16, 32, 64, 128),
        "BLOCK_Y": (2, 4, 8, 16, 32),
        "UNROLL": (1, 2, 3, 4, 8),
    }
    launch = variant.launch(variant.space().default().values, problem)
    assert (launch.grid, launch.block) == ((2, 13, 1), (32, 8, 1))
    assert made.source.count("#ifndef BLOCK_X\n#define BLOCK_X 32") == made.source.count("#ifndef BLOCK_Y") == 1


def test_a_template_is_an_entry_of_the_problems_dtype_and_of_parameters(tmp_path):
    source = """
    template <class T, int TILE, unsigned int BLOCK = 128, bool FAST = true>
    __global__ void scale(T *__restrict__ y, const T *x, T a, int n) {
      for (int t = 0; t < TILE; ++t) {
        int i = (blockIdx.x * TILE + t) * BLOCK + threadIdx.x;
        if (i < n) y[i] = a * x[i];
      }
    }
    """
    made = first_declaration(source, "scale.cu")
    (tmp_path / "scale.cu").write_text(made.source)
    (tmp_path / "declaration.py").write_text(made.declaration)
    kernel = own_kernel(tmp_path)
    assert kernel.entry == "scale<REAL, GIVEN_TILE, GIVEN_BLOCK, GIVEN_FAST>"
    assert [getattr(a, "role", a.dtype) for a in kernel.arguments] == ["output", "input", None, "int32"]
    assert {p.name: (p.default, p.values) for p in kernel.variants[0].parameters} == {
        "GIVEN_TILE": (4, (1, 2, 4, 8, 16)),
        "GIVEN_BLOCK": (128, (32, 64, 128, 256, 512)),
        "GIVEN_FAST": (1, (0, 1)),
    }
    assert kernel.dtypes == ("float32", "float64")


@pytest.mark.parametrize(
    ("source", "entry", "said"),
    [
        ("void host() {}", None, "there is no __global__ function"),
        ("__global__ void a(float* x) {}\n__global__ void b(float* x) {}", None, "the source has a, b"),
        (SOURCE, "blurred", "there is no __global__ function 'blurred'; the source has Blur"),
        ("template <typename... T> __global__ void a(T* x) {}", None, "a is a template of `typename... T`, neither a"),
        ("__global__ void a(const float* x, int n) {}", None, "a writes nothing"),
        ("__global__ void a(float2* y, float2 by) {}", None, "line 1: `float2 by` is a vector by value"),
        ("__global__ void a(float** y) {}", None, "is a pointer to pointers"),
        ("struct P { float x; };\n__global__ void a(float* y, P p) {}", None, "line 2: `P p` is passed by value"),
        ("struct P { float* x; };\n__global__ void a(P* p) {}", None, "which has a member of type"),
        (
            "namespace m {\n__constant__ float w[3];\n__global__ void a(float* y) { *y = w[0]; } }",
            None,
            "line 2: the constant",
        ),
        ("__global__ void a(float* y);", None, "there is no __global__ function with a body"),
        ("__global__ void a(float* y) {\n b<<<1, 32>>>(y);\n}", None, "line 2: a launches a kernel itself"),
        (
            "template <class P> __global__ void a(float* y) { *y = P::v; }",
            None,
            "type P, which no parameter has: name it",
        ),
        (
            "__global__ void a(float* x, cudaTextureObject_t t) {}",
            None,
            "`cudaTextureObject_t t` is a texture, whose kind no source tells",
        ),
    ],
)
def test_a_source_that_shows_too_little_is_refused(source, entry, said):
    with pytest.raises(UnclearSourceError, match=said.replace("(", r"\(")):
        first_declaration(source, "a.cu", entry)


def test_half_types_are_the_kernels_dtype_and_floats_beside_them_their_own(tmp_path):
    source = """
#include <cuda_bf16.h>
extern "C" __global__ void scale(const nv_bfloat16* x, __nv_bfloat16* y, float* sums, float by, int n) {
  y[threadIdx.x] = x[threadIdx.x];
}
"""
    made = first_declaration(source, "scale.cu")
    (tmp_path / "scale.cu").write_text(made.source)
    (tmp_path / "declaration.py").write_text(made.declaration)
    kernel = own_kernel(tmp_path)
    problem = kernel.problem({"n": 40}, "bfloat16")
    assert kernel.dtypes == ("bfloat16",)
    assert [a.dtype_for(problem) for a in kernel.arguments] == ["bfloat16", "bfloat16", "float32", "float32", "int32"]


def test_numbers_of_a_template_may_be_spelled_in_any_way(tmp_path):
    source = (
        "template <const int A, uint32_t B, unsigned C, auto D> __global__ void k(float* y) { y[A + B + C + D] = 1; }"
    )
    made = first_declaration(source, "k.cu")
    assert "k<GIVEN_A, GIVEN_B, GIVEN_C, GIVEN_D>" in made.declaration


def test_a_macro_of_the_host_with_the_name_of_a_block_gives_its_default():
    source = """#define BLOCK_SIZE 128
__global__ void a(float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 1;
}
void host(float* y) { a<<<1, BLOCK_SIZE>>>(y, 3); }"""
    assert 'choice("BLOCK_SIZE", 32, 64, 128, 256, 512, default=128)' in first_declaration(source, "a.cu").declaration


@pytest.mark.parametrize(
    ("index", "grid"),
    [("threadIdx.x", "grid=(1, 1, 1)"), ("at()", 'grid=(-(-p.shape["n"] // c.BLOCK_SIZE), 1, 1)')],
)
def test_a_kernel_that_does_not_ask_for_its_block_has_one(index, grid):
    source = f"""__device__ int at() {{ return blockIdx.x * blockDim.x + threadIdx.x; }}
__global__ void a(float* y, int n) {{
  for (int i = {index}; i < n; i += blockDim.x * gridDim.x) y[i] = 1;
}}"""
    assert grid in first_declaration(source, "a.cu").declaration


def test_shared_memory_of_a_template_is_told_by_its_parameters():
    source = """template <typename T, int WIDTH = 16> __global__ void a(T* y) {
  __shared__ T tile[WIDTH][WIDTH + 1];
  y[threadIdx.x] = tile[0][threadIdx.x];
}"""
    size = "static_shared_bytes=lambda c, p: p.item_bytes * c.GIVEN_WIDTH * (c.GIVEN_WIDTH + 1)"
    assert size in first_declaration(source, "a.cu").declaration
    given = first_declaration(source, "a.cu", "a<double, 8>").declaration
    assert "static_shared_bytes=lambda c, _p: 8 * 8 * (8 + 1)" in given


def test_structs_of_numbers_are_tensors_of_their_members_and_mixed_ones_of_bytes():
    source = """
typedef struct { float2 at; float w[2]; } Same;
struct Mixed { char kind; double x; short y; };
__global__ void k(const Same* a, Mixed* b, int n) { b[0].x = a[0].w[0]; }
"""
    made = first_declaration(source, "k.cu").declaration
    assert 'Tensor("a", "input", shape_of("n", 4))' in made
    assert 'Tensor("b", "inout", shape_of("n", 24), dtype="uint8")' in made


def kernel_of(folder, source, entry=None):
    made = first_declaration(source, "k.cu", entry)
    (folder / "k.cu").write_text(made.source)
    (folder / "declaration.py").write_text(made.declaration)
    return own_kernel(folder)


def test_bounds_of_indices_are_axes_and_shapes_and_blocks_have_as_many_axes(tmp_path):
    source = """
__global__ void product(const float* A, const float* B, float* C, int M, int N, int K) {
  int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= M || col >= N) return;
  float sum = 0;
  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
  C[row * N + col] = sum;
}"""
    kernel = kernel_of(tmp_path, source)
    problem = kernel.problem({"m": 100, "n": 50, "k": 7})
    assert [tensor.shape(problem) for tensor in kernel.tensors] == [(100, 7), (7, 50), (100, 50)]
    space = kernel.variants[0].space()
    launch = kernel.variants[0].launch(space.default().values, problem)
    assert (launch.grid, launch.block) == ((2, 13, 1), (32, 8, 1))
    assert [parameter.name for parameter in kernel.variants[0].parameters] == ["BLOCK_SIZE_X", "BLOCK_SIZE_Y"]


def test_constant_memory_is_an_input_whose_size_is_no_parameter(tmp_path):
    source = """
#define TAPS 3
#define TILE 64
__constant__ float weights[TAPS];
__global__ void blur(const float* x, float* y, int n) {
  int i = blockIdx.x * TILE + threadIdx.x;
  float sum = 0;
  for (int t = 0; t < TAPS; ++t) sum += weights[t] * x[i];
  if (i < n) y[i] = sum;
}"""
    kernel = kernel_of(tmp_path, source)
    [weights] = kernel.constants
    assert (weights.symbol, weights.shape(kernel.problem({"n": 9}))) == ("weights", (3,))
    assert [parameter.name for parameter in kernel.variants[0].parameters] == ["TILE"]


def test_a_kernel_with_nothing_else_to_tune_gets_a_limit_of_registers(tmp_path):
    source = "__global__ void turned(const float* x, float* y) {\n  y[threadIdx.x] = x[31 - threadIdx.x];\n}\n"
    kernel = kernel_of(tmp_path, source)
    assert [parameter.name for parameter in kernel.variants[0].parameters] == ["MAX_REGISTERS"]
    assert "__global__ __maxnreg__(MAX_REGISTERS) void turned(" in kernel.source("plain")
    bounded = source.replace("void", "void __launch_bounds__(32)")
    assert "__maxnreg__" not in first_declaration(bounded, "k.cu").source


def test_arguments_of_a_template_may_be_named_and_their_classes_come_along(tmp_path):
    source = """
struct Rows { static __device__ int at(int i) { return i; } };
struct Unused { int n; };
template <class F, class LAYOUT> __global__ void copied(const F* x, F* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[LAYOUT::at(i)] = x[i];
}"""
    kernel = kernel_of(tmp_path, source, "copied<double, Rows>")
    assert (kernel.entry, kernel.dtypes) == ("copied<double, Rows>", ("float64",))
    assert "struct Rows" in kernel.source("plain")
    assert "Unused" not in kernel.source("plain")


def test_a_type_may_be_a_macro_and_have_a_short_or_a_qualified_name():
    source = """
#define PRECISION double
__global__ void k(PRECISION* y, uchar* a, std::uint16_t* b, const PRECISION by, uint n) { y[n] = by + a[0] + b[0]; }"""
    made = first_declaration(source, "k.cu").declaration
    assert 'dtypes=("float64",)' in made
    assert 'Tensor("a", "input", shape_of("n"), dtype="uint8")' in made
    assert 'Tensor("b", "input", shape_of("n"), dtype="uint16")' in made
    assert 'Scalar("n", lambda p: p.shape["n"], dtype="uint32")' in made


def test_a_name_that_is_taken_gets_a_number_and_keeps_its_function():
    source = "__global__ void gemm(float* y, int n) { y[n] = 1; }"
    made = first_declaration(source, "k.cu", taken_names={"gemm", "gemm_2"})
    assert made.name == "gemm_3"
    assert 'entry="gemm"' in made.declaration
