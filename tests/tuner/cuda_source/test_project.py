"""Headers of a source's project: those that a kernel needs come along, cut as the source is."""

from pathlib import Path

import pytest

from tilewright.tuner.cuda_source.cut import cut
from tilewright.tuner.cuda_source.project import Project

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
