from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from desk import measured, request
from sqlalchemy import select

from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.publish import job_result, publish_best
from tilewright.service.operations.jobs import progress as job_progress
from tilewright.service.operations.jobs.record_trial import MAX_LOG
from tilewright.service.operations.studies.rows import barred
from tilewright.service.store import models
from tilewright.service.store.models import JobState
from tilewright.tuner.loop.finals import DroppedFinalist, Finalist, LibraryTime
from tilewright.tuner.loop.rounds import Steadiness
from tilewright.tuner.loop.tune import TuneResult
from tilewright.tuner.outcome import Evaluation, Outcome


def finalist(configuration: Configuration, time_ms: float, *, ties: bool = False) -> Finalist:
    return Finalist(configuration, time_ms, (0.99 * time_ms, 1.01 * time_ms), (time_ms,), ties)


def result(*finalists: Finalist, **more) -> TuneResult:
    known = {"library": None, "default_ms": 2.0, "slowest_ms": 8.0, "stopped_by": "trials"} | more
    return TuneResult(best=finalists[0] if finalists else None, finalists=finalists, **known)


@pytest.fixture
def desk(take):
    desk = take()
    for place, time_ms in enumerate((1.0, 2.0, 4.0)):
        desk.record(place, measured(time_ms, bound_ratio=0.25))
    return desk


def publish(session, desk, settled: TuneResult) -> models.BestConfiguration | None:
    return publish_best(session, desk.row, desk.study, settled)


def current(session) -> models.BestConfiguration | None:
    table = models.BestConfiguration
    return session.scalars(
        select(table).where(table.superseded_by_id.is_(None), table.retracted_at.is_(None))
    ).one_or_none()


def test_a_kernel_that_does_not_count_its_operations_has_a_time_and_no_share_of_the_roof(session, take):
    desk = take()
    desk.context = replace(desk.context, kernel=replace(desk.context.kernel, flops=lambda _problem: None))
    desk.record(0, measured(1.0, bound_ratio=0.25))
    best = publish(session, desk, result(finalist(desk.configurations[0], 0.5)))
    assert (best.time_ms, best.gflops, best.roof_ratio) == (0.5, None, None)
    assert best.gb_per_s == pytest.approx(4 * (64 * 80 + 80 * 48 + 64 * 48) / 0.5e6, rel=0.5)


def test_the_settled_winner_is_published_with_the_times_of_the_finals(session, desk):
    library = LibraryTime("cuBLAS", 0.6, (0.59, 0.61), faster=True)
    winner, second = finalist(desk.configurations[0], 0.9), finalist(desk.configurations[1], 0.91, ties=True)
    best = publish(session, desk, result(winner, second, library=library))
    assert best is current(session)
    assert (best.time_ms, best.ties, best.default_ms, best.slowest_ms, best.bound_ratio) == (0.9, 1, 2.0, 8.0, 0.25)
    assert (best.library_name, best.library_ms, best.library_faster) == ("cuBLAS", 0.6, True)
    work = 2 * 64 * 48 * 80
    assert best.gflops == pytest.approx(work / 0.9e-3 / 1e9, rel=0.05)
    traffic = best.gb_per_s / 4000.0
    assert best.roof_ratio == pytest.approx(max(traffic, best.gflops / 60_000.0), rel=1e-6)


def test_the_errors_of_the_finals_are_kept_the_winners_and_the_librarys(session, desk):
    winner = replace(finalist(desk.configurations[0], 0.9), bound_ratio=1.25)
    library = LibraryTime("cuBLAS", 0.6, (0.59, 0.61), faster=True, bound_ratio=1.5)
    best = publish(session, desk, result(winner, library=library))
    assert (best.bound_ratio, best.library_bound_ratio) == (1.25, 1.5)
    told = job_result(result(winner, library=library))
    assert (told["best"]["bound_ratio"], told["library"]["bound_ratio"]) == (1.25, 1.5)


def test_a_library_that_is_no_number_somewhere_has_no_ratio_that_json_could_say(session, desk):
    library = LibraryTime("cuBLAS", 0.6, (0.59, 0.61), faster=True, bound_ratio=math.inf)
    settled = result(finalist(desk.configurations[0], 0.9), library=library)
    assert publish(session, desk, settled).library_bound_ratio is None
    assert json.loads(json.dumps(job_result(settled), allow_nan=False))["library"]["bound_ratio"] is None


def test_a_new_winner_supersedes_the_old_one_which_stays_on_record(session, desk):
    old = publish(session, desk, result(finalist(desk.configurations[0], 0.9)))
    new = publish(session, desk, result(finalist(desk.configurations[1], 0.8), finalist(desk.configurations[0], 0.85)))
    assert current(session) is new
    assert (old.superseded_by_id, old.time_ms) == (new.id, 0.9)


def rounds(configuration: Configuration, *samples_ms: float) -> Finalist:
    """A finalist with these rounds; the interval is their range."""
    middle = sorted(samples_ms)[len(samples_ms) // 2]
    return Finalist(configuration, middle, (min(samples_ms), max(samples_ms)), samples_ms, ties=False)


@pytest.mark.parametrize(("again_ms", "replaces"), [(0.95, False), (0.89, False), (0.8, True)])
def test_the_same_winner_timed_again_replaces_only_a_slower_time(session, desk, again_ms, replaces):
    old = publish(session, desk, result(finalist(desk.configurations[0], 0.9)))
    new = publish(session, desk, result(finalist(desk.configurations[0], again_ms)))
    assert (new is not None) is replaces
    assert current(session) is (new if replaces else old)


NAMED = "cuBLASLt 13.1.2 (algorithm 66, tile 20, BF16)"


@pytest.mark.parametrize(
    ("name", "library_ms", "faster", "replaces"),
    [
        (NAMED, 0.6, True, False),
        (NAMED.replace("tile 20", "tile 21"), 0.6, True, False),
        (NAMED.replace("tile 20", "tile 21"), 0.5, True, True),
        (NAMED.replace("13.1.2", "13.2.0"), 0.6, True, True),
        (NAMED.replace("13.1.2", "13.2.0"), 0.89, False, False),
        ("cuBLAS 13.1.2 (cublasGemmEx, BF16)", 0.6, True, False),
        ("cuBLAS 13.1.2 (cublasGemmEx, BF16)", 0.5, True, True),
        ("cuBLAS 13.2.0 (cublasGemmEx, BF16)", 0.6, True, True),
        ("cuBLAS 13.2.0 (cublasGemmEx, BF16) + bias and activation kernel", 0.5, True, False),
    ],
)
def test_the_same_winner_gives_way_to_itself_beside_a_better_call_of_the_library(
    session, desk, name, library_ms, faster, replaces
):
    def settled(name, library_ms, *, faster):
        library = LibraryTime(name, library_ms, (library_ms - 0.01, library_ms + 0.01), faster=faster)
        return result(finalist(desk.configurations[0], 0.9), library=library)

    first = publish(session, desk, settled("cuBLASLt 13.1.2 (heuristic 3 of 8, BF16)", 0.6, faster=True))
    old = publish(session, desk, settled(NAMED, 0.6, faster=True))
    assert first.superseded_by_id == old.id
    new = publish(session, desk, settled(name, library_ms, faster=faster))
    assert (new is not None) is replaces
    assert current(session).library_name == (name if replaces else NAMED)


def test_a_winner_within_the_noise_of_the_standing_best_beside_it_displaces_nothing(session, desk):
    first, second = desk.configurations[:2]
    old = publish(session, desk, result(finalist(first, 0.9)))
    noisy = rounds(second, *[0.80, 0.92] * 5, 0.80), rounds(first, *[0.92, 0.81] * 5, 0.92)
    assert publish(session, desk, result(*noisy)) is None
    assert current(session) is old


def test_a_winner_faster_round_by_round_displaces_the_best_even_on_a_slower_day(session, desk):
    first, second = desk.configurations[:2]
    publish(session, desk, result(finalist(first, 0.9)))
    drifting = [1.0 + 0.01 * number for number in range(11)]
    new = publish(session, desk, result(rounds(second, *drifting), rounds(first, *[1.05 * ms for ms in drifting])))
    assert current(session) is new


def test_a_winner_of_other_finals_must_leave_both_intervals_behind(session, desk):
    old = publish(session, desk, result(finalist(desk.configurations[0], 0.9)))
    assert publish(session, desk, result(finalist(desk.configurations[1], 0.89))) is None
    assert current(session) is old
    assert publish(session, desk, result(finalist(desk.configurations[1], 0.8))) is current(session)


def test_a_slower_winner_of_a_part_of_the_space_displaces_nothing(session, desk):
    old = publish(session, desk, result(finalist(desk.configurations[0], 0.9)))
    assert publish(session, desk, result(finalist(desk.configurations[1], 1.9))) is None
    assert current(session) is old


def test_a_winner_whose_source_has_changed_is_displaced_even_by_a_slower_one(session, desk):
    publish(session, desk, result(finalist(desk.configurations[0], 0.9)))
    kernel_id = session.scalar(select(models.Kernel.id).where(models.Kernel.name == "gemm"))
    variant = desk.configurations[0].variant
    session.add(models.KernelVariant(kernel_id=kernel_id, name=variant, source_hash="new", source="…"))
    assert publish(session, desk, result(finalist(desk.configurations[1], 1.9))) is current(session)


def test_a_winner_ranked_in_another_state_of_the_cache_displaces_even_a_faster_one(session, desk):
    old = publish(session, desk, result(finalist(desk.configurations[0], 0.9)))
    old.l2 = "cold"
    assert publish(session, desk, result(finalist(desk.configurations[1], 1.9))) is current(session)


def test_what_was_never_measured_is_never_best(session, desk):
    desk.record(3, Evaluation(Outcome.WRONG_RESULT, log="wrong"))
    assert publish(session, desk, result(finalist(desk.configurations[3], 0.1))) is None
    assert publish(session, desk, result(finalist(desk.configurations[4], 0.1))) is None
    assert publish(session, desk, result()) is None
    assert current(session) is None


def test_a_best_that_fails_in_later_finals_is_retracted(session, desk):
    old = publish(session, desk, result(finalist(desk.configurations[0], 0.9)))
    dropped = (DroppedFinalist(desk.configurations[0], "7 components are out of bounds"),)
    new = publish(session, desk, result(finalist(desk.configurations[1], 1.9), dropped=dropped))
    session.refresh(old)
    assert old.retracted_reason == "7 components are out of bounds"
    assert (old.superseded_by_id, current(session)) == (None, new)


def test_a_job_says_in_json_what_it_gained(session, desk):
    library = LibraryTime("cuBLAS", 1.8, (1.7, 1.9), faster=False)
    unsteady = Steadiness(0.05, None, is_steady=False, attempts=2)
    settled = result(finalist(desk.configurations[0], 0.5), library=library, steadiness=unsteady)
    said = json.loads(json.dumps(job_result(settled)))
    assert said["steadiness"] == {"time_drift": 0.05, "clock_drift": None, "is_steady": False, "attempts": 2}
    assert (said["gain_over_default"], said["gain_over_slowest"]) == (4.0, 16.0)
    assert said["library"]["speedup"] == pytest.approx(3.6)
    assert Configuration.from_json(said["best"]["configuration"]) == desk.configurations[0]
    nothing = job_result(result(default_ms=None, slowest_ms=None))
    assert (nothing["best"], nothing["gain_over_default"]) == (None, None)


def test_what_failed_in_the_finals_is_stored_whatever_was_said(session, desk):
    dropped = (DroppedFinalist(desk.configurations[0], "wrong\0" + "x" * 2 * MAX_LOG),)
    settled = result(finalist(desk.configurations[1], 1.0), dropped=dropped, library_failure="timed_out: no\0 answer")
    job_progress.end_job(session, desk.job_id, desk.epoch, JobState.DONE, result=job_result(settled))
    session.expire_all()
    said = session.get_one(models.TuningJob, desk.job_id).result
    assert said["dropped"][0]["reason"].startswith("wrong\N{REPLACEMENT CHARACTER}xx")
    assert len(said["dropped"][0]["reason"]) == MAX_LOG
    assert said["library_failure"] == "timed_out: no\N{REPLACEMENT CHARACTER} answer"


def test_a_configuration_dropped_once_is_barred_from_later_finals(session, desk, take):
    dropped = (DroppedFinalist(desk.configurations[0], "wrong"),)
    said = job_result(result(finalist(desk.configurations[1], 1.0), dropped=dropped))
    job_progress.end_job(session, desk.job_id, desk.epoch, JobState.DONE, result=said)
    assert barred(session, desk.study.id) == frozenset([desk.configurations[0]])
    assert take(wanted=request(seed=5)).study.id == desk.study.id
