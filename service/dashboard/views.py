"""From answers to what a page shows: plain values and words, tested as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tilewright.service.operations.answers import DeviceAnswer, DeviceModelAnswer, JobAnswer, ProblemAnswer
from tilewright.service.operations.parse import format_options, format_shape
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.results import ResultAnswer

NOTHING = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Section:
    """One device model: whether a worker of it speaks, and its best configurations."""

    model: DeviceModelAnswer
    alive: int
    devices: int
    rows: Sequence[Mapping[str, Any]]


def sections(
    models: Sequence[DeviceModelAnswer], devices: Sequence[DeviceAnswer], found: Sequence[ResultAnswer]
) -> list[Section]:
    """One section per device model, those with a living worker first."""
    made = []
    for model in models:
        own = [device for device in devices if device.model == model.slug]
        rows = [result_line(result) for result in found if result.device_model == model.slug]
        made.append(Section(model, sum(device.alive for device in own), len(own), rows))
    return sorted(made, key=lambda section: (section.alive == 0, section.model.slug))


def result_line(result: ResultAnswer) -> dict[str, Any]:
    """One row of the table of best configurations."""
    library = result.library
    return {
        "problem": problem_text(result.problem),
        "best_path": best_path(result),
        "study_path": f"/v1/studies/{result.study_id}",
        "variant": result.variant,
        "configuration": " ".join(f"{name}={value}" for name, value in result.configuration.items()),
        "time_ms": result.time_ms,
        "gflops": result.gflops,
        "gain_over_default": result.gain_over_default,
        "gain_over_slowest": result.gain_over_slowest,
        "library": library.name if library else None,
        "speedup": library.speedup if library else None,
        "library_faster": bool(library and library.faster),
        "verified_at": result.verified_at,
    }


def job_line(job: JobAnswer) -> dict[str, Any]:
    """One row of the table of jobs."""
    return {
        "path": f"/v1/jobs/{job.id}",
        "problem": problem_text(job.problem),
        "device": job.device or job.device_model or "any",
        "state": job.state,
        "phase": job.phase if job.state == "running" else None,
        "trials_done": job.trials_done,
        "trials": job.budget.get("trials"),
        "best_ms": job.best_ms,
        "error": job.error,
        "created_at": job.created_at,
    }


def is_open(job: JobAnswer) -> bool:
    """Whether the job may still change."""
    return job.state in {"queued", "running"}


def problem_text(problem: ProblemAnswer) -> str:
    """`gemm m=256,n=100,k=784 float32 beta_zero=true`: axes in the kernel's order, options only where not default."""
    options = format_options(_unusual_options(problem))
    return " ".join(part for part in (problem.kernel, format_shape(_ordered(problem)), problem.dtype, options) if part)


def best_path(result: ResultAnswer) -> str:
    """The address that answers with this configuration."""
    problem = result.problem
    query = f"device_model={result.device_model}&shape={format_shape(_ordered(problem))}&dtype={problem.dtype}"
    options = format_options(_unusual_options(problem))
    return f"/v1/kernels/{problem.kernel}/best?{query}" + (f"&options={options}" if options else "")


def curl_line(base_url: str, found: Sequence[ResultAnswer]) -> str | None:
    """The command that asks for the newest result, or None while there is none."""
    return f"curl '{base_url}{best_path(found[0])}'" if found else None


def _ordered(problem: ProblemAnswer) -> dict[str, int]:
    """The shape in the order of the kernel's axes; the database keeps none."""
    declared = catalogue().by_name.get(problem.kernel)
    axes = [axis for axis in declared.axes if axis in problem.shape] if declared else []
    return {axis: problem.shape[axis] for axis in [*axes, *(a for a in problem.shape if a not in axes)]}


def _unusual_options(problem: ProblemAnswer) -> dict[str, bool | str]:
    declared = catalogue().by_name.get(problem.kernel)
    usual = {option.name: option.default for option in declared.options} if declared else {}
    return {name: value for name, value in problem.options.items() if usual.get(name) != value}


def _number(value: float | None) -> str:
    """Three significant digits without an exponent, so that columns compare at a glance."""
    if value is None:
        return NOTHING
    if abs(value) >= 100:
        return f"{value:,.0f}"
    decimals = 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 4
    return f"{value:.{decimals}f}"


def _ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{TIMES}{value:.2f}"


def _moment(value: datetime | None) -> str:
    return NOTHING if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


FILTERS: Mapping[str, Callable[[Any], str]] = {"number": _number, "ratio": _ratio, "moment": _moment}
