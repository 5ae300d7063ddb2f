"""What every source must hold to beside compiling, which tests/tuner/compile/test_compile_kernels.py sees to."""

import re
import shutil
from dataclasses import replace

import pytest
from contracts.variant import needs_nvrtc

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.gemm.declaration import KERNEL as GEMM
from tilewright.kernels.source import INCLUDE
from tilewright.tuner.compile import nvrtc
from tilewright.tuner.compile.compilation import OPTIONS

VARIANTS = [(kernel.name, variant.name) for kernel in catalogue().kernels() for variant in kernel.variants]

HEADERS = [*INCLUDE.rglob("*.cuh"), *INCLUDE.parent.glob("*/*.cuh")]
SOURCES = list(INCLUDE.parent.glob("*/*.cu"))


@pytest.mark.parametrize(("kernel", "variant"), VARIANTS)
def test_no_pragma_names_a_macro_because_nvcc_does_not_expand_it(kernel, variant):
    source = catalogue().get(kernel).source(variant)
    named = set(re.findall(r"#pragma unroll +([A-Za-z_]\w*)", source))
    assert not named & set(re.findall(r"#define +(\w+)", source))


@pytest.mark.parametrize(("kernel", "variant"), VARIANTS)
def test_a_source_opens_with_a_comment_that_says_what_it_computes(kernel, variant):
    assert re.match(r"// \S", catalogue().get(kernel).source(variant))


def test_the_hash_covers_headers_that_headers_include(tmp_path):
    folder = shutil.copytree(GEMM.folder, tmp_path / "gemm", ignore=shutil.ignore_patterns("__pycache__"))
    changed = INCLUDE / "ptx" / "mma_sync.cuh"
    (tmp_path / "ptx").mkdir()
    (tmp_path / "ptx" / "mma_sync.cuh").write_text(changed.read_text() + "static_assert(true);\n")
    before, after = GEMM.source_hashes, replace(GEMM, folder=folder).source_hashes
    changed_variants = {name for name in before if before[name] != after[name]}
    assert changed_variants == {"tensor3xtf32", "tensor3xtf32_sliced", "tensor1xtf32"}


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: str(path.relative_to(INCLUDE.parent)))
def test_every_header_opens_with_what_it_is_for_and_comes_once(path):
    text = path.read_text()
    assert re.match(r"// \S", text)
    assert re.search(r"^#pragma once$", text, re.MULTILINE)


@pytest.mark.parametrize("path", [*HEADERS, *SOURCES], ids=lambda path: str(path.relative_to(INCLUDE.parent)))
def test_includes_are_sorted_but_for_what_must_be_first_and_none_is_the_compilers(path):
    blocks = re.findall(r"(?:^#include .*\n)+", path.read_text(), re.MULTILINE)
    for block in blocks:
        names = re.findall(r'#include "(.+)"', block)
        assert len(names) == block.count("\n")
        assert names == sorted(names)


@needs_nvrtc
@pytest.mark.parametrize("call", ["min(a, 127)", "max(a, 127)", "gcd(12u, a)", "ceil_div(a, 8u)", "min(127u, wide)"])
def test_signed_and_wide_arguments_are_refused_by_what_takes_unsigned_ones(call):
    """A negative exponent, converted in silence, made whole lines NaN."""
    header = (INCLUDE / "common" / "integers.cuh").read_text()
    frame = 'extern "C" __global__ void f(int a, unsigned b, unsigned long long wide, unsigned* y) {{ *y = tw::{}; }}'
    nvrtc.compile_cubin(header + frame.format("min(b, 127u) + tw::ceil_div(b, 8u)"), OPTIONS)
    with pytest.raises(nvrtc.NvrtcError, match="take unsigned numbers of 32 bits"):
        nvrtc.compile_cubin(header + frame.format(call), OPTIONS)
