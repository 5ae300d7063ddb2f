"""What runs beside a script: its functions as text, its generated sources, what its arrays hold."""

import math

import numpy as np
import pytest

from tilewright.tuner.adopt.script.contents import ContentsTooLargeError, described
from tilewright.tuner.adopt.script.functions import Functions, UnclearError
from tilewright.tuner.adopt.script.generator import sources
from tilewright.tuner.adopt.script.restrictions import restrictions_of

PARAMETERS = {"block_size_x": [32, 64, 128], "tile": [1, 2, 4]}
SIZE = 100
LONG = list(range(10_000))


class Values(dict):
    """A configuration as Tilewright hands it to a declaration."""

    __getattr__ = dict.__getitem__


def half(number):
    return number // 2


def blocks(p: dict) -> int:
    rows = half(SIZE)
    return rows * p["tile"]


def evaluated(functions, expression, **values):
    names = {"math": math, "np": np, "numpy": np, "c": Values(values)}
    exec("\n".join([*functions.imports.values(), *functions.definitions.values()]), names)  # noqa: S102
    return eval(expression, names)  # noqa: S307


@pytest.mark.parametrize(
    ("text", "right"),
    [("block_size_x/tile", 32.0), ("block_size_x % 32 == 0 and tile < 4", True), ("max(tile, 3)", 3)],
)
def test_a_string_reads_the_configuration(text, right):
    functions = Functions(PARAMETERS)
    assert evaluated(functions, functions.expression(text, "restriction"), block_size_x=64, tile=2) == right


@pytest.mark.parametrize("text", ["tile &&", "width > 3"])
def test_a_string_of_something_else_is_refused(text):
    with pytest.raises(UnclearError, match="restriction"):
        Functions(PARAMETERS).expression(text, "restriction")


def test_a_function_is_carried_with_what_it_uses():
    functions = Functions(PARAMETERS)
    expression = functions.called(blocks, "problem_size", "problem_size")
    assert list(functions.definitions) == ["half", "SIZE", "blocks"]
    assert evaluated(functions, expression, tile=4) == 200
    assert not functions.notes


def test_a_lambda_is_carried_with_its_closure_and_told_from_others_in_its_line():
    most = np.int32(64)
    pair = (lambda p: p["block_size_x"] <= most, lambda p: p["block_size_x"] >= most)  # fmt: skip
    functions = Functions(PARAMETERS)
    expression = functions.called(pair[1], "restriction_1", "restriction_1")
    assert functions.definitions["restriction_1"] == "restriction_1 = lambda p: p['block_size_x'] >= most"
    assert [evaluated(functions, expression, block_size_x=n) for n in (32, 64)] == [False, True]


def test_a_function_that_takes_parameters_by_name_gets_them():
    functions = Functions(PARAMETERS)
    expression = functions.called(lambda tile, block_size_x: tile * block_size_x, "size", "size")
    assert evaluated(functions, expression, tile=4, block_size_x=32) == 128


def test_what_cannot_be_read_is_enumerated_and_the_note_says_so():
    functions = Functions(PARAMETERS)
    expression = functions.called(lambda p: LONG[p["tile"]] > 1, "restriction_1", "restriction_1")
    assert functions.definitions == {"RESTRICTION_1": "RESTRICTION_1 = {(1,): False, (2,): True, (4,): True}"}
    assert expression == "RESTRICTION_1[(c.tile, )]"
    assert functions.notes == ["restriction_1: it uses a long list; it was enumerated instead, over tile"]


def test_parameters_that_are_no_whole_numbers_are_looked_up():
    functions = Functions({"real_type": ["float", "double"], "tile": [1, 2]})
    assert functions.expression("tile if real_type == 'float' else 1", "x").startswith("c.tile if values_of(c)")
    assert functions.called(lambda p: p["tile"], "size", "size") == "size(values_of(c))"


class MaxProdConstraint:
    """As python-constraint has it."""

    def __init__(self, most):
        self._maxprod = most


def test_restrictions_of_every_kind():
    functions = Functions(PARAMETERS)
    given = ["tile>1", lambda p: p["tile"] < 4, (MaxProdConstraint(128), ["block_size_x", "tile"])]
    found = restrictions_of(given, functions)
    assert [one["name"] for one in found] == ["tile>1", "restriction 2", "MaxProdConstraint of block_size_x, tile"]
    admitted = [
        (x, tile)
        for x in PARAMETERS["block_size_x"]
        for tile in PARAMETERS["tile"]
        if all(evaluated(functions, one["expression"], block_size_x=x, tile=tile) for one in found)
    ]
    assert admitted == [(32, 2), (64, 2)]


def test_a_generator_that_only_writes_its_parameters_makes_one_source():
    def make(p):
        return "int i = blockIdx.x * {} + {};".format(p["block_size_x"], p["tile"] * 2)

    assert sources(make, PARAMETERS) == [{"when": {}, "text": "int i = blockIdx.x * block_size_x + (tile * 2);"}]


def test_a_generator_that_counts_makes_a_source_for_each_count():
    def make(p):
        return "".join(f"a[{n} * {p['block_size_x']}];" for n in range(p["tile"]))

    found = sources(make, PARAMETERS)
    assert [one["when"] for one in found] == [{"tile": 1}, {"tile": 2}, {"tile": 4}]
    assert found[1]["text"] == "a[0 * block_size_x];a[1 * block_size_x];"


def test_a_generator_that_hides_a_number_is_found_out():
    found = sources(lambda p: f"a[{str(p['tile'])[::-1]}]", {"tile": [12, 34]})
    assert found == [{"when": {"tile": 12}, "text": "a[21]"}, {"when": {"tile": 34}, "text": "a[43]"}]


def test_a_generator_of_too_many_sources_is_refused():
    with pytest.raises(UnclearError, match="makes 1000 different ones; 512 are taken"):
        sources(lambda p: "x" * int(p["tile"]), {"tile": list(range(1000))})


def kind_of(array, tmp_path, **options):
    options = {"as_they_are": False, "file": tmp_path / "a.npy", "limit_bytes": 1 << 20} | options
    return described(array, **options)


def test_contents_are_told_by_how_they_look_drawn(tmp_path):
    generator = np.random.default_rng(1)
    assert kind_of(np.zeros((9, 9)), tmp_path) == {"kind": "full", "value": 0.0, "dtype": "float64"}
    assert kind_of(generator.normal(size=9000), tmp_path) == {"kind": "normal", "mean": 0.0, "deviation": 1.0}
    assert kind_of(generator.uniform(2, 5, 90_000), tmp_path) == {"kind": "uniform", "low": 2.0, "high": 5.0}
    assert not (tmp_path / "a.npy").exists()


@pytest.mark.parametrize(
    "array",
    [np.arange(5000), np.sort(np.random.default_rng(1).normal(size=5000)), np.cos(np.arange(5000.0)), np.arange(9.0)],
)
def test_contents_that_mean_something_are_kept(array, tmp_path):
    assert kind_of(array, tmp_path) == {"kind": "file", "file": "a.npy"}
    assert np.array_equal(np.load(tmp_path / "a.npy"), array)


def test_more_than_the_limit_is_not_kept(tmp_path):
    with pytest.raises(ContentsTooLargeError, match="2 MiB"):
        kind_of(np.arange(1 << 18), tmp_path)
    assert not (tmp_path / "a.npy").exists()
