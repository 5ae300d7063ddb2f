"""The check of rows on a GPU compiles for every architecture and type that it is launched for."""

from __future__ import annotations

import pytest
from contracts.variant import needs_nvrtc
from sampling import sampled

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.compile.cache import compiled_by
from tilewright.tuner.compile.compilation import Compilation, symbol_of
from tilewright.tuner.runtime.first_use.product import definitions, source

TYPES = [
    ("float32", {}),
    ("float64", {}),
    ("bfloat16", {}),
    ("float16", {}),
    ("bfloat16", {"output": "float32"}),
    ("float16", {"output": "float32"}),
]


CASES = [
    (arch, dtype, options)
    for arch in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90")
    for dtype, options in TYPES
    if (arch, dtype) != ("sm_75", "bfloat16")  # no kernel takes it there
]


@needs_nvrtc
@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("arch", "dtype", "options"), sampled(CASES, lambda arch, *_: arch == "sm_90"), ids=str)
def test_the_source_compiles(arch, dtype, options):
    kernel = catalogue().get("gemm")
    problem = kernel.problem({"m": 64, "n": 64, "k": 64}, dtype, options)
    macros = tuple(sorted(definitions(kernel, problem).items()))
    compiled = compiled_by(None, Compilation(source(), macros, arch, "check_rows", "nvrtc"))
    for entry in ("keep_rows", "check_rows"):
        assert symbol_of(compiled.cubin, entry) == entry
    assert compiled.resources.spill_bytes <= 256  # where components are judged, once a block
