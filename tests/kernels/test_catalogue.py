import textwrap
from dataclasses import replace

import pytest

from tilewright.kernels.catalogue import Catalogue, catalogue, flaws
from tilewright.kernels.errors import BrokenDeclarationError, UnknownNameError

DECLARATION = """
from pathlib import Path

import numpy as np

from tilewright.kernels.kernel import Kernel, Launch, Reference, Tensor, Variant
from tilewright.kernels.space import powers_of_two


def double(problem, arrays, scalars):
    value = 2 * arrays["x"].astype(np.float64)
    return Reference(value, np.abs(value), terms=1)


KERNEL = Kernel(
    name="{name}",
    doc="y = 2 x",
    folder=Path(__file__).parent,
    axes=("n",),
    dtypes=("float32",),
    options=(),
    arguments=(
        Tensor("x", "input", lambda p: (p.shape["n"],)),
        Tensor("y", "output", lambda p: (p.shape["n"],)),
    ),
    variants=(
        Variant(
            "plain",
            "plain.cu",
            lambda c, p: Launch((-(-p.shape["n"] // c.BLOCK), 1, 1), (c.BLOCK, 1, 1)),
            (powers_of_two("BLOCK", 32, 2048, default={default}),),
        ),
    ),
    flops=lambda p: p.shape["n"],
    bytes_moved=lambda p: 8 * p.shape["n"],
    reference=double,
    example_shape={{"n": {size}}},
)
"""
TWO_LAUNCHES = DECLARATION.replace("Tensor, Variant", "Preparation, Tensor, Variant").replace(
    "default={default}),),",
    "default={default}),), before=(Preparation('first', lambda c, p: Launch((1, 1, 1), (1, 1, 1))),),",
)
MAPPED = DECLARATION.replace("Tensor, Variant", "Tensor, TensorMap, Variant").replace(
    "default={default}),),", "default={default}),), tensor_maps=lambda c, p: (TensorMap('z', (1, 16)),),"
)
SOURCE = """
#ifndef BLOCK
#define BLOCK 128
#endif
extern "C" __global__ void twice(const REAL* x, REAL* y) { }
"""


def make_folder(folder, *, name="twice", default=128, size=1000, declaration=DECLARATION, source=SOURCE):
    folder.mkdir(exist_ok=True)
    (folder / "declaration.py").write_text(textwrap.dedent(declaration).format(name=name, default=default, size=size))
    (folder / "plain.cu").write_text(source)
    return folder


def test_built_in_kernels_are_there_in_order():
    names = [kernel.name for kernel in catalogue().kernels()]
    assert names == sorted(names)
    assert {"gemm", "gemv"} <= set(names)
    assert catalogue().get("gemm").name == "gemm"
    assert catalogue() is catalogue()


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda kernel: kernel.name)
def test_built_in_kernels_have_no_flaws(kernel):
    assert next(flaws(kernel), None) is None


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"'gem'.*gemm, gemv"):
        catalogue().get("gem")
    with pytest.raises(UnknownNameError, match=r"'fast'.*naive, register, .*tiled, wpt"):
        catalogue().get("gemm").variant("fast")


def test_a_folder_of_the_user_adds_its_kernel(tmp_path):
    found = Catalogue.load([make_folder(tmp_path / "twice")])
    kernel = found.get("twice")
    assert kernel.problem({"n": 5}).shape == {"n": 5}
    assert "gemm" in found.by_name
    assert "twice" not in catalogue().by_name


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"declaration": "KERNEL = 3"}, "must define KERNEL"),
        ({"declaration": "import no_such_module_anywhere"}, "ModuleNotFoundError"),
        ({"declaration": "KERNEL = ("}, "SyntaxError"),
        ({"name": "gemm", "source": SOURCE.replace("twice", "gemm")}, "another kernel is called 'gemm'"),
        ({"name": "Twice!"}, "name"),
        ({"default": 256}, "must define the default BLOCK 256"),
        ({"default": 2048, "source": SOURCE.replace("128", "2048")}, "block fits the device"),
        ({"size": 0}, "example_shape"),
        ({"source": SOURCE.replace("twice", "thrice")}, "does not define twice"),
        ({"declaration": TWO_LAUNCHES}, "does not define twice_first"),
        ({"declaration": MAPPED}, "tensor maps are of z, which is no tensor"),
        ({"declaration": MAPPED.replace("'z'", "'x'")}, "has 0 parameters .* for 1 tensor maps"),
        ({"declaration": DECLARATION.replace('"plain.cu"', '"../plain.cu"')}, "no source"),
        ({"declaration": DECLARATION.replace('"BLOCK"', '"W"')}, "'W' must match"),
        ({"declaration": DECLARATION.replace("c.BLOCK,", "c.THREADS,")}, "THREADS"),
        ({"declaration": DECLARATION.replace('"BLOCK"', '"items"')}, "'items' must match .* be none of .*items"),
        (
            {"source": SOURCE.replace("BLOCK", "OTHER"), "declaration": DECLARATION.replace("c.BLOCK", "128")},
            "nor the launch uses the parameter BLOCK",
        ),
        ({"declaration": DECLARATION.replace('"output"', '"input"')}, "roles"),
        ({"declaration": DECLARATION.replace('"output",', '"output", dtype="int4", shape=')}, "dtype of y must be of"),
    ],
)
def test_a_broken_declaration_is_refused_when_loaded_and_says_why(tmp_path, broken, reason):
    folder = make_folder(tmp_path / "twice", **broken)
    with pytest.raises(BrokenDeclarationError, match=reason) as caught:
        Catalogue.load([folder])
    assert str(folder / "declaration.py") in str(caught.value)


def test_a_launch_ahead_may_have_any_name(tmp_path):
    declaration = TWO_LAUNCHES.replace("(1, 1, 1)))", "(1, 1, 1)), entry='clear')")
    folder = make_folder(tmp_path / "twice", declaration=declaration, source=f"{SOURCE}void clear()")
    kernel = Catalogue.load([folder]).get("twice")
    (variant,) = kernel.variants
    values, problem = variant.space().default().values, kernel.problem({"n": 5})
    assert [name for name, _ in variant.launches(kernel.entry, values, problem)] == ["clear", "twice"]


def test_a_declaration_says_how_results_are_verified_where_there_is_no_reference(tmp_path):
    folder = make_folder(tmp_path / "twice", declaration=DECLARATION.replace("reference=double,", ""))
    kernel = Catalogue.load([folder]).get("twice")
    assert kernel.declaration["verified"] == "against the kernel's default configuration, not a reference"
    assert "verified" not in catalogue().get("gemm").declaration


def test_a_folder_without_declaration_is_refused(tmp_path):
    with pytest.raises(BrokenDeclarationError, match="no such file"):
        Catalogue.load([tmp_path])


def test_folders_of_headers_may_be_text():
    kernel = replace(catalogue().get("softmax"), include_folders=("/some/folder",))
    assert kernel.compiler_flags[-1] == "-I/some/folder"
    assert "exp" in kernel.source("held")
