import made_recordings as made
import pytest

from tilewright.kernels.space import Configuration
from tilewright.tuner.finals import finals
from tilewright.tuner.measure import ContextLostError, MeasurementPlan
from tilewright.tuner.outcome import Outcome

A, B, C = (Configuration.of("v", {"TILE": tile}) for tile in (1, 2, 4))
TILES = [("TILE", (1, 2, 4))]


def bench_of(times, **kwargs):
    entries = {
        c: made.entry(t, noise=0.01, seed=seed) for seed, (c, t) in enumerate(zip((A, B, C), times, strict=True))
    }
    return made.BenchWithLibrary(made.of(entries, v=TILES), **kwargs)


def test_the_fastest_wins_and_what_the_noise_hides_is_a_tie():
    standing = finals(bench_of([1.001, 1.0, 1.2]), [A, B, C], "warm")
    first, second, third = standing.finalists
    assert {first.configuration, second.configuration} == {A, B}
    assert (first.ties, second.ties, third.ties) == (False, True, False)
    assert third.configuration == C
    assert first.ci_ms[0] <= first.time_ms <= first.ci_ms[1]
    assert len(first.samples_ms) == MeasurementPlan().final_rounds


def test_contestants_and_library_take_turns_so_that_drift_is_shared():
    bench = bench_of([1.05, 1.0, 1.2], library_ms=0.95, drift=0.01)
    standing = finals(bench, [A, B, C], "warm")
    assert [f.configuration for f in standing.finalists] == [B, A, C]
    assert not standing.finalists[1].ties
    assert standing.library.faster
    rounds = [bench.order[i : i + 4] for i in range(0, len(bench.order), 4)]
    assert all(set(turn) == {A, B, C, "library"} for turn in rounds)
    assert len({turn[0] for turn in rounds}) == 4


@pytest.mark.parametrize(("library_ms", "faster"), [(0.9, True), (1.0, False), (1.1, False)])
def test_the_library_is_called_faster_only_beyond_the_noise(library_ms, faster):
    standing = finals(bench_of([1.0, 1.1, 1.2], library_ms=library_ms), [A, B, C], "warm")
    assert standing.library.name == "madeBLAS 1.0"
    assert standing.library.faster is faster
    assert standing.library.time_ms == pytest.approx(library_ms, rel=0.01)


def test_a_winner_that_is_wrong_on_a_fresh_look_is_dropped_and_named():
    standing = finals(bench_of([1.0, 1.1, 1.2], wrong_after={A: 0}), [A, B, C], "warm")
    assert standing.finalists[0].configuration == B
    assert [d.configuration for d in standing.dropped] == [A]
    assert "3 components" in standing.dropped[0].reason


def test_when_all_finalists_are_wrong_nobody_wins():
    standing = finals(bench_of([1.0, 1.1, 1.2], wrong_after={A: 0, B: 0, C: 0}, library_ms=2.0), [A, B, C], "warm")
    assert standing.finalists == ()
    assert len(standing.dropped) == 3
    assert standing.library.faster


def test_a_finalist_that_no_longer_compiles_leaves_the_others_in():
    entries = {A: made.failed(Outcome.COMPILE_FAILED), B: made.entry(1.0)}
    standing = finals(made.BenchWithLibrary(made.of(entries, v=TILES)), [A, B], "warm")
    assert [f.configuration for f in standing.finalists] == [B]
    assert "compile_failed" in standing.dropped[0].reason


def test_a_finalist_that_breaks_the_context_is_named():
    with pytest.raises(ContextLostError) as caught:
        finals(bench_of([1.0, 1.1, 1.2], sticky=A), [A, B, C], "warm")
    assert (caught.value.configuration, caught.value.evaluation) == (A, None)


def test_a_stop_between_rounds_leaves_no_standing():
    answers = iter([False, False, True])
    assert finals(bench_of([1.0, 1.1, 1.2]), [A, B, C], "warm", should_stop=lambda: next(answers)) is None


def test_nobody_to_settle_is_an_empty_standing():
    standing = finals(bench_of([1.0, 1.1, 1.2], library_ms=1.0), [], "warm")
    assert (standing.finalists, standing.library) == ((), None)


def test_the_default_is_timed_beside_and_cannot_win():
    bench = bench_of([1.0, 1.1, 0.8], drift=0.01)
    standing = finals(bench, [A, B], "warm", default=C)
    assert [f.configuration for f in standing.finalists] == [A, B]
    assert standing.default_ms / standing.finalists[0].time_ms == pytest.approx(0.8, rel=0.03)
    assert bench.verified == [A]


def test_a_default_that_leads_is_a_finalist_like_any_other():
    standing = finals(bench_of([1.0, 1.1, 1.2]), [A, B], "warm", default=B)
    assert standing.default_ms == standing.finalists[1].time_ms
    assert len(standing.finalists) == 2


def test_a_default_that_fails_in_the_finals_leaves_no_time():
    entries = {A: made.entry(1.0), B: made.failed(Outcome.COMPILE_FAILED)}
    standing = finals(made.BenchWithLibrary(made.of(entries, v=TILES)), [A], "warm", default=B)
    assert (standing.default_ms, len(standing.finalists)) == (None, 1)
