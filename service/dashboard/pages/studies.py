"""The pages of one study (charts, trials, open jobs) and of one trial."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import views, words
from tilewright.service.dashboard.charts import study as study_charts
from tilewright.service.dashboard.rendering import PageRoute, address, may, page
from tilewright.service.dashboard.snippets import tune_command
from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations.answers import JobAnswer, StudyAnswer, TrialAnswer
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.parse import format_options, format_shape
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.studies import studies
from tilewright.service.operations.studies.space import (
    DrawnTrial,
    Fastest,
    Selection,
    StudyDrawing,
    drawing,
    fastest_by,
    open_jobs,
    selected,
)
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN_TRIALS = 50

FINALS_TRIALS = 4
"""Finals take about as long as so many trials: 0.5 to 6.9 in four jobs on the CPU device, two cores, 2026-11-23."""
ENOUGH_TRIALS = 8
"""Trials of a variant from which its parameters are worth drawing."""

Name = Annotated[str | None, Query(max_length=64)]
PageNumber = Annotated[int, Query(alias="page", ge=1, le=10_000)]

_RANGE = re.compile(r"([A-Za-z]\w{0,63})=(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)")


def parse_selection(text: str | None) -> dict[str, tuple[float, float]]:
    """`TILE_M=64..128,time=0.1..0.2` as bounds by name; raises InvalidRequestError."""
    bounds = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise InvalidRequestError(
                "select", f"{part.strip()[:40]!r} must have the form NAME=LOW..HIGH, like TILE_M=64..128."
            )
        bounds[match[1]] = (float(match[2]), float(match[3]))
    return bounds


@dataclass(frozen=True)
class Parameters:
    """A variant's parameters: which vary, how much each matters, and which are drawn."""

    varied: Sequence[str]
    shares: Mapping[str, float]
    across: str | None
    up: str | None
    slice_by: str | None

    @classmethod
    def of(cls, own: Sequence[DrawnTrial], across: str | None, up: str | None, slice_by: str | None) -> Parameters:
        """The chosen parameters are drawn; without a choice, those that matter most."""
        shares = study_charts.importances(own)
        varied = list(study_charts.parameters_of(own))
        first, second, *_ = [*shares, *(name for name in varied if name not in shares), None, None]
        return cls(varied, shares, across or first, up or second, slice_by or first)

    def drawn_of(self, own: Sequence[DrawnTrial]) -> list[str]:
        """The drawn parameters, each once, without names that these trials lack."""
        known = {name for trial in own for name in trial.values}
        return [name for name in dict.fromkeys((self.across, self.up, self.slice_by)) if name in known]


@router.get("/studies/{study_id}")
def study(
    request: Request,
    study_id: int,
    *,
    sort: studies.Order = "fastest",
    number: PageNumber = 1,
    variant: Name = None,
    select: Annotated[str | None, Query(max_length=1024)] = None,
    across: Name = None,
    up: Name = None,
    slice_by: Annotated[str | None, Query(alias="slice", max_length=64)] = None,
) -> HTMLResponse:
    """One study with its charts and its trials, fastest or newest first; the selection narrows the trials."""
    selection = parse_selection(select)
    with transaction() as session:
        found = studies.study(session, study_id)
        drawn = drawing(session, study_id)
        chosen = _variant(drawn, variant)
        where = selected(selection, variant or (chosen if selection else None))
        total = studies.count_trials(session, study_id, where) if where else found.trials
        skip = (number - 1) * SHOWN_TRIALS
        trials = studies.shown_trials(
            session, study_id=study_id, order=sort, limit=SHOWN_TRIALS, skip=skip, where=where
        )
        running = open_jobs(session, study_id)
        own = [trial for trial in drawn.trials if trial.variant == chosen]
        parameters = Parameters.of(own, across, up, slice_by)
        drawn_parameters = parameters.drawn_of(own)
        fastest = fastest_by(session, study_id, chosen, drawn_parameters) if chosen and drawn_parameters else []
    path = f"/studies/{study_id}"
    state = {"variant": variant, "select": select, "across": across, "up": up, "slice": slice_by}

    def at(**changed: Any) -> str:
        return address(path, {"sort": sort if sort != "fastest" else None, **state, **changed})

    last = max(1, -(-total // SHOWN_TRIALS))
    return page(
        "study.html",
        refresh_s=5 if running else None,
        study=found,
        source=at(page=number if number > 1 else None),
        at=at,
        sort=sort,
        jobs=[_progress(job) for job in running],
        can_tune=may(request, Scope.TUNE),
        improvement=_improvement(drawn),
        charts=_charts(found, drawn, own, fastest, parameters, selection),
        drawn=drawn,
        variant=chosen,
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


def _variant(drawn: StudyDrawing, chosen: str | None) -> str | None:
    """The variant to draw: the chosen one, else the winner's if it has enough trials, else the most tried."""
    if chosen in drawn.variants:
        return chosen
    winner = drawn.improvements[-1].variant if drawn.improvements else None
    if drawn.variants.get(winner or "", 0) >= ENOUGH_TRIALS:
        return winner
    return max(drawn.variants, key=lambda name: drawn.variants[name], default=None)


def _charts(
    found: StudyAnswer,
    drawn: StudyDrawing,
    own: Sequence[DrawnTrial],
    fastest: Sequence[Fastest],
    parameters: Parameters,
    selection: Selection,
) -> dict[str, Any]:
    path = f"/studies/{found.id}"
    across, up, slice_by = parameters.across, parameters.up, parameters.slice_by
    variant, varied = own[0].variant if own else None, parameters.varied
    declared = catalogue().by_name.get(found.problem.kernel)
    variants = {v.name: v for v in declared.variants} if declared else {}
    order = [p.name for p in variants[variant].parameters] if variant in variants else []
    return {
        "by_trial": study_charts.best_so_far(drawn, path, "trials"),
        "by_time": study_charts.best_so_far(drawn, path, "time"),
        "parallel": study_charts.parallel(
            own, [*(n for n in order if n in varied), *(n for n in varied if n not in order)], selection
        ),
        "importance": study_charts.importance(parameters.shares),
        "slice": study_charts.slice_of(own, fastest, slice_by, path) if slice_by else None,
        "heat": study_charts.heat_map(fastest, across, up) if across and up else None,
        "names": varied,
        "across": across,
        "up": up,
        "slice_by": slice_by,
    }


def _improvement(drawn: StudyDrawing) -> float | None:
    """How many times faster the best is than the first trial that was measured."""
    if not drawn.improvements:
        return None
    first, last = drawn.improvements[0].time_ms, drawn.improvements[-1].time_ms
    return first / last if first and last else None


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


@router.get("/studies/{study_id}/trials/{number}")
def trial(study_id: int, number: int) -> HTMLResponse:
    """One trial: its measurement, source, compiler flags and log."""
    with transaction() as session:
        found = studies.study(session, study_id)
        one = studies.trial(session, study_id, number)
    if one is None:
        raise NotFoundError("trial", f"{number} of study {study_id}")
    answer, source_hash, source = one
    return page(
        "trial.html",
        study=found,
        trial=answer,
        line=views.trial_lines(found.problem.kernel, [answer])[0],
        source=source,
        source_hash=source_hash,
        source_path=_source_path(found, answer, source_hash),
        flags=_flags(found, answer),
        command=tune_command(found.problem, found.device_model, answer.variant),
    )


def _source_path(found: StudyAnswer, answer: TrialAnswer, source_hash: str) -> str:
    problem = found.problem
    query = {
        "variant": answer.variant,
        "shape": format_shape(words.ordered_shape(problem)),
        "dtype": problem.dtype,
        "options": format_options(problem.options),
        "configuration": format_shape(answer.configuration),
        "source_hash": source_hash,
    }
    return address(f"/v1/kernels/{problem.kernel}/source", query)


def _flags(found: StudyAnswer, answer: TrialAnswer) -> str:
    """The macros as compiler flags; only the configuration's if this server does not have the kernel."""
    own = {name: str(value) for name, value in answer.configuration.items()}
    declared = catalogue().by_name.get(found.problem.kernel)
    if declared is not None and answer.variant in {v.name for v in declared.variants}:
        problem = declared.problem(found.problem.shape, found.problem.dtype, found.problem.options)
        own = {**own, **views.definitions(declared, problem, answer)}
    return " ".join(f"-D{name}={value}" for name, value in own.items())
