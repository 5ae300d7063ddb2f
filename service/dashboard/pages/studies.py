"""The page of one study: its settled best, its search and its parameters as charts, its trials, its open jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response

from tilewright.service.dashboard import study_view, views
from tilewright.service.dashboard.charts.packed import packed
from tilewright.service.dashboard.pages.ask import TRIALS
from tilewright.service.dashboard.rendering import PageRoute, address, may, page
from tilewright.service.dashboard.snippets import tune_command
from tilewright.service.dashboard.study_view import Choice, Parameters
from tilewright.service.dashboard.tables import PageNumber, TableOrder
from tilewright.service.dashboard.why import Why
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations import DEFAULT_PRIORITY, registry
from tilewright.service.operations.answers import JobAnswer
from tilewright.service.operations.best.results import settled
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.parse import parse_selection
from tilewright.service.operations.studies import studies
from tilewright.service.operations.studies.columns import columns
from tilewright.service.operations.studies.importance import (
    LEAST_TRIALS,
    RESAMPLES,
    parameter_counts,
    parameter_names,
)
from tilewright.service.operations.studies.space import (
    NAMED_COLUMNS,
    failed_job,
    fastest_by,
    open_jobs,
    search,
    selected,
)
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views.notes import notes
from tilewright.service.operations.views.winner import winner

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN_TRIALS = 50

FINALS_TRIALS = 4
"""Finals take about as long as so many trials: 0.5 to 6.9 in four jobs on the CPU device, two cores, 2026-11-23."""

MOST_PARAMETERS = 64

Name = Annotated[str | None, Query(max_length=64)]


@router.get("/studies/{study_id}")
def study(
    request: Request,
    study_id: int,
    *,
    sort: Annotated[studies.Order, Query(max_length=32)] = "fastest",
    number: PageNumber = 1,
    select: Annotated[str | None, Query(max_length=1024)] = None,
    variant: Name = None,
    across: Name = None,
    up: Name = None,
    slice_by: Annotated[str | None, Query(alias="slice", max_length=64)] = None,
    x: Name = None,
    y: Name = None,
    colour: Name = None,
) -> HTMLResponse:
    """One study with its charts and its trials, fastest or newest first; the selection narrows the trials."""
    selection, choice = parse_selection(select), Choice(variant, across, up, slice_by, x, y, colour)
    order = TableOrder.of(
        studies.SHORT_ORDERS.get(sort, sort), studies.TRIAL_COLUMNS, lambda text: f"{at(sort=text)}#all-trials"
    )
    with transaction() as session:
        found, best, running = (
            studies.study(session, study_id),
            settled(session, study_id),
            open_jobs(session, study_id),
        )
        failed = None if running else failed_job(session, study_id)
        tried = search(session, study_id)
        drawn = study_view.chosen_variant(tried, variant)
        parameters, fastest = None, []
        if drawn is not None:
            counts = parameter_counts(session, study_id, drawn)
            parameters = Parameters.of(counts, found.problem.kernel, drawn, choice, is_live=bool(running))
            fastest = fastest_by(session, study_id, drawn, parameters.grouped())
        where = selected(selection, variant or (drawn if selection else None))
        total = studies.count_trials(session, study_id, where) if where else found.trials
        skip = (number - 1) * SHOWN_TRIALS
        trials = studies.shown_trials(
            session, study_id=study_id, order=order.text, limit=SHOWN_TRIALS, skip=skip, where=where
        )
        why = None
        if best is not None:
            details = next(m.details for m in registry.device_models(session) if m.slug == found.device_model)
            why = Why.of(best, winner(session, best), details)
        own_notes = notes(session, [study_id])
        devices = [device for device in registry.devices(session) if device.model == found.device_model]
    lines = study_view.levels(best)
    charts = study_view.charts(
        found, tried, drawn, parameters, fastest, selection=selection, choice=choice, lines=lines
    )
    path = f"/studies/{study_id}"
    state = {"select": select, "variant": variant, "across": across, "up": up, "slice": slice_by, "x": x, "y": y}
    state |= {"colour": colour, "sort": sort if sort != "fastest" else None}
    # While trials are added, what is drawn stays what it is: without this it would follow what matters most so far.
    kept = study_view.as_drawn(drawn, parameters, charts) if running else {}

    def at(**changed: Any) -> str:
        return address(path, {**state, **changed})

    last = max(1, -(-total // SHOWN_TRIALS))
    return page(
        "study.html",
        refresh_s=5 if running else None,
        study=found,
        best=views.result_lines([best], devices)[0] if best else None,
        result=best,
        why=why,
        source=at(page=number if number > 1 else None),
        drawn_source=at(**kept, page=number if number > 1 else None),
        at=at,
        state=state,
        sort=sort,
        order=order,
        jobs=[_progress(job) for job in running],
        failed=failed,
        can_tune=may(request, Scope.TUNE),
        notes=own_notes,
        budget_trials=TRIALS,
        priority=DEFAULT_PRIORITY,
        again={
            "problem": found.problem,
            "device_model": found.device_model,
            "body": found.problem.model_dump(mode="json") | {"device_model": found.device_model},
        },
        search=tried,
        charts=charts,
        parameters=parameters,
        least_trials=LEAST_TRIALS,
        resamples=RESAMPLES,
        columns=address(f"{path}/columns", {"variant": drawn}) if drawn else None,
        variant=drawn,
        selection=selection,
        trials=views.trial_lines(found.problem.kernel, trials, path),
        outcomes=views.outcome_counts(found.outcomes),
        total=total,
        command=tune_command(found.problem, found.device_model),
        page=number,
        pages=last,
        previous=at(page=number - 1) if number > 1 else None,
        next=at(page=number + 1) if number < last else None,
    )


@router.get("/studies/{study_id}/columns")
def study_columns(
    study_id: int,
    variant: Annotated[str, Query(max_length=64)],
    resources: Annotated[str, Query(alias="with", max_length=512)] = "",
    after: Annotated[int, Query(ge=-1, le=2**31 - 1)] = -1,
) -> Response:
    """The trials numbered above `after` as packed columns, for the charts of a variant."""
    named = [name for name in resources.split(",") if name]
    if unknown := [name for name in named if name not in NAMED_COLUMNS]:
        raise InvalidRequestError("with", f"{unknown[0]!r} is not a column; columns are {', '.join(NAMED_COLUMNS)}.")
    with transaction() as session:
        studies.study(session, study_id)
        names = parameter_names(session, study_id, variant)[:MOST_PARAMETERS]
        found = columns(session, study_id, variant, names, resources=named, after=after)
    return Response(packed(found), media_type="application/octet-stream")


def _progress(job: JobAnswer) -> dict[str, Any]:
    """A running job in short, with about how many seconds its budget still lasts."""
    return views.job_line(job) | {"id": job.id, "left_s": _left_s(job), "can_cancel": not job.cancel_requested}


def _left_s(job: JobAnswer) -> float | None:
    """Seconds left at the rate so far, finals included; None while it is unknown, as before the first trial."""
    trials, seconds = job.budget.get("trials"), job.budget.get("seconds")
    trial_s = job.elapsed_s / job.trials_done if job.trials_done else 0.0
    left = [trial_s * (trials - job.trials_done)] if trials and trial_s else []
    left += [seconds - job.elapsed_s] if seconds else []
    if not left:
        return None
    searching_s = 0.0 if job.phase == "finals" else max(0.0, min(left))
    return searching_s + FINALS_TRIALS * trial_s or None
