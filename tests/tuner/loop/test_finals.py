import made_recordings as made
import pytest

from tilewright.kernels.space import Configuration
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop.finals import finals
from tilewright.tuner.loop.measure import ContextLostError, MeasurementPlan
from tilewright.tuner.loop.rounds import Steadiness
from tilewright.tuner.outcome import DeviceState, Outcome, Verification

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


class LosingBench(made.BenchWithLibrary):
    """Its process is lost so many times in a row when that call is first made."""

    def __init__(self, recording, call, times, outcome=Outcome.DEVICE_LOST, **kwargs):
        super().__init__(recording, **kwargs)
        self.left, self.outcome = times, outcome
        setattr(self, call, lambda *arguments: self.lose_or(getattr(super(LosingBench, self), call), arguments))

    def lose_or(self, call, arguments):
        if self.left:
            self.left -= 1
            raise TrialFailure(self.outcome, "as made")
        return call(*arguments)


def losing(call, times, outcome=Outcome.DEVICE_LOST, **kwargs):
    entries = {A: made.entry(1.0, seed=1), B: made.entry(1.05, seed=2)}
    return LosingBench(made.of(entries, v=TILES), call, times, outcome, **kwargs)


@pytest.mark.parametrize("call", ["compile", "sample", "state", "verify", "library", "library_name"])
def test_a_process_lost_between_launches_costs_nobody_a_place(call):
    standing = finals(losing(call, 1, library_ms=0.9), [A, B], "warm")
    assert standing.dropped == ()
    assert [finalist.configuration for finalist in standing.finalists] == [A, B]
    assert all(len(finalist.samples_ms) == MeasurementPlan().final_rounds for finalist in standing.finalists)
    assert standing.library.name == "madeBLAS 1.0"


@pytest.mark.parametrize("call", ["compile", "sample", "verify"])
def test_who_loses_the_process_twice_running_is_dropped(call):
    standing = finals(losing(call, 2), [A, B], "warm")
    assert len(standing.dropped) == 1
    assert "device_lost" in standing.dropped[0].reason


@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.parametrize("call", ["library", "library_name"])
def test_a_library_that_hangs_leaves_the_finals_and_costs_nobody_a_place(call, times, caplog):
    standing = finals(losing(call, times, Outcome.TIMED_OUT, library_ms=0.9), [A, B], "warm")
    assert [finalist.configuration for finalist in standing.finalists] == [A, B]
    assert standing.library_failure == "timed_out: as made"
    assert (standing.library is None) == (call == "library")
    assert "The library left the finals: timed_out" in caplog.text


def test_a_clock_that_nobody_tells_costs_nobody_a_place():
    standing = finals(losing("state", 100, Outcome.TIMED_OUT, library_ms=0.9), [A, B], "warm")
    assert (standing.dropped, len(standing.finalists), standing.library.name) == ((), 2, "madeBLAS 1.0")
    assert standing.steadiness.clock_drift is None


def test_no_library_is_no_failure_of_one():
    standing = finals(bench_of([1.0, 1.1, 1.2]), [A, B, C], "warm")
    assert (standing.library, standing.library_failure) == (None, None)


def test_a_stop_between_rounds_leaves_no_standing():
    answers = iter([False, False, True])
    assert finals(bench_of([1.0, 1.1, 1.2]), [A, B, C], "warm", should_stop=lambda: next(answers)) is None


def test_nobody_to_settle_is_an_empty_standing():
    standing = finals(bench_of([1.0, 1.1, 1.2], library_ms=1.0), [], "warm")
    assert (standing.finalists, standing.library) == ((), None)


def test_a_default_whose_trial_was_far_behind_competes_and_can_win():
    bench = bench_of([1.0, 1.1, 0.8], drift=0.01)
    standing = finals(bench, [A, B], "warm", default=C)
    assert [f.configuration for f in standing.finalists] == [C, A, B]
    assert standing.default_ms == standing.finalists[0].time_ms
    assert bench.verified == [C]


def test_a_slower_default_is_timed_beside_the_winner():
    standing = finals(bench_of([1.0, 1.1, 2.0], drift=0.01), [A, B], "warm", default=C)
    assert [f.configuration for f in standing.finalists] == [A, B, C]
    assert standing.default_ms / standing.finalists[0].time_ms == pytest.approx(2.0, rel=0.03)


def test_a_default_that_leads_is_a_finalist_like_any_other():
    standing = finals(bench_of([1.0, 1.1, 1.2]), [A, B], "warm", default=B)
    assert standing.default_ms == standing.finalists[1].time_ms
    assert len(standing.finalists) == 2


def test_a_default_that_fails_in_the_finals_leaves_no_time():
    entries = {A: made.entry(1.0), B: made.failed(Outcome.COMPILE_FAILED)}
    standing = finals(made.BenchWithLibrary(made.of(entries, v=TILES)), [A], "warm", default=B)
    assert (standing.default_ms, len(standing.finalists)) == (None, 1)


class MovingBench(made.BenchWithLibrary):
    """Its clock falls after so many samples, and with it every time grows; it may recover when asked again."""

    def __init__(self, recording, *, falls_at, recovers_at=10**9, times_follow=True, **kwargs):
        super().__init__(recording, **kwargs)
        self.falls_at, self.recovers_at, self.times_follow, self.samples = falls_at, recovers_at, times_follow, 0

    @property
    def is_slow(self):
        return self.falls_at <= self.samples < self.recovers_at

    def sample(self, executable, l2, count):
        self.samples += 1
        factor = 1.1 if self.is_slow and self.times_follow else 1.0
        return [factor * sample for sample in super().sample(executable, l2, count)]

    def state(self):
        return DeviceState(clock_mhz=1800 if self.is_slow else 1980)


def moving(**kwargs):
    entries = {A: made.entry(1.0, noise=0.005, seed=1), B: made.entry(1.05, noise=0.005, seed=2)}
    return MovingBench(made.of(entries, v=TILES), library_ms=1.2, **kwargs)


def test_a_steady_device_plays_the_rounds_once():
    bench = moving(falls_at=10**9)
    standing = finals(bench, [A, B], "warm")
    assert standing.steadiness == Steadiness(0.0, 0.0, is_steady=True, attempts=1)
    assert bench.samples == 3 * (1 + MeasurementPlan().final_rounds)


def test_finals_in_which_the_clock_falls_are_played_again():
    bench = moving(falls_at=20)  # of 36 samples
    standing = finals(bench, [A, B], "warm")
    assert (standing.steadiness.is_steady, standing.steadiness.attempts) == (True, 2)
    assert standing.finalists[0].time_ms == pytest.approx(1.1, rel=0.01)  # all of one clock
    assert len(standing.finalists[0].samples_ms) == MeasurementPlan().final_rounds
    assert not standing.finalists[1].ties


def test_a_device_that_does_not_settle_is_named_so_and_the_ranking_still_holds():
    bench = moving(falls_at=10**9, drift=0.002)
    standing = finals(bench, [B, A], "warm")
    assert not standing.steadiness.is_steady
    assert standing.steadiness.attempts == 1 + MeasurementPlan().final_repeats
    assert 0.02 < standing.steadiness.time_drift < 0.1
    assert standing.steadiness.clock_drift == 0.0
    assert [f.configuration for f in standing.finalists] == [A, B]
    assert not standing.finalists[1].ties


def test_a_clock_that_falls_and_rises_with_times_that_hide_it_is_seen():
    bench = moving(falls_at=20, recovers_at=56, times_follow=False)
    standing = finals(bench, [A, B], "warm")
    assert standing.steadiness.attempts == 2
    assert standing.steadiness.time_drift == 0.0
    assert standing.steadiness.clock_drift == pytest.approx(0.1)


class BenchOfSeveralKinds(made.BenchWithLibrary):
    """Finds `wrong` configurations wrong with another kind of inputs than their trials had."""

    def __init__(self, recording, wrong=(), library_ratio=0.5, library_wrong=0, **kwargs):
        super().__init__(recording, **kwargs)
        self.wrong, self.library_ratio, self.library_wrong = wrong, library_ratio, library_wrong

    def verify_each_kind(self, executable, _part):
        if isinstance(executable, made.Exe):
            return None if self.library_ratio is None else (Verification(self.library_ratio, self.library_wrong),)
        is_wrong = self._configuration_of[id(executable)][0] in self.wrong
        scaled = Verification(9.0, 4, (0,), "scaled") if is_wrong else Verification(0.25, 0, None, "scaled")
        return self.verify(executable), scaled


def test_a_winner_that_is_wrong_with_any_kind_of_inputs_is_dropped():
    entries = {A: made.entry(1.0), B: made.entry(1.1)}
    standing = finals(BenchOfSeveralKinds(made.of(entries, v=TILES), wrong={A}), [A, B], "warm")
    assert [finalist.configuration for finalist in standing.finalists] == [B]
    assert "with scaled inputs" in standing.dropped[0].reason


@pytest.mark.parametrize("library_ratio", [0.5, None])
def test_the_winner_and_the_library_have_their_worst_errors_stated(library_ratio):
    recording = made.of({A: made.entry(1.0), B: made.entry(1.05)}, v=TILES)
    standing = finals(BenchOfSeveralKinds(recording, library_ratio=library_ratio, library_ms=1.0), [A, B], "warm")
    assert [finalist.bound_ratio for finalist in standing.finalists] == [0.25, None]
    assert standing.library.bound_ratio == library_ratio


@pytest.mark.parametrize(("wrong", "name"), [(0, "madeBLAS 1.0"), (3, "madeBLAS 1.0, not verified")])
def test_a_library_that_is_wrong_is_named_so_that_nobody_calls_it_instead(wrong, name):
    recording = made.of({A: made.entry(1.0), B: made.entry(1.05)}, v=TILES)
    standing = finals(BenchOfSeveralKinds(recording, library_wrong=wrong, library_ms=0.5), [A, B], "warm")
    assert (standing.library.name, standing.library.faster) == (name, True)


class BreakingLibrary(made.BenchWithLibrary):
    """Its library breaks the context of the device."""

    def sample(self, executable, l2, count):
        if isinstance(executable, made.Exe):
            raise TrialFailure(Outcome.LAUNCH_FAILED, "illegal address", sticky=True)
        return super().sample(executable, l2, count)


def test_a_library_that_breaks_the_context_ends_the_finals():
    bench = BreakingLibrary(made.of({A: made.entry(1.0), B: made.entry(1.1)}, v=TILES), library_ms=0.9)
    with pytest.raises(TrialFailure) as caught:
        finals(bench, [A, B], "warm")
    assert caught.value.sticky
