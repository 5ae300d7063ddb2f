"""CUDA's own headers, which NVRTC comes without: found where they are installed, and given to sources that ask."""

import pytest
from contracts.variant import needs_nvrtc

from tilewright.tuner.compile import nvrtc
from tilewright.tuner.compile.compiler import compile_nvrtc
from tilewright.tuner.errors import TrialFailure

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
