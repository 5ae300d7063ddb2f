"""Every `.cu` compiles by itself: from its folder, with its defaults and the one `-I` that editors read too."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from contracts.variant import needs_nvrtc
from sampling import sampled

from tilewright.kernels.source import INCLUDE, resolved
from tilewright.tuner.compile import nvrtc
from tilewright.tuner.compile.compilation import OPTIONS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FLAGS = ROOT / "kernels" / "compile_flags.txt"
SOURCES = sorted(
    [
        *ROOT.glob("kernels/*/*.cu"),
        *ROOT.glob("examples/*/*.cu"),
        *ROOT.glob("tuner/**/*.cu"),
    ]
)
HEADERS = sorted(INCLUDE.rglob("*.cuh"))

QUICK = "--Ofast-compile=max"
"""What is the same before optimisations is the same after them."""


def architecture(path):
    """Where its instructions are: those of Hopper's variants are on one architecture only, clusters there and later."""
    return "sm_90a" if re.search("sm90|wgmma|quantized/held", str(path.relative_to(ROOT))) else "sm_80"


def include_flag():
    """The `-I` of kernels/compile_flags.txt, which clangd reads for every file below it."""
    (flag,) = [line for line in FLAGS.read_text().split() if line.startswith("-I")]
    return f"-I{FLAGS.parent / flag.removeprefix('-I')}"


def name(path):
    return str(path.relative_to(ROOT))


def is_usual(path, compared):
    """One of each folder is compared, every third compiles: test_compile_kernels compiles all as they are used."""
    is_first = path == next(other for other in SOURCES if other.parent == path.parent)
    return compared == is_first and (is_first or SOURCES.index(path) % 3 == 0)


@needs_nvrtc
@pytest.mark.parametrize(
    ("path", "compared"),
    sampled(((path, compared) for path in SOURCES for compared in (False, True)), is_usual),
    ids=lambda value: name(value) if isinstance(value, Path) else "compared" if value else "alone",
)
def test_nvrtc_makes_the_same_of_a_file_as_of_its_resolved_text(path, compared, monkeypatch):
    monkeypatch.chdir(path.parent)
    options = [f"--gpu-architecture={architecture(path)}", *OPTIONS, QUICK]
    alone, log = nvrtc.compile_cubin(path.read_text(), [*options, include_flag()])
    assert "warning" not in log, log
    assert not compared or alone == nvrtc.compile_cubin(resolved(path), options)[0]


@needs_nvrtc
@pytest.mark.parametrize("path", HEADERS, ids=name)
def test_a_shared_header_compiles_as_the_only_one(path):
    text = f'#include "{path.relative_to(INCLUDE)}"\n'
    _, log = nvrtc.compile_cubin(text, ["--gpu-architecture=sm_90a", *OPTIONS, QUICK, include_flag()])
    assert "error" not in log, log


@cache
def nvcc():
    """The command, where it compiles an empty kernel; some machines have one that lacks its parts."""
    command = shutil.which("nvcc")
    if command is None:
        return None
    probe = [command, "-cubin", "-arch=sm_80", "-x", "cu", "-o", "/dev/null", "-"]
    works = subprocess.run(probe, input="__global__ void empty() {}", text=True, capture_output=True, check=False)
    return command if works.returncode == 0 else None


# NVRTC compiles every file above.
NVCC_SAMPLE = {"kernels/linear/tensor_sm90.cu"}


@pytest.mark.parametrize("path", sampled(SOURCES, lambda path: name(path) in NVCC_SAMPLE), ids=name)
def test_nvcc_compiles_a_file_from_its_folder(path, tmp_path):
    command = nvcc()
    if command is None:
        pytest.skip("needs an nvcc that works")
    arguments = [f"-arch={architecture(path)}", *OPTIONS, include_flag(), "-cubin", "-o", tmp_path / "out"]
    done = subprocess.run(
        [command, *arguments, path.name], cwd=path.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
