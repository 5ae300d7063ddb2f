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
        ("__global__ void a(float* y);", None, "there is no __global__ function with a body"),
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


def test_structs_of_numbers_are_tensors_of_their_members_and_mixed_ones_of_bytes():
    source = """
typedef struct { float2 at; float w[2]; } Same;
struct Mixed { char kind; double x; short y; };
__global__ void k(const Same* a, Mixed* b, int n) { b[0].x = a[0].w[0]; }
"""
    made = first_declaration(source, "k.cu").declaration
    assert 'Tensor("a", "input", shape_of("n", 4))' in made
    assert 'Tensor("b", "inout", shape_of("n", 24), dtype="uint8")' in made
