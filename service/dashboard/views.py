"""The values that pages show, made from answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.charts.small import Bar
from tilewright.service.operations import DEFAULT_PRIORITY
from tilewright.service.operations.answers import (
    DeviceAnswer,
    DeviceModelAnswer,
    EnvironmentAnswer,
    JobAnswer,
    ProblemAnswer,
    TrialAnswer,
    TunedFor,
)
from tilewright.service.operations.best.results import AgainstLibrary, ResultAnswer
from tilewright.service.operations.best.results_table import ModelResults
from tilewright.service.operations.best.tables import TableAnswer
from tilewright.service.operations.jobs.jobs import IMPORTED

OPEN = frozenset({"queued", "running"})

MARKS = {
    "measured": "\N{CHECK MARK}",
    "constraint_violated": "\N{EMPTY SET}",
    "compile_failed": "\N{MULTIPLICATION X}",
    "launch_failed": "\N{MULTIPLICATION X}",
    "wrong_result": "\N{NOT EQUAL TO}",
    "timed_out": "\N{INFINITY}",
    "device_lost": "!",
    "interrupted": "\N{HORIZONTAL ELLIPSIS}",
}
"""Marks of outcomes, so that failures stand out in a long column."""


@dataclass(frozen=True)
class Section:
    """One device model: how many of its devices have a living worker, and its newest best configurations."""

    model: DeviceModelAnswer
    alive: int
    devices: int
    rows: Sequence[Mapping[str, Any]]
    total: int


def sections(
    models: Sequence[DeviceModelAnswer], devices: Sequence[DeviceAnswer], found: Mapping[str, ModelResults]
) -> list[Section]:
    """One section per device model: those with a living worker first, then GPUs before CPUs."""
    made = []
    for model in models:
        own = [device for device in devices if device.model == model.slug]
        results = found.get(model.slug, ModelResults([], 0))
        rows = result_lines(results.items, own)
        made.append(Section(model, sum(device.alive for device in own), len(own), rows, results.total))
    return sorted(made, key=lambda section: (section.alive == 0, section.model.kind == "cpu", section.model.slug))


def result_lines(results: Sequence[ResultAnswer], devices: Sequence[DeviceAnswer]) -> list[dict[str, Any]]:
    """Rows of the table of best configurations; `devices` have the current environments."""
    current: dict[str, list[EnvironmentAnswer | None]] = {}
    for device in devices:
        current.setdefault(device.model, []).append(device.environment)
    return [_result_line(result, current.get(result.device_model, [])) for result in results]


def _result_line(result: ResultAnswer, current: Sequence[EnvironmentAnswer | None]) -> dict[str, Any]:
    library = result.library
    return {
        "problem": result.problem,
        "shape": formatting.shape_text(result.problem),
        "options": formatting.unusual_options(result.problem),
        "device_model": result.device_model,
        "best_path": best_path(result.problem, result.device_model),
        "study_path": f"/studies/{result.study_id}",
        "trial_number": result.trial_number,
        "variant": result.variant,
        "configuration": formatting.configuration(result.problem.kernel, result.variant, result.configuration),
        "ties": result.ties,
        "time_ms": result.time_ms,
        "pack_ms": result.pack_ms,
        "ci_ms": result.ci_ms,
        "l2": result.l2,
        "gflops": result.gflops,
        "gb_per_s": result.gb_per_s,
        "roof_ratio": result.roof_ratio,
        "roof_width": round(min(result.roof_ratio or 0, 1) * 48, 1),
        "gain_over_default": result.gain_over_default,
        "library": library,
        "bar": Bar.of(library.speedup) if library else None,
        "verdict": _verdict(result),
        "bound_ratio": result.bound_ratio,
        "slowdown": result.slowdown,
        "environment": result.environment,
        "is_past": bool(current) and result.environment not in current,
        "verified_at": result.verified_at,
    }


def _verdict(result: ResultAnswer) -> str | None:
    """The comparison with the library in words."""
    if result.library is None:
        return None
    name = result.library.name
    match result.against_library:
        case AgainstLibrary.BEHIND:
            return f"{name} is faster: {'launchers make this call' if result.library.launched else 'use it'}"
        case AgainstLibrary.AHEAD:
            return f"ahead of {name}"
        case _:
            return f"level with {name}"


def best_path(problem: ProblemAnswer, device_model: str) -> str:
    """The API address of the best configuration."""
    return plain_address(f"/v1/kernels/{quote(problem.kernel)}/best", _question(problem, device_model))


def table_path(table: TableAnswer) -> str:
    """The API address of the family's table."""
    return plain_address(f"/v1/kernels/{quote(table.kernel)}/table", _question(table, table.device_model))


def ask_path(problem: TunedFor, device_model: str) -> str:
    """The page that shows the best configuration and how to use it."""
    return plain_address("/ask", {"kernel": problem.kernel, **_question(problem, device_model)})


def _question(problem: TunedFor, device_model: str) -> dict[str, str]:
    return {
        "device_model": device_model,
        "shape": formatting.shape_text(problem),
        "dtype": problem.dtype,
        "options": formatting.unusual_options(problem),
    }


def problem_path(problem: ProblemAnswer | Problem) -> str:
    """The page with all that is known of the problem."""
    query = {
        "shape": formatting.shape_text(problem),
        "dtype": problem.dtype,
        "options": formatting.unusual_options(problem),
    }
    return plain_address(f"/kernels/{quote(problem.kernel)}/problem", query)


def plain_address(path: str, query: Mapping[str, str]) -> str:
    """A path and query with `=`, `,` and `:` unescaped, so that people can read it."""
    return f"{path}?{urlencode({name: value for name, value in query.items() if value}, safe='=,:')}"


def job_line(job: JobAnswer) -> dict[str, Any]:
    """One row of the table of jobs."""
    trials, is_import = job.budget.get("trials"), job.sampler == IMPORTED
    return {
        "id": job.id,
        "path": f"/jobs/{job.id}",
        "problem": job.problem,
        "is_open": is_open(job),
        "can_cancel": is_open(job) and not job.cancel_requested,
        "again": _again(job),
        "device": job.device_model or "any",
        "device_place": job.device_place,
        "device_uuid": job.device,
        "state": "imported" if is_import else job.state,
        "phase": job.phase if job.state == "running" else None,
        "is_stopping": job.cancel_requested and job.state == "running",
        "trials_done": job.trials_done,
        "trials": int(trials) if trials and not job.problem.is_family else None,
        "why_stopped": job.why_stopped,
        "best_ms": job.best_ms,
        "is_settled": (job.result or {}).get("best") is not None,
        "gain_over_default": job.gain_over_default,
        "elapsed_s": job.elapsed_s if (job.started_at or job.elapsed_s) and not is_import else None,
        "error": job.error,
        "created_at": job.created_at,
    }


def _again(job: JobAnswer) -> dict[str, Any] | None:
    """The request that makes the same job again; None where nothing was searched here."""
    if job.sampler == IMPORTED or job.verifies:
        return None
    asked = job.problem.model_dump(mode="json") | {
        "budget": job.budget,
        "priority": min(job.priority, DEFAULT_PRIORITY),
    }
    named = {name: getattr(job, name) for name in ("device_model", "device", "variants", "compiler", "sampler")}
    return asked | {name: value for name, value in named.items() if value is not None}


def is_open(job: JobAnswer) -> bool:
    """Whether the job may still change."""
    return job.state in OPEN


def definitions(kernel: Kernel, problem: Problem, trial: TrialAnswer) -> dict[str, str]:
    """The macros that the trial was compiled with; none if its parameters are no longer the kernel's."""
    parameters = {p.name for p in kernel.variant(trial.variant).parameters}
    if set(trial.configuration) != parameters:
        return {}
    return dict(kernel.definitions(problem, Configuration.of(trial.variant, trial.configuration)))


def trial_lines(kernel: str, trials: Sequence[TrialAnswer], path: str | None = None) -> list[dict[str, Any]]:
    """Rows of a table of trials of one kernel; spreads are shares of the times. `path`: of their study."""
    time_text = formatting.time_column(trial.time_ms for trial in trials)
    return [
        {
            "number": trial.number,
            "path": f"{path or f'/studies/{trial.study_id}'}/trials/{trial.number}",
            "variant": trial.variant,
            "configuration": formatting.configuration(kernel, trial.variant, trial.configuration),
            "outcome": trial.outcome,
            "mark": MARKS[trial.outcome],
            "time": time_text(trial.time_ms),
            "spread": None if trial.spread_ms is None or not trial.time_ms else trial.spread_ms / trial.time_ms,
            "gflops": trial.gflops,
            "gb_per_s": trial.gb_per_s,
            "registers": trial.registers,
            "shared_bytes": trial.shared_bytes,
            "spill_bytes": trial.spill_bytes,
            "occupancy": trial.occupancy,
            "log": trial.log,
            "created_at": trial.created_at,
        }
        for trial in trials
    ]


def outcome_counts(outcomes: Mapping[str, int]) -> list[tuple[str, str, int]]:
    """Mark, word and count of each outcome that occurred, in the order of MARKS."""
    return [(mark, outcome, outcomes[outcome]) for outcome, mark in MARKS.items() if outcomes.get(outcome)]


def budget_text(budget: Mapping[str, float | int | None]) -> str:
    """`50 trials or 2 min 0 s`."""
    parts = []
    if (trials := budget.get("trials")) is not None:
        parts.append(formatting.counted(int(trials), "trial"))
    if (seconds := budget.get("seconds")) is not None:
        parts.append(formatting.duration(seconds))
    if (target_ms := budget.get("target_ms")) is not None:
        parts.append(f"until {formatting.kernel_time(target_ms)}")
    return " or ".join(parts)


def curl_line(base_url: str, newest: Sequence[ResultAnswer]) -> str | None:
    """The command that queries the newest result; None while there are no results."""
    return f"curl '{base_url}{best_path(newest[0].problem, newest[0].device_model)}'" if newest else None
