"""Triton sources as text: what a declaration may name, and what is wrong with one. None of it runs, or needs Triton."""

from textwrap import dedent

import pytest

from tilewright.kernels import catalogue
from tilewright.kernels.triton import function_of, is_same_function, signature

SOURCE = '''
import triton
import triton.language as tl

raise RuntimeError("this file is not to run here")

@triton.jit
def scale(x, y, n, step, factor, BLOCK: tl.constexpr, SHAPE_N: "tl.constexpr", REAL: constexpr, WIDE: tl.constexpr = 1):
    """Comments and docstrings are of no consequence."""
'''

DECLARATION = """
from tilewright.kernels.kernel import Kernel, Option, Scalar, Tensor, Variant, programs, shape_of
from tilewright.kernels.space import choice, powers_of_two

KERNEL = Kernel(
    name="scaled",
    entry="scale",
    dtypes=("float32", "float64"),
    options=(Option("mode", ("fast", "bit-wise"), "fast"), Option("twice", (False, True), False)),
    arguments=(
        Tensor("x", "input", shape_of("n")),
        Tensor("y", "output", shape_of("n")),
        Scalar("n", lambda p: p.shape["n"], dtype="int32"),
        Scalar("step", lambda p: 1, dtype="int64"),
        Scalar("factor", lambda p: 2.0),
    ),
    variants=(
        Variant(
            name="blocks",
            source="scale.py",
            launch=programs(lambda c, p: (-(-p.shape["n"] // c.BLOCK),)),
            parameters=(powers_of_two("BLOCK", 16, 64, default=32), choice("num_warps", 1, 2)),
        ),
    ),
    example_shape={"n": 64},
)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scale.py").write_text(SOURCE)
    (tmp_path / "declaration.py").write_text(DECLARATION)
    return tmp_path


def own_kernel(folder):
    """The kernel alone: loading all others beside it takes a second."""
    return catalogue._kernel_of(folder, catalogue._import_from(folder))


def changed(folder, name, old, new):
    path = folder / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_a_declared_function_is_read_and_not_run(folder):
    kernel = own_kernel(folder)
    function = function_of(kernel.source("blocks"), "scale")
    assert function.passed == ("x", "y", "n", "step", "factor")
    assert function.constexprs == ("BLOCK", "SHAPE_N", "REAL", "WIDE")
    assert function.required == {"BLOCK", "SHAPE_N", "REAL"}


def test_types_say_what_the_fixed_problem_is_a_multiple_of(folder):
    kernel = own_kernel(folder)
    assert signature(kernel.arguments, kernel.problem({"n": 64})) == ("*fp32:16", "*fp32:16", "i32:16", "1", "fp32")
    odd = kernel.problem({"n": 61}, "float64")
    assert signature(kernel.arguments, odd) == ("*fp64:16", "*fp64:16", "i32", "1", "fp64")


def test_a_whole_number_that_is_one_is_not_passed(folder):
    kernel = own_kernel(folder)
    assert [a.name for a in kernel.passed(kernel.problem({"n": 64}))] == ["x", "y", "n", "factor"]
    assert [a.name for a in kernel.passed(kernel.problem({"n": 1}))] == ["x", "y", "factor"]


def test_every_word_of_an_option_has_a_value(folder):
    kernel = own_kernel(folder)
    default = kernel.variants[0].space().default()
    macros = kernel.definitions(kernel.problem({"n": 64}, options={"mode": "bit-wise", "twice": True}), default)
    assert (macros["MODE_FAST"], macros["MODE_BIT_WISE"], macros["TWICE"]) == ("0", "1", "1")
    assert (macros["REAL"], macros["SHAPE_N"], macros["BLOCK"]) == ("fp32", "64", "32")


def test_threads_are_those_of_the_warps(folder):
    kernel = own_kernel(folder)
    variant, problem = kernel.variants[0], kernel.problem({"n": 100})
    launch = variant.launch(variant.space().default().values, problem)
    assert (launch.grid, launch.block) == ((4, 1, 1), (32, 1, 1))


@pytest.mark.parametrize(
    ("name", "old", "new", "flaw"),
    [
        ("scale.py", "def scale(", "def other(", "does not define scale: there must be a function of that name under"),
        ("scale.py", "@triton.jit\n", "", "does not define scale"),
        ("scale.py", "def scale(", "def scale((", "scale.py is not Python: line 8"),
        (
            "scale.py",
            "n, step,",
            "n,",
            "takes 4 parameters that are not tl.constexpr (x, y, n, factor); the declaration",
        ),
        (
            "scale.py",
            "BLOCK: tl.constexpr",
            "TILE: tl.constexpr",
            "the parameter BLOCK is neither a tl.constexpr of scale",
        ),
        (
            "scale.py",
            "WIDE: tl.constexpr = 1",
            "WIDE: tl.constexpr",
            "nothing gives the tl.constexpr WIDE of scale a value",
        ),
        (
            "declaration.py",
            "source=",
            "workspace_bytes=lambda c, p: 64, source=",
            "is one launch, and has no workspace",
        ),
        (
            "declaration.py",
            "variants=(",
            'variants=(Variant("cuda", "a.cu", None),',
            "some are Triton's: declare a kernel",
        ),
    ],
)
def test_a_flaw_names_what_to_change(folder, name, old, new, flaw):
    changed(folder, name, old, new)
    with pytest.raises(catalogue.BrokenDeclarationError) as refused:
        own_kernel(folder)
    assert flaw in str(refused.value)


def test_functions_are_the_same_whatever_stands_around_them():
    one = dedent("""
        @triton.jit
        def f(x, N: tl.constexpr):
            return x + N
    """)
    other = "@autotune(configs=[])\n@triton.jit\ndef f(x, N: tl.constexpr):\n    # the sum\n    return (x + N)\n"
    assert is_same_function(one, other, "f")
    assert not is_same_function(one, other.replace("+", "-"), "f")
    assert not is_same_function(one, other, "g")


@pytest.mark.parametrize("name", ["K", "k"])
def test_a_constexpr_named_as_an_axis_has_its_size(folder, name):
    (folder / "scale.py").write_text(SOURCE.replace("SHAPE_N", name))
    declaration = DECLARATION.replace('shape_of("n")', 'shape_of("n", "k")')
    (folder / "declaration.py").write_text(declaration.replace('{"n": 64}', '{"n": 64, "k": 2}'))
    kernel = own_kernel(folder)
    definitions = kernel.definitions(kernel.problem({"n": 100, "k": 7}), kernel.variants[0].space().default())
    assert definitions[name] == "7"


def test_a_parameter_of_a_triton_source_may_have_one_letter(folder):
    (folder / "scale.py").write_text(SOURCE.replace("BLOCK", "B"))
    declaration = folder / "declaration.py"
    declaration.write_text(DECLARATION.replace("BLOCK", "B"))
    assert own_kernel(folder).variants[0].space().default().values["B"] == 32


def test_a_parameter_that_is_named_as_an_axis_keeps_its_own_value(folder):
    (folder / "scale.py").write_text(SOURCE.replace("BLOCK", "N"))
    (folder / "declaration.py").write_text(DECLARATION.replace("BLOCK", "N"))
    kernel = own_kernel(folder)
    assert kernel.definitions(kernel.problem({"n": 100}), kernel.variants[0].space().default())["N"] == "32"
