"""Which launches are looked at, and what room their arrays have."""

import random
from itertools import pairwise

import numpy as np
import pytest

from tilewright.tuner.capture.program.recorder import MOST_GRIDS, Contents, Function, Launches


def looked_at(launches: Launches, calls: int, chance: random.Random) -> list[tuple[int, int]]:
    """The numbers of the launches that are looked at, from 1 on, with how many each stands for."""
    found = []
    for number in range(1, calls + 1):
        if launches.left:
            launches.left -= 1
        else:
            found.append((number, launches.look(chance.random())))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_every_launch_is_stood_for_and_looks_become_rare_but_never_end(seed):
    launches = Launches()
    looks = looked_at(launches, 20_000, random.Random(seed))
    assert [number for number, _ in looks[:4]] == [1, 2, 3, 4]
    assert sum(weight for _, weight in looks) == looks[-1][0]
    assert launches.calls == 20_000
    assert 15 <= len(looks) <= 60
    for (number, _), (following, weight) in pairwise(looks[3:]):
        planned = min(number // 2, 2048)
        assert weight == following - number
        assert 0.5 * planned <= weight <= 1.5 * planned + 2


def test_of_a_function_so_many_grids_are_told_apart_and_others_are_one():
    function = Function("f", {})
    own = [function[grid] for grid in range(MOST_GRIDS)]
    assert function[MOST_GRIDS] is function[MOST_GRIDS + 1]
    assert function[0] is own[0]
    assert len(function.all) == MOST_GRIDS + 1 == len({id(one) for one in function.all})


def test_arrays_are_kept_up_to_the_limit_and_what_did_not_fit_is_said_once(tmp_path):
    contents = Contents(tmp_path, 100, lambda: None)
    assert contents.takes(100, "f")
    name = contents.save(np.arange(10.0))
    assert np.array_equal(np.load(tmp_path / name), np.arange(10.0))
    assert (contents.used_bytes, contents.takes(20, "f"), contents.refusal) == (80, True, "")
    assert not contents.takes(21, "f")
    assert contents.refusal.startswith("with the arguments of f the contents are")
    assert not contents.takes(1, "f")
    assert not Contents(tmp_path, None, lambda: None).takes(0, "f")
