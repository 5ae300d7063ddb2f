"""The part of a file that one kernel needs: what device code mentions stays at its lines, host code goes."""

from tilewright.tuner.cuda_source.cut import cut
from tilewright.tuner.cuda_source.project import Project
from tilewright.tuner.cuda_source.tree import CudaSource

PROGRAM = """\
#include <cuda_fp16.h>
#include <iostream>
#include <vector>
#include "shapes.h"
#define HALF 0.5f
#define SCALED(x) (factor * (x))
using namespace std;
struct Point { float x, y; };
struct Unused { std::vector<int> rows; };
__constant__ float factor;
static const int LIMIT = 7;
enum Mode { FAST, SLOW };
template <class T>
__device__ T twice(T v) { return v + v; }
__device__ float unused(float v) { return v; }
void launch(Point* p) { scale<4><<<1, 32>>>(p, 3); }
namespace inner {
float host_only(vector<float> v) { return v[0]; }
template <int N>
__global__ void scale(Point* p, int n) {
  if (n < LIMIT && SLOW) p[threadIdx.x].x = twice(SCALED(HALF)) * N;
}
__global__ void other(float* y) { y[0] = unused(1); }
}  // namespace inner
int main(int argc, char** argv) {
  cout << "hello";
}
"""


def cut_of(text, name):
    project = Project(text)
    [kernel] = [one for one in project.main.kernels if one.name == name]
    return cut(project, kernel).text


def test_what_the_kernel_mentions_stays_at_its_lines_and_the_rest_goes():
    lines, before = cut_of(PROGRAM, "scale").splitlines(), PROGRAM.splitlines()
    kept = {number for number, line in enumerate(lines, 1) if line.strip()}
    assert kept == {1, 5, 6, 8, 10, 11, 12, 13, 14, 17, 19, 20, 21, 22, 24}
    assert all(lines[number - 1] == before[number - 1] for number in kept)


def test_every_kernel_is_listed_with_its_namespace_and_template():
    kernels = CudaSource(PROGRAM).kernels
    assert [(one.entry, one.line) for one in kernels] == [("inner::scale", 20), ("inner::other", 23)]
    assert [(one.kind, one.name) for one in kernels[0].template_parameters] == [("int", "N")]
    assert kernels[0].parameters == ["Point* p", "int n"]


def test_headers_of_cub_and_thrust_stay_where_device_code_can_use_them():
    hosts = "#include <thrust/device_vector.h>\n#include <cub/device/device_scan.cuh>\nusing namespace cub;\n"
    devices = "#include <cub/block/block_scan.cuh>\n#include <thrust/tuple.h>\n"
    kernel = "__global__ void k(int* y) { *y = 1; }\n"
    assert cut_of(hosts + kernel, "k").strip() == kernel.strip()
    assert cut_of(devices + hosts + kernel, "k").split("\n") == [
        *devices.splitlines(),
        "",
        "",
        "using namespace cub;",
        kernel[:-1],
        "",
    ]


def test_conditions_and_linkage_are_looked_into():
    text = '#ifdef FAST\nextern "C" {\n__device__ int a();\n__global__ void k(int* y) { *y = a(); }\n}\n#endif\n'
    assert cut_of(text, "k") == text


def test_variables_of_the_host_go_and_constants_and_those_of_a_gpu_stay():
    text = """float host = 2;
extern bool more;
const int rows = 3;
static constexpr int columns = 4;
__device__ float on_gpu;
struct Size { int n; } size;
float scaled(float v);
__device__ float scaled(float v) { return v; }
__global__ void k(float* y) { float host = rows, more = columns; Size s{1}; *y = scaled(host + on_gpu + more + s.n); }
"""
    assert [bool(line.strip()) for line in cut_of(text, "k").splitlines()] == [False, False, *[True] * 7]


def test_one_definition_of_c_goes_with_its_linkage():
    text = 'extern "C"\nvoid host(int* y) {\n}\nextern "C" __global__ void k(int* y) { *y = 1; }\n'
    lines = cut_of(text, "k").splitlines()
    assert [line.strip() for line in lines] == ["", "", "", 'extern "C" __global__ void k(int* y) { *y = 1; }']
