"""bundle(): everything that an application needs at run time for one device model, as one JSON document.

The same database gives the same bytes: no time of making, results in a fixed order. docs/exchange.md describes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

import tilewright
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.errors import NotFoundError
from tilewright.service.operations.answers import BestAnswer, Match
from tilewright.service.operations.best.answer import BestQuery, first_usable
from tilewright.service.operations.best.rows import EnvironmentFilter, exact_rows
from tilewright.service.operations.best.tables import kernel_tables
from tilewright.service.operations.exchange.export import compact
from tilewright.service.operations.exchange.rows import device_model_row
from tilewright.service.operations.registry import catalogue, default_device_model, device_models, limits_of
from tilewright.service.operations.staleness.standing import is_current
from tilewright.service.store import models
from tilewright.tuner.runtime.bundles.folder import FORMAT

MAX_RESULTS = 50_000
"""Results of one bundle, about 50 MB; of more, the fastest answer is a database."""

PIECE = 500


def bundle(session: Session, device_model: str | None, *, with_sources: bool = False) -> str:
    """The document for a device model (None: the only one with devices); raises NotFoundError, InvalidRequestError."""
    slug = device_model if device_model is not None else default_device_model(session)
    row = device_model_row(session, slug)
    if row is None:
        raise NotFoundError("device model", slug, [known.slug for known in device_models(session)])
    kernels: dict[str, Any] = {}
    sources: dict[str, Any] = {}
    results: list[dict[str, Any]] = []
    tables: list[dict[str, Any]] = []
    for kernel in catalogue().kernels():
        problems = _tuned_problems(session, kernel, row, MAX_RESULTS - len(results))
        entries = [
            _result(kernel, problem, answer)
            for problem, answer in _answers(session, kernel, row, problems)
            if kernel.has_source(answer.variant, answer.source_hash)  # an older source is not at hand
        ]
        found = [answer.model_dump(mode="json") for answer in kernel_tables(session, kernel, slug)]
        if entries or found:
            kernels[kernel.name] = _kernel_part(kernel)
            results += entries
            tables += found
            used = {result["variant"] for result in entries} | {
                r["variant"] for table in found for r in table["ranges"]
            }
            sources |= _sources(kernel, used, with_sources=with_sources)
    document = {
        "format": FORMAT,
        "made_by": f"tilewright {tilewright.__version__}",
        "device_model": {
            "slug": row.slug,
            "name": row.name,
            "compute_capability": row.compute_capability,
            "multiprocessors": row.multiprocessors,
        },
        "kernels": kernels,
        "sources": sources,
    } | ({"tables": tables} if tables else {})
    return as_text(document, results)


def as_text(document: dict[str, Any], results: list[dict[str, Any]]) -> str:
    """The document, still without results, followed by these, one a line."""
    lines = ",\n".join(compact(result) for result in results)
    return compact(document | {"results": []}).removesuffix("[]}") + f"[\n{lines}\n]}}\n"


def _tuned_problems(session: Session, kernel: Kernel, row: models.DeviceModel, most: int) -> list[Problem]:
    """The problems with a current best that the kernel still computes, in the order of their text."""
    best, table = models.BestConfiguration, models.Problem
    rows = session.execute(
        select(table.shape, table.dtype, table.options)
        .distinct()
        .join(best, best.problem_id == table.id)
        .join(table.kernel)
        .where(
            models.Kernel.name == kernel.name,
            best.device_model_id == row.id,
            is_current(),
        )
        .limit(most)
    )
    problems = []
    for shape, dtype, options in rows:
        try:
            problems.append(kernel.problem(shape, dtype, options))
        except InvalidProblemError:
            continue  # an axis or option that the kernel had when this was tuned
    return sorted(problems, key=lambda problem: problem.canonical)


def _answers(
    session: Session, kernel: Kernel, row: models.DeviceModel, problems: Sequence[Problem]
) -> Iterator[tuple[Problem, BestAnswer]]:
    """The answers of `best` for those problems that have one."""
    limits = limits_of(row)
    for start in range(0, len(problems), PIECE):
        piece = problems[start : start + PIECE]
        rows = {p.hash: found for p, found, _ in exact_rows(session, kernel, row.slug, piece, EnvironmentFilter())}
        for problem in piece:
            asked = BestQuery(kernel, problem, row.slug, limits)
            answer = first_usable(asked, rows.get(problem.hash, ()), Match.EXACT)
            if answer is not None:
                yield problem, answer


def _result(kernel: Kernel, problem: Problem, answer: BestAnswer) -> dict[str, Any]:
    configuration = Configuration.of(answer.variant, answer.configuration)
    variant = kernel.variant(answer.variant)
    library, environment = answer.library, answer.environment
    return {
        **problem.as_json(),
        "variant": answer.variant,
        "configuration": answer.configuration,
        "definitions": kernel.definitions(problem, configuration),
        "launch": answer.launch.model_dump(mode="json"),
        "before": [
            {"entry": entry, "grid": launch.grid, "block": launch.block, "shared_bytes": launch.shared_bytes}
            for entry, launch in variant.launches(kernel.entry, configuration.values, problem)[:-1]
        ],
        "workspace_bytes": variant.workspace_bytes(configuration.values, problem),
        "tensor_maps": [asdict(one) for one in variant.tensor_maps(configuration.values, problem)],
        "source": answer.source_hash,
        "time_ms": answer.time_ms,
        "pack_ms": answer.pack_ms,
        "bound_ratio": answer.bound_ratio,
        "ci_ms": answer.ci_ms,
        "gain_over_default": answer.gain_over_default,
        "stale": answer.stale,
        "library": None
        if library is None
        else {"name": library.name, "time_ms": library.time_ms, "faster": library.faster},
        "toolkit": environment.toolkit if environment else None,
        "origin": environment.origin if environment else None,
        "verified_at": None if answer.verified_at is None else answer.verified_at.isoformat(),
    }


def _kernel_part(kernel: Kernel) -> dict[str, Any]:
    """The entry point and its parameters, in order."""
    return {
        "entry": kernel.entry,
        "axes": list(kernel.axes),
        "optional_axes": [axis.name for axis in kernel.optional_axes],
        "arguments": [
            {"name": argument.name, "role": argument.role if isinstance(argument, Tensor) else "scalar"}
            | ({"dtype": argument.dtype} if isinstance(argument.dtype, str) else {})
            | ({"symbol": argument.symbol} if isinstance(argument, Tensor) and argument.symbol else {})
            | ({"texture": asdict(argument.texture)} if isinstance(argument, Tensor) and argument.texture else {})
            for argument in kernel.arguments
        ],
    }


def _sources(kernel: Kernel, variants: set[str], *, with_sources: bool) -> dict[str, Any]:
    """For each source hash: kernel, variant, suffix of the architecture and, if wanted, the text."""
    sources = {}
    for name in sorted(variants):
        text = {"text": kernel.source(name)} if with_sources else {}
        suffix = kernel.variant(name).architecture_suffix
        sources[kernel.source_hash(name)] = {
            "kernel": kernel.name,
            "variant": name,
            "architecture_suffix": suffix,
        } | text
    return sources
