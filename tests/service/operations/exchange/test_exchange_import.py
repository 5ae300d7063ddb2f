"""What was measured elsewhere is served here with its origin; what was measured here goes before it."""

from __future__ import annotations

import copy

import pytest
from sqlalchemy import func, select, update
from tuned_results import ENVIRONMENT, MODEL, SHAPE, Results, best, pointers, take

from tilewright.kernels.sources.identity import text_hash
from tilewright.service.errors import ConflictError, InvalidRequestError
from tilewright.service.operations.answers import Match
from tilewright.service.operations.best.results import results
from tilewright.service.operations.best.retractions import retract
from tilewright.service.operations.exchange import (
    import_document as exchange_import,
)
from tilewright.service.operations.exchange import (
    rows as exchange_rows,
)
from tilewright.service.operations.exchange import (
    write as exchange_write,
)
from tilewright.service.operations.exchange.report import Reason
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.service.store.models import Base


def rows() -> dict[str, int]:
    """How many rows each table has."""
    with transaction() as session:
        counts = {t.name: session.scalar(select(func.count()).select_from(t)) for t in Base.metadata.sorted_tables}
    return {name: count for name, count in counts.items() if count}


def test_an_import_serves_what_was_exported_with_its_figures_and_its_origin(document, device):
    answer = take(document)
    assert (answer.format, answer.studies, answer.trials, answer.best) == ("tilewright/1", 2, 10, 2)
    assert (answer.skipped, answer.rows) == (0, [])
    found = best()
    assert (found.match, found.time_ms, found.pack_ms, found.bound_ratio) == (Match.EXACT, 0.5, 0.012, 0.25)
    assert found.environment.origin == "lab-7"
    assert found.environment.driver == ENVIRONMENT.driver
    assert (found.library.time_ms, found.library.faster) == (pytest.approx(0.55), False)
    assert found.gflops == pytest.approx(2 * 64 * 48 * 80 / 0.5e-3 / 1e9, rel=0.05)
    assert found.stale is False


def test_an_installation_without_the_device_takes_its_model_from_the_document(document):
    assert take(document).best == 2
    assert best().match is Match.EXACT
    with transaction() as session:
        stored = session.scalars(select(models.DeviceModel)).one()
    assert stored.details["limits"]["multiprocessors"] == 132


def test_a_known_device_model_stays_as_it_is(document, device):
    document["device_models"][0]["limits"]["multiprocessors"] = 1
    take(document)
    with transaction() as session:
        assert session.scalars(select(models.DeviceModel)).one().multiprocessors == 132


def test_importing_twice_changes_nothing(document, device):
    take(document)
    before = rows()
    again = take(document)
    assert (again.studies, again.trials, again.best) == (0, 0, 0)
    assert again.reasons == {Reason.ALREADY_HERE: 12}
    assert rows() == before


def test_a_dry_run_reports_the_same_and_stores_nothing(document, device):
    before = rows()
    tried = take(document, dry_run=True)
    assert rows() == before
    assert tried.model_copy(update={"dry_run": False}) == take(document)


def test_what_was_measured_here_goes_before_what_was_imported_however_fast(document, device):
    with transaction() as session:
        Results(session).tune(SHAPE, best_ms=5.0)
    take(document)
    found = best()
    assert (found.time_ms, found.environment.origin) == (5.0, None)
    assert best({"m": 128, "n": 48, "k": 80}).environment.origin == "lab-7"


def test_an_import_touches_no_study_that_is_measured_here(document, device):
    with transaction() as session:
        Results(session).tune(SHAPE, best_ms=5.0)
        study = session.scalars(select(models.Study)).one()
    take(document)
    with transaction() as session:
        found = session.scalar(select(func.count()).where(models.Trial.study_id == study.id))
        bests = session.scalars(select(models.BestConfiguration).where(models.BestConfiguration.time_ms == 5.0)).one()
    assert (found, bests.superseded_by_id) == (5, None)


def test_imported_results_are_stale_where_the_devices_here_have_moved_on(document, device):
    take(document)
    with transaction() as session:
        session.execute(update(models.Environment).where(models.Environment.origin.is_(None)).values(driver="590.1"))
    assert best().stale


def test_imported_results_are_not_exported_again(document, device, export):
    take(document)
    assert export()["studies"] == []


def test_a_faster_best_of_the_same_origin_takes_the_place_and_a_slower_one_does_not(document, device):
    take(document)
    newer = copy.deepcopy(document)
    for study, factor in zip(newer["studies"], (0.5, 2.0), strict=True):
        figures = study["best"]
        figures["time_ms"] *= factor
        figures["ci_ms"] = [limit * factor for limit in figures["ci_ms"]]
    answer = take(newer)
    assert answer.best == 1
    assert pointers(answer, Reason.NO_BETTER) == ["/studies/1/best"]
    assert best().time_ms == 0.25
    with transaction() as session:
        assert len(Results(session).current()) == 2


def test_a_best_that_was_retracted_here_does_not_come_back(document, device):
    take(document)
    with transaction() as session:
        session.execute(
            update(models.BestConfiguration).values(retracted_at=func.now(), retracted_reason="seen wrong here")
        )
    answer = take(document)
    assert answer.best == 0
    assert len(pointers(answer, Reason.NO_BETTER)) == 2
    assert best().match is not Match.EXACT


def only_study(document, **best):
    """The document's first study alone, its best changed."""
    document = copy.deepcopy(document)
    document["studies"] = document["studies"][:1]
    document["studies"][0]["best"] |= best
    return document


def retract_best(result_id):
    with transaction() as session:
        retract(session, result_id, "seen wrong here")


def current():
    with transaction() as session:
        return Results(session).current()


def test_an_imported_best_that_was_timed_beside_a_library_may_be_retracted(document, device):
    take(document)
    assert document["studies"][0]["best"]["library"]["time_ms"] == pytest.approx(0.55)
    retract_best(current()[0].id)
    stand_in = current()[-1]
    assert (stand_in.time_ms, stand_in.library_ms) == (1.0, pytest.approx(0.55))
    assert stand_in.library_faster


def test_what_was_superseded_before_it_was_retracted_does_not_come_back_either(document, device):
    slow = only_study(document, trial=1, time_ms=1.0, ci_ms=[0.99, 1.01])
    take(slow)
    superseded = current()[0].id
    take(only_study(document))
    retract_best(superseded)
    while current():
        retract_best(current()[0].id)
    again = take(slow)
    assert (again.best, pointers(again, Reason.NO_BETTER)) == (0, ["/studies/0/best"])
    assert current() == []


def test_an_import_that_takes_nothing_over_leaves_nothing(document):
    before = rows()
    for study in document["studies"]:
        for trial in study["trials"]:
            trial["source_hash"] = "0" * 64
    answer = take(document)
    assert (answer.studies, answer.reasons) == (0, {Reason.UNKNOWN_SOURCE: 10})
    assert rows() == before


def change(document, place, **of):
    document["studies"][0]["trials"][place] |= of


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("spoil", "reason", "pointer"),
    [
        (lambda d: d["studies"][0]["problem"].update(kernel="nosuch"), Reason.UNKNOWN_KERNEL, "/studies/0"),
        (lambda d: d["studies"][0]["problem"].update(dtype="int8"), Reason.INVALID_PROBLEM, "/studies/0"),
        (lambda d: d["studies"][0]["problem"]["shape"].update(m=0), Reason.INVALID_PROBLEM, "/studies/0"),
        (lambda d: d["studies"][0].update(device_model="nosuch"), Reason.UNKNOWN_DEVICE_MODEL, "/studies/0"),
        (lambda d: change(d, 0, variant="nosuch"), Reason.UNKNOWN_VARIANT, "/studies/0/trials/0"),
        (lambda d: change(d, 0, source_hash="0" * 64), Reason.UNKNOWN_SOURCE, "/studies/0/trials/0"),
        (lambda d: change(d, 0, configuration={"TILE_WIDTH": 17}), Reason.OUTSIDE_THE_SPACE, "/studies/0/trials/0"),
        (lambda d: change(d, 0, configuration={}), Reason.OUTSIDE_THE_SPACE, "/studies/0/trials/0"),
        (lambda d: change(d, 0, bound_ratio=2.5), Reason.NOT_VERIFIED, "/studies/0/trials/0"),
        (lambda d: d["studies"][0]["trials"][0].pop("bound_ratio"), Reason.NOT_VERIFIED, "/studies/0/trials/0"),
        (lambda d: d["studies"][0]["best"].update(bound_ratio=None), Reason.NOT_VERIFIED, "/studies/0/best"),
        (lambda d: change(d, 0, warm_ms=1e-9), Reason.IMPOSSIBLE_TIME, "/studies/0/trials/0"),
        (
            lambda d: change(d, 1, configuration=d["studies"][0]["trials"][0]["configuration"]),
            Reason.TWICE,
            "/studies/0/trials/1",
        ),
    ],
)
def test_a_row_that_cannot_be_believed_is_left_out_and_the_others_are_taken(document, device, spoil, reason, pointer):
    spoil(document)
    answer = take(document)
    assert pointers(answer, reason) == [pointer]
    assert answer.reasons == {reason: 1}
    assert best({"m": 128, "n": 48, "k": 80}).match is Match.EXACT
    if reason is not Reason.TWICE:
        assert best().match is not Match.EXACT


def test_a_constraint_rules_a_configuration_out_as_the_enumerated_space_does(document, device):
    """Every combination of a variant's values: admitted are exactly those that the space enumerates."""
    kernel = catalogue().get("gemm")
    problem = kernel.problem(SHAPE)
    variant = kernel.variant("naive")
    space = kernel.space(problem, MODEL.limits, ["naive"])
    source = kernel.source_hash("naive")
    values = [{"BLOCK_X": x, "BLOCK_Y": y} for x in variant.parameters[0].values for y in variant.parameters[1].values]
    trial = {"variant": "naive", "source_hash": source, "outcome": "measured", "l2": "warm", "bound_ratio": 0.5}
    study = document["studies"][0] | {"best": None}
    study["trials"] = [trial | {"configuration": one, "warm_ms": 1.0} for one in values]
    answer = take(document | {"studies": [study]})
    assert answer.trials == len(space)
    assert answer.reasons.get(Reason.OUTSIDE_THE_SPACE, 0) == len(values) - len(space)
    assert 0 < len(space) < len(values)


def test_a_result_of_an_older_source_that_was_registered_here_is_taken_and_stale(document, device):
    with transaction() as session:
        kernel_id = session.scalar(select(models.Kernel.id).where(models.Kernel.name == "gemm"))
        session.add(models.KernelVariant(kernel_id=kernel_id, name="tiled", source_hash="a" * 64, source="older"))
    change(document, 0, source_hash="a" * 64)
    assert take(document).skipped == 0
    assert best().stale


def test_a_document_of_the_version_before_states_the_text_of_todays_source(document, device):
    change(document, 0, source_hash=text_hash(catalogue().get("gemm").source("tiled")))
    assert take(document).skipped == 0
    assert not best().stale


def test_while_an_import_goes_on_another_is_refused(document, device):
    with transaction() as session:
        assert exchange_rows.lock_imports(session)
        with pytest.raises(ConflictError, match="Another import"):
            take(document)
    assert take(document).best == 2


def test_the_job_of_an_import_says_so_and_no_worker_takes_it(document, device):
    take(document)
    with transaction() as session:
        jobs = session.scalars(select(models.TuningJob)).all()
        listed = results(session).items
    assert {job.queue for job in jobs} == {"import"}
    assert {job.state for job in jobs} == {"done"}
    assert jobs[0].result["imported"] == {"origin": "lab-7", "format": "tilewright/1"}
    assert {one.environment.origin for one in listed} == {"lab-7"}


def test_a_failure_halfway_leaves_nothing(document, device, monkeypatch):
    before = rows()
    monkeypatch.setattr(exchange_import, "PIECE", 1)
    write, calls = exchange_write.write, []

    def fail_after_the_second(*arguments):
        write(*arguments)
        calls.append(1)
        if len(calls) > 1:
            raise InvalidRequestError("here", "stop")

    monkeypatch.setattr(exchange_write, "write", fail_after_the_second)
    with pytest.raises(InvalidRequestError):
        take(document)
    assert rows() == before


def test_a_study_that_the_document_names_twice_is_taken_once(document, device):
    document["studies"].append(document["studies"][0])
    answer = take(document)
    assert (answer.studies, answer.best) == (2, 2)
    assert pointers(answer, Reason.TWICE) == ["/studies/2"]


@pytest.mark.parametrize("piece", [1, 2, 3])
def test_the_size_of_pieces_changes_nothing(document, device, monkeypatch, piece):
    monkeypatch.setattr(exchange_import, "PIECE", piece)
    assert take(document).best == 2
    assert take(document).reasons == {Reason.ALREADY_HERE: 12}


def test_imported_trials_have_rates_by_their_times(document, device):
    take(document)
    with transaction() as session:
        trial = session.scalars(select(models.Trial).where(models.Trial.time_ms == 0.5)).first()
    m, n, k = 64, 48, 80
    assert trial.gflops == pytest.approx(2 * m * n * k / 0.5e-3 / 1e9)
    assert trial.gb_per_s == pytest.approx(4 * (m * k + k * n + m * n) / 0.5e-3 / 1e9)
