"""Shapes far from all that is tuned: never called near; an estimate decides between what is known and the default."""

import json
from pathlib import Path

import pytest
from factories import H100, H200, TILED_16, TILED_32
from found import find_best

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.far import COMPARED, is_near
from tilewright.tuner.predict.estimate import cycles
from tilewright.tuner.predict.tiles import Tiles

RECORDED = Path(__file__).parents[4] / "benchmarks" / "results" / "h200" / "kernels.json"
FAR = {"m": 64, "n": 12345, "k": 64}
TUNED = {"m": 777, "n": 12345, "k": 31}
FEWEST_TRIALS = 20
"""With fewer the time of a search was up so soon that another configuration may well be faster than the winner."""


def ask(session, shape=FAR, model="nvidia-h200", **more):
    return find_best(session, "gemm", model, shape, **more)


@pytest.mark.parametrize(
    ("sizes", "others", "near"),
    [
        ((64, 64), (1024, 64), True),
        ((64, 64), (1025, 64), False),
        ((64, 64), (256, 16), True),
        ((1, 2**31 - 1), (2**31 - 1, 1), False),
        ((64, 12345, 64), (777, 12345, 31), False),
    ],
)
def test_near_is_within_four_powers_of_two_over_all_axes(sizes, others, near):
    assert is_near(sizes, others) is is_near(others, sizes) is near


def test_a_far_shape_is_not_called_near(rows):
    rows.best(TUNED, configuration=TILED_32, time_ms=0.1).default_ms = 100.0
    rows.session.flush()
    found = ask(rows.session)
    assert (found.match, found.configuration) == ("estimated", {"TILE_WIDTH": 32})
    assert (found.tuned_problem.shape, found.expected_loss) == (TUNED, None)


def test_the_default_answers_where_it_should_be_faster_than_what_is_tuned_far_away(rows):
    best = rows.best({"m": 64, "n": 48, "k": 80}, configuration=TILED_16, time_ms=1.0)
    best.default_ms = 1.01  # hardly slower there, where launching is most of it
    rows.session.flush()
    found = ask(rows.session, {"m": 4096, "n": 4096, "k": 4096})
    assert (found.match, found.time_ms) == ("default", None)


def test_a_default_of_another_variant_than_was_timed_is_not_compared(rows):
    """Rows of odd length leave the default of `wpt` out, and with it all that is known of a default's time."""
    best = rows.best({"m": 64, "n": 48, "k": 80}, configuration=TILED_16, time_ms=1.0)
    best.default_ms = 1e-3
    rows.session.flush()
    assert ask(rows.session, {"m": 1, "n": 999, "k": 4001}).match == "estimated"
    assert ask(rows.session, {"m": 4, "n": 1000, "k": 4000}).match == "estimated"
    assert ask(rows.session, {"m": 512, "n": 1024, "k": 1024}).match == "default"


def test_of_far_shapes_the_one_whose_launch_suits_the_problem_answers(rows):
    """At (64, 4096, 4096) the tiles of the nearer shape would keep half of the multiprocessors idle."""
    recorded = {row["name"]: row for row in json.loads(RECORDED.read_text())["rows"]}
    for name in ("square-1024/fp32-fma", "square-256/fp32-fma"):
        row = recorded[name]
        configuration = Configuration.from_json(row["configuration"])
        rows.best(row["shape"], row["time_ms"], configuration=configuration).default_ms = row["default_ms"]
    rows.session.flush()
    found = ask(rows.session, {"m": 64, "n": 4096, "k": 4096})
    assert (found.match, found.tuned_problem.shape["m"]) == ("estimated", 256)


def test_what_is_far_on_another_model_is_not_called_transferred(rows):
    rows.best(TUNED, configuration=TILED_32, time_ms=0.1, model=H100).default_ms = 100.0
    rows.device(H200)
    rows.session.flush()
    found = ask(rows.session)
    assert (found.match, found.device_model) == ("estimated", "nvidia-h100")
    assert ask(rows.session, TUNED | {"m": 800}).match == "transferred"


def test_few_are_compared_and_those_the_nearest(rows):
    for far in range(COMPARED + 2):
        rows.best({"m": 777, "n": 12345, "k": 31 - far}, configuration=TILED_32, time_ms=0.1)
    assert ask(rows.session).tuned_problem.shape["k"] > 31 - COMPARED


def test_recorded_winners_are_not_expected_faster_elsewhere_than_what_won_there():
    """Of an H200: a winner carried over to another shape should seldom look faster than that shape's own winner."""
    recorded = json.loads(RECORDED.read_text())
    stated = {name: tuple(v) if isinstance(v, list) else v for name, v in recorded["device_model"]["limits"].items()}
    limits = Limits(**stated | {"features": frozenset(stated["features"])})
    groups = {}
    for row in recorded["rows"]:
        groups.setdefault((row["kernel"], row["dtype"], str(row["options"])), []).append(row)
    ratios = []
    for (name, dtype, _), rows in groups.items():
        kernel = catalogue().get(name)
        tiles = Tiles(kernel)
        problems = [kernel.problem(row["shape"], dtype, row["options"]) for row in rows]
        for row, tuned in zip(rows, problems, strict=True):
            configuration = Configuration.from_json(row["configuration"])
            variant = kernel.variant(configuration.variant)
            if set(configuration.values) != {parameter.name for parameter in variant.parameters}:
                continue  # of a source that had other parameters
            cost = cycles(tiles, limits, tuned, configuration)
            for other, problem in zip(rows, problems, strict=True):
                usable = problem != tuned and variant in kernel.usable_variants(problem, limits)
                is_searched = other["trials"] >= FEWEST_TRIALS
                if is_searched and usable and variant.space().violated(configuration.values, problem, limits) is None:
                    expected_ms = row["time_ms"] * cycles(tiles, limits, problem, configuration) / cost
                    ratios.append(expected_ms / other["time_ms"])
    ratios.sort()
    assert len(ratios) > 150
    assert sum(ratio < 0.8 for ratio in ratios) / len(ratios) < 0.05
    assert 0.9 < ratios[len(ratios) // 2] < 1.2
