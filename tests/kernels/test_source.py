"""How a source and what it includes become one text."""

import shutil

import pytest

from tilewright.kernels.catalogue import Catalogue
from tilewright.kernels.errors import BrokenDeclarationError
from tilewright.kernels.gemm.declaration import KERNEL as GEMM
from tilewright.kernels.source import IncludeError, resolved


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
