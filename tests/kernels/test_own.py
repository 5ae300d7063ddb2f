"""Kernels of one's own: read from a folder, and what they are tried on; the example is one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.errors import BrokenDeclarationError
from tilewright.kernels.own import CAPABILITIES, corners, limits_of, odd_shapes, option_values, own_kernel, spread
from tilewright.kernels.sources.folders import folders_of
from tilewright.kernels.space import SearchSpace
from tilewright.service.settings_model import Settings

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
