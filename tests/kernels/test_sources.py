"""What every source must hold to beside compiling, which tests/tuner/test_compile_kernels.py sees to."""

import re

import pytest

from tilewright.kernels.catalogue import catalogue

VARIANTS = [(kernel.name, variant.name) for kernel in catalogue().kernels() for variant in kernel.variants]


@pytest.mark.parametrize(("kernel", "variant"), VARIANTS)
def test_no_pragma_names_a_macro_because_nvcc_does_not_expand_it(kernel, variant):
    source = catalogue().get(kernel).source(variant)
    named = set(re.findall(r"#pragma unroll +([A-Za-z_]\w*)", source))
    assert not named & set(re.findall(r"#define +(\w+)", source))


@pytest.mark.parametrize(("kernel", "variant"), VARIANTS)
def test_a_source_opens_with_a_comment_that_says_what_it_computes(kernel, variant):
    assert re.match(r"// \S", catalogue().get(kernel).source(variant))
