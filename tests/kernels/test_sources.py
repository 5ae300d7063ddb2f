"""Sources of kernels: assembled from files, and what all of them keep to."""

import re
import shutil
from dataclasses import replace

import pytest
from contracts.variant import needs_nvrtc

from tilewright.kernels.catalogue import Catalogue, catalogue
from tilewright.kernels.errors import BrokenDeclarationError
from tilewright.kernels.gemm.declaration import KERNEL as GEMM
from tilewright.kernels.sources.source import INCLUDE, IncludeError, resolved
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


def write(folder, **texts):
    """Files of those texts, `a_cuh` being a.cuh; `source.cu` is what is compiled."""
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder / "source.cu"


def test_headers_are_followed_to_the_end_and_come_once(tmp_path):
    source = write(
        tmp_path,
        source_cu='// y = x\n#include "a.cuh"\n#include "b.cuh"  // again\nint source;\n',
        a_cuh='#pragma once\n#include "b.cuh"\nint a;\n',
        b_cuh='// deep\n#pragma once\n#include "a.cuh"\nint b;\n',
    )
    assert resolved(source) == "// y = x\n// deep\nint b;\n\nint a;\n\nint source;\n"


def test_a_header_without_pragma_once_comes_each_time_because_compilers_do_so(tmp_path):
    source = write(tmp_path, source_cu='#include "a.cuh"\n#include "a.cuh"\n', a_cuh="COUNT\n")
    assert resolved(source) == "COUNT\n\nCOUNT\n"


def test_headers_are_looked_for_beside_the_includer_in_folders_then_in_tilewrights(tmp_path):
    kernel, beside = tmp_path / "kernel", tmp_path / "common"
    kernel.mkdir(), beside.mkdir()
    source = write(kernel, source_cu='#include "common/a.cuh"\n#include "common/real.cuh"\n')
    write(beside, a_cuh='#include "b.cuh"\n', b_cuh="beside\n")
    text = resolved(source, (tmp_path,))
    assert text.startswith("beside\n")
    assert "#define REAL float" in text
    write(beside, real_cuh="hides Tilewright's\n")
    assert resolved(kernel / ".." / "kernel" / "source.cu", (tmp_path,)).endswith("hides Tilewright's\n")


def test_what_only_the_compiler_has_is_left_to_it(tmp_path):
    text = '#include <cuda_fp16.h>\n#include "cuda_bf16.h"\n'
    assert resolved(write(tmp_path, source_cu=text)) == text


def test_a_missing_header_is_named_with_the_places_where_it_was_looked_for(tmp_path):
    source = write(tmp_path, source_cu='#include "a.cuh"\n', a_cuh='#include "missing.cuh"\n')
    with pytest.raises(IncludeError, match=r'a\.cuh includes "missing\.cuh", which is in none of'):
        resolved(source)


def test_headers_that_include_each_other_for_ever_are_refused(tmp_path):
    source = write(tmp_path, source_cu='#include "a.cuh"\n', a_cuh='#include "b.cuh"\n', b_cuh='#include "a.cuh"\n')
    with pytest.raises(IncludeError, match=r"a\.cuh includes itself"):
        resolved(source)


def test_a_header_that_is_there_only_under_a_condition_is_not_taken_for_there(tmp_path):
    text = '#ifdef WIDE\n#include "a.cuh"\n#endif\n#include "a.cuh"\n'
    source = write(tmp_path, source_cu=text, a_cuh="#pragma once\nint a;\n")
    with pytest.raises(IncludeError, match="only inside an #if"):
        resolved(source)


def test_a_declaration_whose_header_is_missing_is_refused_with_the_headers_name(tmp_path):
    folder = shutil.copytree(GEMM.folder, tmp_path / "own", ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / "declaration.py").read_text().replace('name="gemm"', 'name="own"')
    (folder / "declaration.py").write_text(text)
    (folder / "problem.cuh").unlink()
    with pytest.raises(BrokenDeclarationError, match=r'includes "problem\.cuh", which is in none of'):
        Catalogue.load([folder])
