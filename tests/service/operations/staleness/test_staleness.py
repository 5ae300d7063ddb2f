"""Stale, improvable and regressed: what moved on, what was not tried, what is slower than before."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from factories import H100, NEW, OLD, SHAPE, TILED_16, Rows
from found import find_best
from sqlalchemy import func, update

from tilewright.kernels.space import Configuration
from tilewright.service.operations import registry
from tilewright.service.operations.best.results import result, results
from tilewright.service.operations.staleness.regressions import slowdowns
from tilewright.service.operations.staleness.standing import source_keys, standings
from tilewright.service.operations.studies import rows as study_rows
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models

OTHER = SHAPE | {"m": 512}


def ask(rows, shape=SHAPE, model="nvidia-h200", **more):
    return find_best(rows.session, "gemm", model, shape, **more)


def seen_all(rows, best, *, but: str | None = None) -> None:
    """Every variant of the answer has a trial in the study, whatever its values."""
    study, job = (
        rows.session.get_one(models.Study, rows.trial_of(best).study_id),
        rows.session.get_one(models.TuningJob, best.job_id),
    )
    for variant in standings(rows.session, [best.id])[best.id].unseen_variants:
        if variant != but:
            rows.trial(study, job, Configuration.of(variant, {"TILE_M": 64}), 9.0)


@pytest.mark.parametrize(
    ("now", "because"),
    [
        (NEW, []),
        (replace(NEW, clocks="1500 MHz", runtime="PyCUDA 2027"), []),
        (replace(NEW, driver="590.1"), ["driver"]),
        (replace(NEW, toolkit="13.1", compiler_version="13.1"), ["toolkit", "compiler"]),
        (replace(NEW, compiler_version="13.0.1"), ["compiler"]),
        # Both compilers are right: a device whose own is another one makes nothing stale but by its driver.
        (replace(NEW, compiler="pycuda", toolkit="12.4", compiler_version="12.4"), []),
        (replace(NEW, compiler="pycuda", driver="590.1"), ["driver"]),
    ],
)
def test_what_moved_on_is_named(rows, now, because):
    rows.best()
    rows.device(environment=now)
    assert ask(rows).stale_because == because
    assert ask(rows).stale == bool(because)


def test_a_driver_that_went_back_makes_results_of_the_newer_one_stale(rows):
    rows.best(environment=OLD)
    rows.best(OTHER, environment=NEW)
    rows.device(environment=OLD)
    assert not ask(rows).stale
    assert ask(rows, OTHER).stale_because == ["driver", "toolkit", "compiler"]


def test_of_several_devices_the_newest_environment_counts(rows):
    rows.best(environment=OLD)
    rows.device(environment=NEW, uuid="GPU-second")
    rows.device(environment=OLD)
    assert ask(rows).stale


def test_devices_of_another_model_do_not_count(rows):
    rows.best(environment=OLD)
    rows.device(H100, NEW)
    assert not ask(rows).stale


def test_a_changed_source_of_the_winner_is_named(rows):
    rows.best(source="of yesterday")
    assert ask(rows).stale_because == ["source"]


def test_on_the_cpu_the_shim_counts_as_the_compiler(rows):
    host = replace(NEW, driver="host", runtime="host shim 1")
    rows.best(environment=host)
    rows.device(environment=replace(host, runtime="host shim 2"))
    assert ask(rows).stale_because == ["compiler"]


def test_a_variant_that_the_study_has_not_tried_is_named(rows):
    best = rows.best()
    assert "wpt" in ask(rows).unseen_variants
    assert "tiled" not in ask(rows).unseen_variants
    seen_all(rows, best, but="wpt")
    assert (ask(rows).unseen_variants, ask(rows).improvable) == (["wpt"], True)
    seen_all(rows, best)
    assert (ask(rows).unseen_variants, ask(rows).improvable) == ([], False)


def test_a_variant_whose_source_changed_since_is_one_to_try(rows):
    best = rows.best()
    seen_all(rows, best)
    tried = rows.session.query(models.Trial).filter_by(study_id=rows.trial_of(best).study_id).all()
    wpt = next(trial for trial in tried if trial.configuration["variant"] == "wpt")
    old = models.KernelVariant(
        kernel_id=rows.session.get_one(models.KernelVariant, wpt.kernel_variant_id).kernel_id,
        name="wpt",
        source_hash="0" * 64,
        source="of yesterday",
    )
    rows.session.add(old)
    rows.session.flush()
    wpt.kernel_variant_id = old.id
    rows.session.flush()
    assert ask(rows).unseen_variants == ["wpt"]
    assert not ask(rows).stale


def test_a_variant_without_configurations_for_the_problem_is_none_to_try(rows):
    best = rows.best()
    seen_all(rows, best, but="wpt")
    study = rows.session.get_one(models.Study, rows.trial_of(best).study_id)
    kernel = registry.catalogue().get("gemm")
    study.space_by_source = {source_keys(kernel)["wpt"]: 0}
    rows.session.flush()
    assert not ask(rows).improvable
    study.space_by_source = {"wpt:" + "0" * 64: 0}  # of another source: its space may be another one too
    rows.session.flush()
    assert ask(rows).improvable


def test_a_job_notes_how_many_configurations_each_variant_has(rows):
    study, row, device = rows.study()
    kernel = registry.catalogue().get("gemm")
    limits = registry.limits_of(device.model)
    space = kernel.space(kernel.problem(row.shape, row.dtype, row.options), limits)
    key = (row.id, device.model_id, device.environment_id)
    noted = study_rows.study_row(rows.session, *key, space, kernel=kernel).space_by_source
    assert sum(noted.values()) == len(space)
    assert noted[source_keys(kernel)["tiled"]] > 0
    assert study.id == study_rows.study_row(rows.session, *key, space).id


def test_results_can_be_narrowed_to_stale_and_to_improvable_ones(rows):
    old, fresh = rows.best(environment=OLD), rows.best(OTHER, environment=NEW)
    seen_all(rows, fresh)

    def ids(**which):
        return {item.id for item in results(rows.session, **which).items}

    assert ids() == {old.id, fresh.id}
    assert (ids(stale=True), ids(stale=False)) == ({old.id}, {fresh.id})
    assert (ids(improvable=True), ids(improvable=False)) == ({old.id}, {fresh.id})
    assert ids(stale=True, improvable=False) == set()
    assert ids(stale=True, kernel="gemm", device_model="nvidia-h200") == {old.id}
    shown = result(rows.session, old.id)
    assert (shown.stale_because, shown.improvable) == (["driver", "toolkit", "compiler"], True)


def test_pages_of_improvable_results_hold_each_once(rows):
    made = [rows.best(SHAPE | {"m": m}) for m in (16, 32, 48, 64, 80)]
    for best in made[1::2]:
        seen_all(rows, best)
    found, cursor = [], None
    while True:
        page = results(rows.session, improvable=True, limit=1, cursor=cursor)
        found += [item.id for item in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == [made[4].id, made[2].id, made[0].id]


def test_a_result_of_a_problem_that_the_kernel_no_longer_admits_is_still_listed(rows):
    best = rows.best()
    rows.session.execute(update(models.Problem).values(options={"of_the_past": True}))
    rows.session.expire_all()
    assert [item.id for item in results(rows.session).items] == [best.id]


def test_a_result_of_a_kernel_that_only_workers_have_is_judged_by_its_environment(rows):
    best = rows.best(environment=OLD)
    rows.session.execute(update(models.Kernel).where(models.Kernel.name == "gemm").values(name="theirs"))
    rows.session.expire_all()
    assert standings(rows.session, [best.id])[best.id].stale_because == ()
    rows.device(environment=NEW)
    assert standings(rows.session, [best.id])[best.id].stale_because == ("driver", "toolkit", "compiler")


def test_the_api_filters_and_says_why(client):
    with transaction() as session:
        rows = Rows(session)
        rows.best(environment=OLD, configuration=TILED_16)
        rows.best(OTHER, environment=NEW)
    (item,) = client.get("/v1/results", params={"stale": "true"}).json()["items"]
    assert item["stale_because"] == ["driver", "toolkit", "compiler"]
    assert client.get(f"/v1/results/{item['id']}").json() == item
    assert client.get("/v1/results/999").status_code == 404
    answered = client.get("/v1/kernels/gemm/best", params={"shape": "m=256,n=100,k=784"}).json()
    assert (answered["stale"], answered["stale_because"]) == (True, ["driver", "toolkit", "compiler"])
    assert "wpt" in answered["unseen_variants"]


OLDEST = replace(OLD, driver="550.54")


def retract(rows, best):
    best.retracted_at = func.now()


def measure_cold(rows, best):
    best.l2 = "cold"


def measure_elsewhere(rows, best):
    rows.session.get_one(models.Environment, best.environment_id).origin = "somebody else"


def measure_noisily(rows, best):
    best.ci_low_ms, best.ci_high_ms = best.time_ms * 0.7, best.time_ms


def measure_later(rows, best):
    best.verified_at += timedelta(seconds=1)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("of", "change", "slower_ms", "slowdown"),
    [
        ({}, None, 1.25, 1.25),
        ({}, None, 1.033, 1.033),  # two intervals of 1 % and twice the drift of 2 % make 3.2 %
        ({}, None, 1.031, None),
        ({}, None, 0.5, None),
        ({"shape": SHAPE | {"m": 512}}, None, 1.25, None),
        ({"model": H100}, None, 1.25, None),
        ({}, retract, 1.25, 2.5),
        ({}, measure_cold, 1.25, 2.5),
        ({}, measure_elsewhere, 1.25, None),  # the one before it has that environment too
        ({}, measure_noisily, 1.25, None),
        ({}, measure_later, 1.25, 2.5),
    ],
)
def test_the_best_before_it_is_the_last_of_the_same_conditions(rows, of, change, slower_ms, slowdown):
    if change is not measure_elsewhere and not of:
        rows.best(time_ms=0.5, environment=OLDEST)
    before = rows.best(time_ms=1.0, environment=OLD, **of)
    if change:
        change(rows, before)
    best = rows.best(time_ms=slower_ms, environment=NEW)
    rows.session.flush()
    expected = {} if slowdown is None else {best.id: pytest.approx(slowdown)}
    found = slowdowns(rows.session, [best.problem_id])
    assert {row: slower for row, slower in found.items() if row == best.id} == expected


def test_retracted_bests_are_no_regressions(rows):
    rows.best(time_ms=1.0, environment=OLD)
    best = rows.best(time_ms=2.0, environment=NEW)
    retract(rows, best)
    rows.session.flush()
    assert slowdowns(rows.session, [best.problem_id]) == {}
