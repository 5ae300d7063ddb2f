import math
import time

import made_recordings as made
import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration, Constraint, SearchSpace, VariantSpace, choice
from tilewright.tuner.outcome import Evaluation, Outcome, Timing
from tilewright.tuner.replay import replay
from tilewright.tuner.search import SAMPLERS, RandomSearcher, TpeSearcher, make_searcher
from tilewright.tuner.search.unseen import Unseen

LIMITS = Limits(compute_capability=(9, 0), multiprocessors=1, memory_bytes=1 << 30)
PROBLEM = Problem("made", (("n", 64),), "float32", ())
FAILED = Evaluation(Outcome.LAUNCH_FAILED)


def measured(time_ms):
    return Evaluation(Outcome.MEASURED, warm=Timing(time_ms, 0.0, (time_ms,), "warm"))


def space_of(sizes, modulus=1):
    """Variants v0, v1, ... with parameters of the given sizes, of which the sum of values must divide by `modulus`."""
    constraint = Constraint("sum divides", lambda c, _p, _l: sum(c.values()) % modulus == 0)
    spaces = tuple(
        VariantSpace(
            f"v{i}", tuple(choice(f"P{j}", *range(1, n + 1)) for j, n in enumerate(variant_sizes)), (constraint,)
        )
        for i, variant_sizes in enumerate(sizes)
    )
    return SearchSpace(spaces, PROBLEM, LIMITS)


SIZES = st.lists(st.lists(st.integers(1, 4), min_size=0, max_size=3), min_size=1, max_size=3)


@given(SIZES, st.integers(1, 3), st.sampled_from(SAMPLERS), st.integers(0, 2**31), st.data())
@settings(max_examples=40, deadline=None)
def test_everything_feasible_is_proposed_once_and_nothing_else(sizes, modulus, sampler, seed, data):
    space = space_of(sizes, modulus)
    feasible = set(space.feasible)
    prior = [(c, measured(2.0)) for c in space.feasible if data.draw(st.booleans())][:5]
    searcher = make_searcher(sampler, space, space.defaults(), seed, prior)
    proposed = []
    for turn in range(len(space) + 1):
        proposal = searcher.propose()
        if proposal is None:
            break
        proposed.append(proposal)
        if turn % 3 != 2:  # some are told late or never: proposals may run ahead
            searcher.tell(proposal, FAILED if turn % 4 == 3 else measured(1.0 + turn))
    assert searcher.propose() is None
    assert len(proposed) == len(set(proposed))
    assert set(proposed) == feasible - {configuration for configuration, _ in prior}


@given(SIZES, st.integers(1, 3), st.data())
@settings(max_examples=60, deadline=None)
def test_snapping_is_to_a_nearest_free_configuration(sizes, modulus, data):
    space = space_of(sizes, modulus)
    unseen = Unseen(space, np.random.default_rng(0))
    taken = {c for c in space.feasible if data.draw(st.booleans())}
    unseen.take_all(taken)
    assert len(unseen) == len(space) - len(taken)
    variant = data.draw(st.sampled_from(space.spaces))
    wanted = {p.name: data.draw(st.integers(0, len(p.values) - 1)) for p in variant.parameters}
    near = unseen.nearest(variant.variant, wanted)
    as_configuration = Configuration.of(variant.variant, {p.name: p.values[wanted[p.name]] for p in variant.parameters})
    expected = space.nearest(as_configuration, taken)
    if expected is None:
        assert near is None
    else:
        assert near in space
        assert near not in taken
        assert space._distance(as_configuration, near) == space._distance(as_configuration, expected)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_starts_come_first_and_in_order(sampler):
    space = space_of([[4, 4], [3]])
    starts = [space.feasible[-1], space.feasible[0], space.feasible[-1]]
    searcher = make_searcher(sampler, space, starts, seed=1)
    assert [searcher.propose(), searcher.propose()] == starts[:2]
    assert searcher.propose() not in starts


def run_search(searcher, recording, trials):
    best = math.inf
    for _ in range(trials):
        configuration = searcher.propose()
        time_ms = np.median(recording.entries[configuration].samples_ms["warm"])
        searcher.tell(configuration, measured(float(time_ms)))
        best = min(best, time_ms)
    return best


def test_tpe_finds_more_than_chance_does():
    recording = made.of(
        {
            Configuration.of("v", {"P": p, "Q": q, "R": r}): made.entry(
                1 + 0.05 * ((p - 11) ** 2 + (q - 3) ** 2 + (r - 6) ** 2), seed=100 * p + 10 * q + r, count=3
            )
            for p in range(1, 17)
            for q in range(1, 11)
            for r in range(1, 11)
        },
        v=[("P", range(1, 17)), ("Q", range(1, 11)), ("R", range(1, 11))],
    )
    device, kernel, problem = replay(recording)
    space = kernel.space(problem, device.model.limits)
    found = {
        kind: np.mean([run_search(kind(space, [], seed), recording, 50) for seed in range(4)])
        for kind in (RandomSearcher, TpeSearcher)
    }
    assert found[TpeSearcher] < 1.10
    assert found[TpeSearcher] < found[RandomSearcher]


def test_a_corner_that_only_fails_is_left():
    space = space_of([[20, 20]])
    searcher = TpeSearcher(space, [], seed=3)
    failures = []
    for _ in range(60):
        configuration = searcher.propose()
        fails = configuration.values["P0"] > 10
        failures.append(fails)
        searcher.tell(configuration, FAILED if fails else measured(10.0 + configuration.values["P1"]))
    assert sum(failures[-30:]) < 6  # 15 by chance


def test_the_same_seed_repeats_the_search():
    space = space_of([[6, 6], [5]])

    def proposals(seed):
        searcher = TpeSearcher(space, [], seed)
        made_here = []
        for turn in range(25):
            made_here.append(searcher.propose())
            searcher.tell(made_here[-1], measured(1.0 + turn % 7))
        return made_here

    assert proposals(5) == proposals(5)
    assert proposals(5) != proposals(6)


def test_prior_trials_teach_and_are_not_repeated():
    space = space_of([[10, 10]])
    prior = [(c, measured(1.0 + abs(c.values["P0"] - 7) + abs(c.values["P1"] - 7))) for c in space.feasible[::3]]
    searcher = TpeSearcher(space, [], seed=0, prior=prior)
    proposals = []
    for _ in range(10):
        proposals.append(searcher.propose())
        searcher.tell(proposals[-1], measured(3.0))
    assert not set(proposals) & {c for c, _ in prior}
    assert np.mean([abs(c.values["P0"] - 7) + abs(c.values["P1"] - 7) for c in proposals]) < 4  # 5.2 by chance


def test_a_prior_trial_of_another_space_is_passed_over():
    space = space_of([[3]])
    searcher = TpeSearcher(space, [], seed=0, prior=[(Configuration.of("gone", {"X": 1}), measured(1.0))])
    assert searcher.propose() in space


def test_snapping_stays_fast_in_a_large_space():
    space = space_of([[10, 10, 10, 10, 10]])
    unseen = Unseen(space, np.random.default_rng(0))
    wanted = {f"P{j}": 4 for j in range(5)}
    started = time.process_time()
    for _ in range(20):
        unseen.take(unseen.nearest("v0", wanted))
    # 4 ms each on two cores of an EPYC 9B14; a Python loop over the 100,000 takes 0.4 s
    assert (time.process_time() - started) / 20 < 0.08


def test_optuna_is_silent(capfd):
    searcher = TpeSearcher(space_of([[3, 3]]), [], seed=0)
    for _ in range(9):
        searcher.tell(searcher.propose(), FAILED)
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == optuna.logging.WARNING


def test_an_unknown_sampler_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="tpe, random"):
        make_searcher("annealing", space_of([[2]]), [], seed=0)
