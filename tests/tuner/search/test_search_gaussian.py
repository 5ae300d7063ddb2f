import random

from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import SearchSpace, VariantSpace, choice
from tilewright.tuner.outcome import Evaluation, Outcome, Timing
from tilewright.tuner.search import Prior, make_searcher
from tilewright.tuner.search.features import Features
from tilewright.tuner.search.gaussian import FEWEST, NEAR_EVERY, NEAR_FROM, NEAR_FROM_WITH_PRIORS, PriorTrend

LIMITS = Limits(compute_capability=(9, 0), multiprocessors=1, memory_bytes=1 << 30)


def space_of(*sizes):
    parameters = tuple(choice(f"P{place}", *range(1, size + 1)) for place, size in enumerate(sizes))
    return SearchSpace((VariantSpace("only", parameters),), Problem("made", (("n", 64),), "float32", ()), LIMITS)


def proposals(space, trials, seed, priors=()):
    """Each proposal of a search over times without any order, with the best configuration known when it was made."""
    generator, searcher = random.Random(seed), make_searcher("gp", space, [], seed, priors=priors)
    times_ms = {}
    for _ in range(trials):
        proposal = searcher.propose()
        yield proposal, min(times_ms, key=times_ms.get, default=None)
        times_ms[proposal] = 1 + generator.random()
        timing = Timing(times_ms[proposal], 0.0, (times_ms[proposal],), "warm")
        searcher.tell(proposal, Evaluation(Outcome.MEASURED, warm=timing))


def changed(one, other):
    return sum(a != b for a, b in zip(one.items, other.items, strict=True))


def test_every_fourth_proposal_changes_one_parameter_of_the_best_so_far():
    apart = [changed(p, best) if best else None for p, best in proposals(space_of(9, 9, 9), 64, seed=3)]
    assert set(apart[NEAR_FROM + NEAR_EVERY - 1 :: NEAR_EVERY]) == {1}
    assert set(apart[NEAR_FROM::NEAR_EVERY]) - {1}  # others go where they like


def test_with_a_prior_that_begins_later():
    space = space_of(9, 9, 9)
    search = proposals(space, NEAR_FROM_WITH_PRIORS + 24, seed=3, priors=[prior_of(space.feasible[::3])])
    apart = [changed(p, best) if best else None for p, best in search]
    assert set(apart[NEAR_FROM + NEAR_EVERY - 1 : NEAR_FROM_WITH_PRIORS : NEAR_EVERY]) - {1}
    assert set(apart[NEAR_FROM_WITH_PRIORS + NEAR_EVERY - 1 :: NEAR_EVERY]) == {1}


def test_a_best_whose_neighbours_were_all_tried_holds_nobody_up():
    found = [proposal for proposal, _ in proposals(space_of(4, 4, 3), 48, seed=5)]
    assert len(set(found)) == 48


def prior_of(configurations):
    return Prior("elsewhere", [(c, 1.0 + 0.1 * sum(c.values.values())) for c in configurations])


def test_a_record_that_left_a_parameter_as_it_was_is_narrow():
    space = space_of(6, 6, 6)
    features = Features(space)
    whole = random.Random(2).sample(list(space.feasible), 60)
    assert not PriorTrend(prior_of(whole), features).is_narrow
    assert PriorTrend(prior_of([c for c in whole if c.values["P1"] == 4]), features).is_narrow
    # What has one value here, or is another variant's, could not vary.
    assert not PriorTrend(prior_of(whole), Features(space_of(6, 1, 6))).is_narrow


def test_a_narrow_record_is_heard_less():
    space = space_of(9, 9, 9)
    corner = [c for c in space.feasible if c.values["P1"] == 1]

    def tried_near_the_best_of(entries):
        found = [p for seed in range(8) for p, _ in proposals(space, 24, seed, [prior_of(entries)])]
        return sum(sum(p.values.values()) <= 9 for p in found)

    assert 1.8 * tried_near_the_best_of(corner) < tried_near_the_best_of(space.feasible[::3])


def test_as_many_entries_as_are_asked_for_predict_and_one_fewer_do_not():
    space = space_of(6, 6, 6)
    known = list(space.feasible[: FEWEST + 1])
    assert PriorTrend(prior_of(known[:FEWEST]), Features(space)).usable
    assert not PriorTrend(prior_of(known[: FEWEST - 1]), Features(space)).usable
