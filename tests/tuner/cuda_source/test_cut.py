"""The part of a file, and of the headers of its project, that one kernel needs."""

from __future__ import annotations

from pathlib import Path

import pytest

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


SOURCE = """\
#include <vector>
#include "../include/point.h"
#include "timer.h"
#include "not_here.h"
#include "config.h"
#ifdef TWICE
#define FACTOR 2
#else
#define FACTOR 1
#endif
void host(std::vector<Point>& points);
__global__ void scale(Point* p) { p[threadIdx.x].x *= FACTOR; }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "include").mkdir()
    source = tmp_path / "src"
    source.mkdir()
    point = "#pragma once\n#include <vector>\nstruct Point { float x; };\nstd::string name(Point);\n"
    (tmp_path / "include" / "point.h").write_text(point)
    (source / "timer.h").write_text("#include <chrono>\n#define TICKS 3\nstruct Timer { double begin; };\n")
    (source / "config.h").write_text("#define TWICE\n")
    return source


def taken(folder: Path, *folders: Path):
    project = Project(SOURCE, folder, folders)
    return project, cut(project, project.main.kernels[0])


def test_a_header_comes_along_where_the_kernel_needs_it_without_host_code(folder):
    _, made = taken(folder)
    assert sorted(made.headers) == ["config.h", "point.h"]
    lines = made.headers["point.h"].splitlines()
    assert lines == ["#pragma once", "", "struct Point { float x; };", ""]


def test_includes_name_what_came_along_and_the_others_go_at_their_lines(folder):
    _, made = taken(folder)
    lines = made.text.splitlines()
    assert lines[:5] == ["", '#include "point.h"', "", "", '#include "config.h"']
    assert lines[11] == SOURCE.splitlines()[11]


def test_headers_that_are_nowhere_are_named(folder, tmp_path):
    project, made = taken(folder)
    assert project.missing == ["not_here.h"]
    (tmp_path / "not_here.h").write_text("void nothing();\n")
    project, made = taken(folder, tmp_path)
    assert project.missing == []
    assert "not_here.h" not in made.headers


def test_headers_of_one_name_get_names_of_their_own(tmp_path):
    for name, value in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "size.h").write_text(f"const int SIZE_{name} = {value};\n")
    text = '#include "a/size.h"\n#include "b/size.h"\n__global__ void k(int* y) { *y = SIZE_a + SIZE_b; }\n'
    project = Project(text, tmp_path)
    made = cut(project, project.main.kernels[0])
    assert made.headers == {"size.h": "const int SIZE_a = 1;\n", "size_2.h": "const int SIZE_b = 2;\n"}
    assert made.text.splitlines()[:2] == ['#include "size.h"', '#include "size_2.h"']
