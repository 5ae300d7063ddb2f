import itertools
import math
import time
from dataclasses import replace

import made_recordings as made
import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration, Constraint, SearchSpace, VariantSpace, choice
from tilewright.tuner.outcome import Evaluation, Outcome, Timing
from tilewright.tuner.recorded.replay import replay
from tilewright.tuner.search.feasible import ExhaustedError, Unseen, suggest
from tilewright.tuner.search.samplers import make_sampler, make_searcher
from tilewright.tuner.search.searcher import SAMPLERS, Prior

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
    priors = [Prior("elsewhere", [(c, 1.0 + i) for i, c in enumerate(space.feasible)])] if seed % 2 else []
    searcher = make_searcher(sampler, space, space.defaults(), seed, prior, priors=priors)
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
    for configuration in taken:
        unseen.take(configuration)
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
        steps = space.feasible.distances(as_configuration)
        assert steps[space.positions[near]] == steps[space.positions[expected]]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_starts_come_first_and_in_order(sampler):
    space = space_of([[4, 4], [3]])
    starts = [space.feasible[-1], space.feasible[0], space.feasible[-1]]
    searcher = make_searcher(sampler, space, starts, seed=1)
    assert [searcher.propose(), searcher.propose()] == starts[:2]
    assert searcher.propose() not in starts


def test_the_first_draws_leave_variants_that_are_no_starts():
    spaces = [
        replace(space, starts_search=i > 0) for i, space in enumerate(space_of([[5, 5], [5, 5], [5, 5], [5, 5]]).spaces)
    ]
    space = SearchSpace(tuple(spaces), PROBLEM, LIMITS)
    searcher = make_searcher("gp", space, [space.variant("v1").default()], seed=4)
    assert [searcher.propose().variant for _ in range(3)] == ["v1", "v2", "v3"]


def run_search(searcher, recording, trials):
    best = math.inf
    for _ in range(trials):
        configuration = searcher.propose()
        time_ms = np.median(recording.entries[configuration].samples_ms["warm"])
        searcher.tell(configuration, measured(float(time_ms)))
        best = min(best, time_ms)
    return best


def bowl(p, q, r, best=(11, 3, 6)):
    return 1 + 0.05 * ((p - best[0]) ** 2 + (q - best[1]) ** 2 + (r - best[2]) ** 2)


def bowl_points():
    return itertools.product(range(1, 17), range(1, 11), range(1, 11))


@pytest.fixture(scope="module")
def bowl_recording():
    return made.of(
        {
            Configuration.of("v", {"P": p, "Q": q, "R": r}): made.entry(
                bowl(p, q, r), seed=100 * p + 10 * q + r, count=3
            )
            for p, q, r in bowl_points()
        },
        v=[("P", range(1, 17)), ("Q", range(1, 11)), ("R", range(1, 11))],
    )


@pytest.fixture(scope="module")
def bowl_space(bowl_recording):
    device, kernel, problem = replay(bowl_recording)
    return kernel.space(problem, device.model.limits)


def bowl_prior(similarity=0.8, best=(11, 3, 6)):
    slowdowns = {
        Configuration.of("v", {"P": p, "Q": q, "R": r}): bowl(p, q, r, best) for p, q, r in list(bowl_points())[::13]
    }
    least = min(slowdowns.values())
    return Prior("another device", [(c, slowdown / least) for c, slowdown in slowdowns.items()], similarity)


@pytest.mark.parametrize(("sampler", "within"), [("gp", 1.02), ("tpe", 1.12)])
def test_a_model_finds_more_than_chance_does(sampler, within, bowl_recording, bowl_space):
    found = {
        name: np.mean([run_search(make_searcher(name, bowl_space, [], seed), bowl_recording, 50) for seed in range(4)])
        for name in (sampler, "random")
    }
    assert found[sampler] < within
    assert found[sampler] < found["random"]


def test_a_good_prior_saves_most_of_the_trials(bowl_recording, bowl_space):
    def best_of(trials, priors):
        searches = [make_searcher("gp", bowl_space, [], seed, priors=priors) for seed in range(5)]
        return np.mean([run_search(search, bowl_recording, trials) for search in searches])

    assert best_of(3, [bowl_prior()]) < 1.1
    assert best_of(3, [bowl_prior()]) < best_of(12, [])


def test_a_prior_that_points_to_the_wrong_end_is_overruled(bowl_recording, bowl_space):
    wrong = bowl_prior(similarity=1.0, best=(1, 10, 1))
    searches = [make_searcher("gp", bowl_space, [], seed, priors=[wrong]) for seed in range(5)]
    assert np.mean([run_search(search, bowl_recording, 50) for search in searches]) < 1.15  # 1.2 by chance


def test_a_record_of_a_variant_stands_in_for_its_default():
    space = space_of([[4, 4], [4, 4], [4, 4]])
    starts = space.defaults()
    recorded = [c for c in space.feasible if c.variant in {"v0", "v1"}]
    record = Prior("elsewhere", [(c, 1.0 + i) for i, c in enumerate(recorded)])
    searcher = make_searcher("gp", space, starts, 1, priors=[record])
    assert [searcher.propose(), searcher.propose()] == [starts[0], starts[2]]
    assert searcher.propose() != starts[1]


def test_a_prior_of_other_parameters_changes_nothing(bowl_space):
    strange = Prior("another kernel", [(Configuration.of("v", {"X": x}), float(x)) for x in range(1, 30)])
    few = Prior("hardly begun", [(bowl_space.feasible[0], 1.0)])
    searchers = [make_searcher("gp", bowl_space, [], 3, priors=priors) for priors in ([], [strange, few])]
    for turn in range(12):
        proposals = [searcher.propose() for searcher in searchers]
        assert proposals[0] == proposals[1]
        for searcher in searchers:
            searcher.tell(proposals[0], measured(1.0 + turn % 5))


@pytest.mark.parametrize(("similarity", "slowdown"), [(0.0, 1.0), (1.1, 1.0), (0.5, 0.9), (0.5, math.nan)])
def test_a_prior_that_makes_no_sense_is_refused(similarity, slowdown):
    with pytest.raises(ValueError, match="prior here"):
        Prior("here", [(Configuration.of("v", {}), slowdown)], similarity)


def test_a_prior_of_trials_is_relative_to_their_best():
    trials = [(Configuration.of("v", {"P": p}), measured(2.0 * p)) for p in (3, 1, 2)]
    failed = (Configuration.of("v", {"P": 4}), FAILED)
    assert [slowdown for _, slowdown in Prior.of("here", [*trials, failed]).entries] == [3.0, 1.0, 2.0, math.inf]


def test_what_is_barred_counts_as_failed_in_a_prior_and_not_as_its_best():
    trials = [(Configuration.of("v", {"P": p}), measured(2.0 * p)) for p in (3, 1, 2)]
    prior = Prior.of("here", trials, barred={trials[1][0]})
    assert [slowdown for _, slowdown in prior.entries] == [1.5, math.inf, 1.0]


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_a_corner_that_only_fails_is_left(sampler):
    searcher = make_searcher(sampler, space_of([[20, 20]]), [], seed=3)
    failures = []
    for _ in range(60):
        configuration = searcher.propose()
        fails = configuration.values["P0"] > 10
        failures.append(fails)
        searcher.tell(configuration, FAILED if fails else measured(10.0 + configuration.values["P1"]))
    assert sum(failures[-30:]) < 9  # 15 by chance


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_a_variant_that_is_always_slower_gets_few_trials(sampler):
    space = space_of([[6, 6], [6, 6], [6, 6]])
    searcher = make_searcher(sampler, space, space.defaults(), seed=2)
    tried = []
    for _ in range(40):
        configuration = searcher.propose()
        tried.append(configuration.variant)
        slower = 1 if configuration.variant == "v1" else 8
        searcher.tell(configuration, measured(slower * (1 + 0.1 * sum(configuration.values.values()))))
    assert tried.count("v1") >= 25  # 13 by chance


@pytest.mark.parametrize("ahead", [0, 8])
def test_proposals_made_ahead_of_their_times_cost_little(ahead, bowl_recording, bowl_space):
    found = []
    for seed in range(4):
        searcher = make_searcher("gp", bowl_space, [], seed)
        waiting, best = [searcher.propose() for _ in range(ahead)], math.inf
        for _ in range(50):
            waiting.append(searcher.propose())
            time_ms = float(np.median(bowl_recording.entries[waiting[0]].samples_ms["warm"]))
            searcher.tell(waiting.pop(0), measured(time_ms))
            best = min(best, time_ms)
        found.append(best)
    assert np.mean(found) < 1.13  # 1.2 by chance


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_seed_repeats_the_search(sampler):
    space = space_of([[6, 6], [5]])

    def proposals(seed):
        searcher = make_searcher(sampler, space, [], seed)
        made_here = []
        for turn in range(25):
            made_here.append(searcher.propose())
            searcher.tell(made_here[-1], measured(1.0 + turn % 7))
        return made_here

    assert proposals(5) == proposals(5)
    assert proposals(5) != proposals(6)


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_trials_of_a_resumed_study_teach_and_are_not_repeated(sampler):
    space = space_of([[10, 10]])

    def away(configuration):
        return abs(configuration.values["P0"] - 7) + abs(configuration.values["P1"] - 8)

    told = [(c, measured(1.0 + away(c))) for c in space.feasible[::3]]
    searcher = make_searcher(sampler, space, [], 0, told)
    proposals = []
    for _ in range(10):
        proposals.append(searcher.propose())
        searcher.tell(proposals[-1], measured(1.0 + away(proposals[-1])))
    assert not set(proposals) & {c for c, _ in told}
    assert min(away(c) for c in proposals) <= 1  # five configurations of a hundred


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_trial_of_another_space_is_passed_over(sampler):
    space = space_of([[3]])
    searcher = make_searcher(sampler, space, [], 0, [(Configuration.of("gone", {"X": 1}), measured(1.0))])
    assert searcher.propose() in space


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_search_is_a_sampler_that_optuna_can_use(sampler):
    space = space_of([[4, 3], [2]], modulus=2)
    tried = []

    def objective(trial):
        tried.append(suggest(trial, space))
        if len(tried) == 3:
            raise optuna.TrialPruned
        return float(1 + sum(tried[-1].values.values()))

    study = optuna.create_study(sampler=make_sampler(sampler, space, space.defaults(), 1))
    study.optimize(objective, n_trials=len(space))
    assert sorted(tried) == sorted(space.feasible)
    assert study.best_value == 3.0
    with pytest.raises(ExhaustedError, match="7 configurations"):
        study.optimize(objective, n_trials=1)
    trial = study.ask()
    with pytest.raises((ExhaustedError, ValueError)):
        trial.suggest_float("other", 0.0, 1.0)


def test_a_space_too_large_to_predict_whole_is_searched_too(monkeypatch):
    monkeypatch.setattr("tilewright.tuner.search.modelled.CANDIDATES", 200)
    space = space_of([[12, 12, 12]])
    searcher = make_searcher("gp", space, [], seed=4)
    best = math.inf
    for _ in range(60):
        configuration = searcher.propose()
        time_ms = 1.0 + 0.1 * sum(abs(value - 4) for value in configuration.values.values())
        searcher.tell(configuration, measured(time_ms))
        best = min(best, time_ms)
    assert best < 1.25  # of 60 draws from the 1,728 the best is at 1.35 on average


def test_a_long_study_keeps_a_part_of_its_trials(monkeypatch):
    monkeypatch.setattr("tilewright.tuner.search.gaussian.TRIALS", 20)
    monkeypatch.setattr("tilewright.tuner.search.gaussian.CAPACITY", 30)
    space = space_of([[10, 10]])
    searcher = make_searcher("gp", space, [], seed=0)
    for turn in range(len(space)):
        searcher.tell(searcher.propose(), measured(1.0 + turn % 9))
    assert searcher.propose() is None


def test_proposing_stays_fast_in_a_large_space():
    space = space_of([[11, 11, 11, 11]])
    searcher = make_searcher("gp", space, [], seed=0)
    began = time.process_time()
    for turn in range(60):
        searcher.tell(searcher.propose(), measured(1.0 + turn % 13))
    # 2 ms each on one core of an AMD EPYC; BLAS threads count too where there are many
    assert (time.process_time() - began) / 60 < 0.1


def test_snapping_stays_fast_in_a_large_space():
    space = space_of([[10, 10, 10, 10, 10]])
    unseen = Unseen(space, np.random.default_rng(0))
    wanted = {f"P{j}": 4 for j in range(5)}
    started = time.process_time()
    for _ in range(20):
        unseen.take(unseen.nearest("v0", wanted))
    # 4 ms each on two cores of an EPYC 9B14; a Python loop over the 100,000 takes 0.4 s
    assert (time.process_time() - started) / 20 < 0.08


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_optuna_is_silent(sampler, capfd):
    searcher = make_searcher(sampler, space_of([[3, 3]]), [], seed=0)
    for _ in range(9):
        searcher.tell(searcher.propose(), FAILED)
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == optuna.logging.WARNING


def test_an_unknown_sampler_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="gp, tpe, random"):
        make_searcher("annealing", space_of([[2]]), [], seed=0)
