from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.service.operations.compiling.sendable import compilation_of, facts_of, hash_of, why_not
from tilewright.tuner.compile.compilation import Compilation

SOURCE = 'extern "C" __global__ void scale(REAL* x) { x[threadIdx.x] *= FACTOR; }  // nothing to include\n'
WORK = Compilation(
    SOURCE, (("FACTOR", "3"), ("REAL", "float")), "sm_90", "scale", "nvrtc", ("--use_fast_math", "-DN=1")
)


def test_every_variant_of_the_catalogue_can_be_sent():
    works = [
        replace(WORK, source=kernel.source(variant.name), flags=kernel.compiler_flags)
        for kernel in catalogue().kernels()
        for variant in kernel.variants
    ]
    assert {why_not(work) for work in works} == {None}
    assert len(works) > 10


def test_a_compilation_comes_out_of_its_row_as_it_went_in():
    assert compilation_of(SOURCE, facts_of(WORK)) == WORK
    assert compilation_of(SOURCE, facts_of(WORK)).key() == WORK.key()
    assert hash_of(SOURCE) != hash_of(SOURCE + " ")


@pytest.mark.parametrize(
    "line",
    [
        '#include "/etc/passwd"',
        "#include </etc/passwd>",
        "  #  include HEADER",
        "#/* a */ /* b\n */include <x>",
        "#inc\\\nlude <x>",
        "#inc\\  \nlude <x>",
        "%:include <x>",
        "??=include <x>",
        "#embed </etc/passwd>",
        '#import "x"',
        "#include_next <x>",
        "#if __has_include(</etc/passwd>)\n#endif",
        'asm(".incbin \\"x\\"");',
    ],
)
def test_a_source_that_names_a_file_stays(line):
    assert "names a file" in why_not(replace(WORK, source=f"{SOURCE}{line}\n"))


@pytest.mark.parametrize(
    "flag",
    ["-I/srv/include", "--pre-include=/etc/passwd", "-include", "--options-file=x", "@x", "-Xptxas=-v", "-DX=/a"],
)
def test_a_flag_that_may_name_a_file_stays(flag):
    assert flag in why_not(replace(WORK, flags=(flag,)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"compiler": "pycuda"}, "only NVRTC"),
        ({"arch": "sm_90 -I/x"}, "architecture"),
        ({"definitions": (("A -I/x", "1"),)}, "definition"),
        ({"definitions": (("A", '1\n#include "x"'),)}, "names a file"),
        ({"definitions": (("A", "x" * 40_000),)}, "too long"),
        ({"source": "/" * (4 << 20) + "//"}, "too long"),
    ],
)
def test_what_else_stays(change, reason):
    assert reason in why_not(replace(WORK, **change))


@pytest.mark.parametrize(
    "facts", [{}, {"definitions": 3}, {"definitions": [["a"]], "arch": "", "entry": "", "flags": []}]
)
def test_facts_that_nobody_wrote_are_refused(facts):
    with pytest.raises(ValueError, match="incomplete"):
        compilation_of(SOURCE, facts)
