"""Files and programs as people have them: `kernels new`, `adopt`, `capture`, and what `kernels check` says."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

AT = "int i = blockIdx.x * blockDim.x + threadIdx.x;"


def copying(value: str, parameters: str = "float* y, const float* x, int n", name: str = "k") -> str:
    """A kernel that writes that value."""
    return f"__global__ void {name}({parameters}) {{ {AT} if (i < n) y[i] = {value}; }}\n"


class File(NamedTuple):
    """A source, what `new` and then `check` say of it, and whether it is fit."""

    text: str
    says: str
    is_fit: bool = True
    name: str = "k.cu"


FIT = "no errors"
FILES = {
    "byte order mark": File("\ufeff" + copying("x[i]"), FIT),
    "template of a const int": File("template <const int TILE>\n" + copying("(TILE > 0) * x[i]"), FIT),
    "template of an unsigned": File(
        "#include <cstdint>\ntemplate <uint32_t TILE>\n" + copying("(TILE > 0) * x[i]"), FIT
    ),
    "inline PTX": File(
        f'__global__ void k(int* y, int n) {{ {AT} int id; asm("mov.u32 %0, %%laneid;" : "=r"(id));'
        " if (i < n) y[i] = id; }",
        "not computed on the CPU, which has no ptx",
        is_fit=False,
    ),
    "printf": File(
        "#include <stdio.h>\n__global__ void k(float* y, const float* x, int n) {"
        f' {AT} if (i == 0) printf("%f\\n", x[0]);'
        " if (i < n) y[i] = x[i]; }",
        FIT,
    ),
    "hyphen in the file's name": File(copying("x[i] + 1"), FIT, name="plus-one.cu"),
    "no inputs": File(copying("1", "float* y, int n"), FIT),
    "pointer to a struct of equal numbers": File(
        "struct Point { float x, y, z; };\n" + copying("p[i].x + p[i].z", "const Point* p, float* y, int n"), FIT
    ),
    "vector by value": File(
        copying("x[i] + by.x", "float* y, const float* x, float2 by, int n"),
        "line 1: `float2 by` is a vector by value",
        is_fit=False,
    ),
    "namespace": File("namespace mine {\n" + copying("2 * x[i]") + "}\n", FIT),
    "constant memory": File("static __constant__ float shift = 1;\n" + copying("x[i] + shift"), FIT),
    "error of the source": File(
        "__device__ float twice(float v) { return 2 * v + missing; }\n" + copying("twice(x[i])"),
        "k/k.cu:1:50: error: ",
        is_fit=False,
    ),
    "unknown function behind an include": File(
        "#include <cuda_runtime.h>\n" + copying("no_such_function(x[i])"),
        "no_such_function",
        is_fit=False,
    ),
    "static shared memory": File(
        "#define WIDTH 256\n__global__ void k(float* y, const float* x, int n) { __shared__ float part[WIDTH];\n"
        f"{AT} part[threadIdx.x] = i < n ? x[i] : 0; __syncthreads(); if (i < n) y[i] = part[threadIdx.x]; }}\n",
        FIT,
    ),
    "headers of the standard library": File(
        "#include <cassert>\n#include <cfloat>\n#include <algorithm>\n#include <math.h>\n"
        + copying("x[i] + FLT_EPSILON"),
        FIT,
    ),
    "host code beside the kernel": File(
        "#include <iostream>\n"
        + copying("2 * x[i]")
        + "int main() { float *x, *y; cudaMalloc(&x, 4); cudaMalloc(&y, 4); k<<<1, 1>>>(y, x, 1);\n"
        "  std::cout << cudaGetErrorString(cudaGetLastError()); }\n",
        FIT,
    ),
}


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_a_file_gets_through_or_a_sentence_says_why(run, unreachable, tmp_path, monkeypatch, file):
    monkeypatch.chdir(tmp_path)
    (tmp_path / file.name).write_text(file.text, encoding="utf-8")
    made = run("kernels", "new", file.name, "--folder", "k")
    if made.status == 0:
        made = run("kernels", "check", "k", "--no-compile", "--configurations", "1", "--shape", "n=61")
    assert (made.status == 0) is file.is_fit, made.out + made.err
    assert file.says in made.out + made.err


SCRIPT = """
import numpy as np
from kernel_tuner import tune_kernel
n = 600
y = np.zeros(n, {dtype})
x = np.random.rand(n).astype(np.float32)
source = "extern \\"C\\" __global__ void k({type}* y, const float* x, int n{more}) {{" \\
    " int i = blockIdx.x * {block} + threadIdx.x; if (i < n) y[i] = {value}; }}"
tune_kernel("k", source, n, [y, x, np.int32(n){given}], {parameters}, {options})
"""
PLAIN = {
    "dtype": "np.float32",
    "type": "float",
    "more": "",
    "given": "",
    "block": "block_size_x",
    "value": "x[i]",
    "parameters": {"block_size_x": [64, 128]},
    "options": "",
}
SCRIPTS = {
    "a float of a whole value": {
        "value": "x[i] * (1 / scale)",
        "parameters": {"block_size_x": [64], "scale": [2.0]},
    },
    "infinity as an argument": {"more": ", float most", "given": ", np.float32(np.inf)", "value": "fminf(x[i], most)"},
    "unsigned numbers of one value": {"dtype": "np.uint8", "type": "unsigned char", "value": "x[i] > 0.5f"},
    "names of block sizes": {
        "block": "BX",
        "parameters": {"BX": [64, 128]},
        "options": "block_size_names=['BX', 'BY', 'BZ']",
        "value": "x[i] * BY",
    },
    "a parameter that changes nothing": {
        "parameters": {"block_size_x": [64], "method": [0, 1]},
        "value": "x[i] + 0 * method",
    },
}


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("changed", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_of_kernel_tuners_is_adopted_and_right(run, unreachable, tmp_path, monkeypatch, changed):
    monkeypatch.chdir(tmp_path)
    facts = {name: str(value) for name, value in (PLAIN | changed).items()}
    (tmp_path / "script.py").write_text(SCRIPT.format(**facts))
    adopted = run("kernels", "adopt", "script.py", "--json")
    assert adopted.status == 0, adopted.out + adopted.err
    (call,) = adopted.json["calls"]
    assert "method: changes the result" not in json.dumps(call["notes"])
    checked = run("kernels", "check", call["folder"], "--no-compile", "--configurations", "2")
    assert checked.status == 0, checked.out + checked.err


ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/capture.md").read_text()


@pytest.fixture
def program(tmp_path, monkeypatch, unreachable):
    """The page's `app.py`, in the current folder."""
    (text,) = re.findall(r"`app.py`:\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "app.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/tuner/capture/libraries"))
    return [sys.executable, "app.py"]


def test_the_example_of_the_page_is_captured_shown_adopted_and_checked(run, program, tmp_path):
    (block,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    commands = [line.split() for line in block.splitlines() if line.startswith("tilewright ")]
    assert [words[1] for words in commands] == ["capture", "capture", "capture", "kernels"]
    ran = [run(*(sys.executable if word == "python" else word for word in words[1:])) for words in commands]
    assert [one.status for one in ran] == [0] * 4, [one.err for one in ran]
    captured, shown, adopted, checked = ran
    assert captured.err == "1000 launches of 1 kind are in tilewright-capture. Then: tilewright capture show\n"
    head, row = (line.split("\t") for line in shown.out.splitlines())
    cells = dict(zip(head, row, strict=True))
    assert (cells["kernel"], cells["share"], cells["calls"]) == ("scale", "100.0%", "1000")
    assert (cells["grid"], cells["block"], cells["source"]) == ("40x1", "128x1x1", "PyCUDA")
    assert cells["arguments"] == "float32 10000, float32 10000, 3, 10000"
    assert "TILE: 1, 2, 4, 8; block_size_x: 32, 64, 128, 256, 512" in adopted.out
    assert "scale: no errors" in checked.out
    as_json = run("capture", "show", "--json").json
    assert (as_json["format"], [one["calls"] for one in as_json["launches"]]) == ("tilewright-capture/1", [1000])
    again = run("capture", "adopt", "scale")
    assert (again.status, "scale exists already: name another place by --folder" in again.err) == (1, True)


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["--", sys.executable, "-c", "raise SystemExit(5)"], 5, "ended with status 5: nothing is kept of it"),
        (["--", sys.executable, "-c", ""], 3, "launched nothing through Triton, PyCUDA's SourceModule"),
        (["--contents", "--contents-limit", "0.125", "--", sys.executable, "app.py"], 1, "limit of 0.125 MiB"),
        (["run", "--out", "no/such", "--", sys.executable, "app.py"], 1, "there is no folder"),
        (["show"], 2, "tilewright-capture holds no capture: make one: tilewright capture -- python app.py"),
        (["adopt", "scale", "--capture", "none"], 2, "none holds no capture"),
        (["python", "app.py"], 2, "a program stands behind --: tilewright capture -- python app.py"),
        (["--"], 2, "Missing argument 'PROGRAM'"),
        ([], 2, "Missing command. Try: tilewright capture --help"),
    ],
)
def test_an_error_is_one_line_with_its_exit_code_and_leaves_nothing(run, program, tmp_path, words, status, line):
    ran = run("capture", *words)
    assert (ran.status, line in ran.err) == (status, True), ran.err
    assert len([text for text in ran.err.splitlines() if text.startswith("error")]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]
