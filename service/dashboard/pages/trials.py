"""The page of one trial: its times, how it differs from the best and the default, its resources, log and source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import formatting, views
from tilewright.service.dashboard.charts.small import Histogram
from tilewright.service.dashboard.rendering import PageRoute, address, page
from tilewright.service.dashboard.snippets import tune_command
from tilewright.service.errors import NotFoundError
from tilewright.service.operations.answers import StudyAnswer, TrialAnswer
from tilewright.service.operations.best.results import ResultAnswer, settled
from tilewright.service.operations.parse import format_options, format_shape
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.studies import studies
from tilewright.service.operations.studies.evidence import evidence, trial_with
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@dataclass(frozen=True)
class Other:
    """A configuration that the trial is held against, and its time where that is known."""

    name: str
    variant: str
    configuration: Mapping[str, int]
    time_ms: float | None
    path: str | None


@router.get("/studies/{study_id}/trials/{number}")
def trial(study_id: int, number: int) -> HTMLResponse:
    """One trial: its measurement, its configuration beside the best and the default, source, flags and log."""
    with transaction() as session:
        found, best = studies.study(session, study_id), settled(session, study_id)
        one = evidence(session, study_id, number)
        if one is None:
            raise NotFoundError("trial", f"{number} of study {study_id}")
        start = default_of(found.problem.kernel, one.trial.variant)
        tried = trial_with(session, study_id, one.trial.variant, start) if start else None
    answer = one.trial
    others = [_best(best)] if best else []
    if start:
        path = f"/studies/{study_id}/trials/{tried.number}" if tried else None
        name = f"default of {answer.variant}"
        others.append(Other(name, answer.variant, start, tried.time_ms if tried else None, path))
    return page(
        "trial.html",
        study=found,
        trial=answer,
        line=views.trial_lines(found.problem.kernel, [answer])[0],
        evidence=one,
        samples=Histogram.of(one.samples_ms, answer.time_ms, one.ci_ms),
        others=others,
        differences=differences(found.problem.kernel, answer, others),
        source_path=_source_path(found, answer, one.source_hash),
        flags=_flags(found, answer),
        command=tune_command(found.problem, found.device_model, answer.variant),
    )


def default_of(kernel: str, variant: str) -> dict[str, int]:
    """The declared defaults of the variant's parameters; empty where this server does not know it."""
    declared = catalogue().by_name.get(kernel)
    known = {v.name: v for v in declared.variants} if declared else {}
    return {p.name: p.default for p in known[variant].parameters} if variant in known else {}


def _best(best: ResultAnswer) -> Other:
    path = f"/studies/{best.study_id}/trials/{best.trial_number}"
    return Other("settled best", best.variant, best.configuration, best.time_ms, path)


def differences(kernel: str, answer: TrialAnswer, others: Sequence[Other]) -> list[dict[str, Any]]:
    """A row for each parameter of the trial: its value, its meaning, and the values of the others with whether they
    differ; None where another variant has no such parameter.
    """
    declared = catalogue().by_name.get(kernel)
    own = {p.name: p for v in declared.variants if v.name == answer.variant for p in v.parameters} if declared else {}
    names = [*(n for n in own if n in answer.configuration), *(n for n in answer.configuration if n not in own)]
    return [
        {
            "name": name,
            "meaning": own[name].doc if name in own else "",
            "value": answer.configuration[name],
            "others": [
                (value := other.configuration.get(name), value != answer.configuration[name]) for other in others
            ],
        }
        for name in names
    ]


def _source_path(found: StudyAnswer, answer: TrialAnswer, source_hash: str) -> str:
    problem = found.problem
    query = {
        "variant": answer.variant,
        "shape": formatting.shape_text(problem),
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
