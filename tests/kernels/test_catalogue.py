"""The catalogue: all kernels of the package, and those of the user's own folders."""

import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from tilewright.kernels.catalogue import Catalogue, catalogue, flaws
from tilewright.kernels.errors import BrokenDeclarationError, UnknownNameError
from tilewright.kernels.own import CAPABILITIES, corners, limits_of, odd_shapes, option_values, own_kernel, spread
from tilewright.kernels.sources.folders import folders_of
from tilewright.kernels.space import SearchSpace
from tilewright.service.settings_model import Settings

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


EXAMPLE = Path(__file__).parents[2] / "examples/convolution2d"


@pytest.fixture(scope="module")
def example():
    return own_kernel(EXAMPLE)


def test_a_folder_is_no_clash_with_itself_but_with_a_copy(tmp_path):
    assert own_kernel(EXAMPLE, [EXAMPLE]).name == "convolution2d"
    for path in EXAMPLE.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(BrokenDeclarationError, match="another kernel is called 'convolution2d'"):
        own_kernel(tmp_path, [EXAMPLE])


def test_the_name_of_a_built_in_kernel_is_refused(tmp_path):
    for path in EXAMPLE.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_text(path.read_text().replace("convolution2d(", "gemm("))
    declaration = tmp_path / "declaration.py"
    declaration.write_text(declaration.read_text().replace('name="convolution2d"', 'name="gemm"'))
    with pytest.raises(BrokenDeclarationError, match="another kernel is called 'gemm'"):
        own_kernel(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BrokenDeclarationError, match=r"nowhere/declaration\.py: there is no such folder"):
        own_kernel(tmp_path / "nowhere")


def test_corners_take_every_parameter_of_the_example_to_both_ends(example):
    problem = example.problem(example.example_shape)
    (space,) = (
        SearchSpace((s,), problem, limits_of((9, 0)))
        for s in example.space(problem, limits_of((9, 0)), ["tiled"]).spaces
    )
    tried = corners(space)
    assert len(set(tried)) == len(tried)
    assert all(configuration in space for configuration in tried)
    assert tried[0] == space.defaults()[0]
    for parameter in space.spaces[0].parameters:
        seen = {configuration.values[parameter.name] for configuration in tried}
        assert {min(parameter.values), max(parameter.values)} <= seen, parameter.name


@pytest.mark.parametrize("name", sorted(catalogue().by_name))
def test_odd_shapes_are_problems_of_every_kernel(name):
    kernel = catalogue().get(name)
    for shape in odd_shapes(kernel):
        assert kernel.problem(shape, kernel.dtypes[0]).stated_shape == shape
        assert all(size <= kernel.example_shape[axis] for axis, size in shape.items())


def test_each_value_of_each_option_is_tried_once_beside_the_defaults():
    kernel = catalogue().get("gemm")
    tried = list(option_values(kernel, "float64"))
    assert tried[0] == {}
    admitted = [option for option in kernel.options if "float64" in (option.only_dtypes or kernel.dtypes)]
    assert len(tried) == 1 + sum(len(option.values) - 1 for option in admitted)


def test_a_spread_is_of_the_whole_space_and_no_more_than_asked_for(example):
    problem = example.problem({"h": 5, "w": 9, "r": 3, "s": 3})
    space = example.space(problem, limits_of((7, 5)), ["direct"])
    taken = spread(space, 5)
    assert len(set(taken)) == 5
    assert taken[0] == space.feasible[0]
    assert spread(space, len(space) + 1) == list(space.feasible)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_example_has_configurations_of_both_variants_on_every_target(example, capability):
    space = example.space(example.problem(example.example_shape, "float64"), limits_of(capability))
    assert {configuration.variant for configuration in space.defaults()} == {"direct", "tiled"}


def test_the_examples_reference_is_the_formula(example):
    problem = example.problem({"h": 258, "w": 70, "r": 3, "s": 2}, "float64")  # more than one strip and one band
    generator = np.random.default_rng(3)
    x, f = generator.standard_normal((260, 71)), generator.standard_normal((3, 2))
    found = example.reference(problem, {"x": x, "f": f}, {})
    assert found.value.shape == (258, 70)
    for i, j in [(0, 0), (4, 69), (255, 63), (256, 64), (257, 69), (3, 17)]:
        terms = [f[a, b] * x[i + a, j + b] for a in range(3) for b in range(2)]
        assert found.value[i, j] == pytest.approx(sum(terms), rel=1e-13, abs=1e-13)
        assert found.magnitude[i, j] == pytest.approx(sum(map(abs, terms)), rel=1e-13)
    assert found.terms == 6


def test_a_kernel_that_refuses_odd_shapes_is_tried_on_powers_of_two_or_its_example(example):
    def fault(problem):
        return None if all(size & (size - 1) == 0 and size > 1 for size in problem.shape.values()) else ("h", "is odd")

    powers = replace(example, fault=fault)
    assert odd_shapes(powers) == [{"h": 32, "w": 32, "r": 16, "s": 8}]
    large = {"h": 512, "w": 512, "r": 512, "s": 512}
    only = replace(example, example_shape=large, fault=lambda p: None if p.shape == large else ("h", "is another"))
    assert odd_shapes(only) == [large]


@pytest.mark.parametrize(
    ("text", "folders"),
    [
        ("", []),
        ("/foo", ["/foo"]),
        ("/foo:/with space/bar", ["/foo", "/with space/bar"]),
        ("relative:", ["relative"]),
        ('["/foo", "/b:r"]', ["/foo", "/b:r"]),
        ("[]", []),
    ],
)
def test_folders_are_a_path_several_paths_or_json(text, folders, monkeypatch):
    assert folders_of(text) == [Path(folder) for folder in folders]
    monkeypatch.setenv("TILEWRIGHT_KERNEL_FOLDERS", text)
    assert Settings().kernel_folders == folders_of(text)


@pytest.mark.parametrize("text", ['["/foo"', "[1]"])
def test_what_is_no_list_is_refused_with_an_example(text, monkeypatch):
    with pytest.raises(ValueError, match="/srv/kernels/axpy"):
        folders_of(text)
    monkeypatch.setenv("TILEWRIGHT_KERNEL_FOLDERS", text)
    with pytest.raises(ValidationError, match="/srv/kernels/axpy"):
        Settings()
