"""The matrix of the first page: cells of one line, which say by sign and word what their colour says."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.charts.small import Bar
from tilewright.service.dashboard.rendering import address
from tilewright.service.dashboard.views import plain_address, problem_path
from tilewright.service.operations.answers import DeviceModelAnswer, ProblemAnswer
from tilewright.service.operations.best.results import AgainstLibrary, ResultAnswer
from tilewright.service.operations.views.cells import CellStatus
from tilewright.service.operations.views.kernel_summaries import ModelSummary
from tilewright.service.operations.views.matrix import Measure, Order
from tilewright.service.operations.views.matrix_rows import CellAnswer, ProblemRow

COLOURS: Mapping[Measure, str] = {
    Measure.LIBRARY: "\N{MULTIPLICATION SIGN} of the library",
    Measure.DEFAULT: "\N{MULTIPLICATION SIGN} of the default",
    Measure.ROOF: "% of the roof",
}
ORDERS: Mapping[Order, str] = {
    Order.SIZE: "smallest first",
    Order.RATIO: "worst ratio first",
    Order.AGE: "newest first",
    Order.DEMAND: "most requested first",
}
UP, DOWN = "\N{BLACK UP-POINTING TRIANGLE}", "\N{BLACK DOWN-POINTING TRIANGLE}"

STATUSES: Mapping[CellStatus, tuple[str, str]] = {
    CellStatus.AHEAD: (UP, "faster than the library beyond the noise"),
    CellStatus.LEVEL: ("=", "level with the library within the noise"),
    CellStatus.BEHIND: (DOWN, "slower than the library beyond the noise"),
    CellStatus.STALE: ("\N{CLOCKWISE OPEN CIRCLE ARROW}", "source, driver or compiler changed since it was measured"),
    CellStatus.REGRESSED: ("\N{SOUTH EAST ARROW}", "slower than the best before it"),
    CellStatus.FAILED: ("\N{BALLOT X}", "its job failed and there is no result"),
}
"""A mark and a meaning of each."""

STEPS = (0.05, 0.25, 1.0)
"""Distances from level, in octaves, at which the next shade begins; up to the first it counts as level."""

LEGENDS: Mapping[Measure, Sequence[tuple[str, str]]] = {
    Measure.LIBRARY: (
        ("behind-3", f"{DOWN} below {formatting.TIMES}0.50"),
        ("behind-2", f"{DOWN} below {formatting.TIMES}0.84"),
        ("behind-1", f"{DOWN} slower"),
        ("level", "= within the noise"),
        ("ahead-1", f"{UP} faster"),
        ("ahead-2", f"{UP} above {formatting.TIMES}1.19"),
        ("ahead-3", f"{UP} above {formatting.TIMES}2.00"),
    ),
    Measure.DEFAULT: (
        ("behind-3", f"{DOWN} below {formatting.TIMES}0.50"),
        ("behind-1", f"{DOWN} below {formatting.TIMES}0.97"),
        ("level", "= level"),
        ("ahead-1", f"{UP} above {formatting.TIMES}1.04"),
        ("ahead-2", f"{UP} above {formatting.TIMES}1.19"),
        ("ahead-3", f"{UP} above {formatting.TIMES}2.00"),
    ),
    Measure.ROOF: (
        ("behind-3", f"{DOWN} below 10 %"),
        ("behind-1", f"{DOWN} 20 to 35 %"),
        ("level", "= 35 to 50 %"),
        ("ahead-1", f"{UP} 50 to 65 %"),
        ("ahead-3", f"{UP} 80 % and more"),
    ),
}
PENDING = "\N{HORIZONTAL ELLIPSIS}"

MATCHES = {
    "range": ("↔", "from the table of its family"),
    "predicted": ("≈", "predicted from trials of other shapes"),
    "nearest": ("→", "configuration of the nearest tuned shape"),
    "transferred": ("⇄", "configuration of a similar device model"),
    "estimated": ("~", "configuration of a far shape, by estimate"),
    "default": ("○", "the kernel's default: no related result is known"),
    "exact": ("✓", "tuned for exactly this"),
}
"""Each kind of answer with its mark, as on the page `ask`, and the configuration's origin."""


class Cell(NamedTuple):
    """The contents of a cell. A tuple, because templates read its attributes faster than the keys of a mapping."""

    kind: Literal["result", "failed", "open"]
    path: str
    title: str
    value: str = ""
    shade: str = ""
    time: str = ""
    variant: str = ""
    notes: Sequence[tuple[str, str, str]] = ()  # mark, meaning, CSS class
    ask_path: str = ""


def shade(ratio: float | None) -> str:
    """The CSS class of a ratio: level, or one of three shades on either side, on a logarithmic scale."""
    if ratio is None or ratio <= 0:
        return "unrated"
    octaves = math.log2(ratio)
    step = sum(abs(octaves) >= bound for bound in STEPS)
    return "level" if step == 0 else f"{'ahead' if octaves > 0 else 'behind'}-{step}"


def library_shade(result: ResultAnswer) -> str:
    """The CSS class of a result beside the library: the side by the finals' verdict, the depth by the ratio."""
    verdict, library = result.against_library, result.library
    if verdict is None or library is None:
        return "unrated"
    if verdict is AgainstLibrary.LEVEL:
        return "level"
    octaves = math.log2(library.speedup) * (1 if verdict is AgainstLibrary.AHEAD else -1)
    return f"{verdict.value}-{max(sum(octaves >= bound for bound in STEPS), 1)}"


def roof_shade(share: float | None) -> str:
    """The CSS class of a share of the roof: the best shade from four fifths on, the worst below a tenth."""
    if share is None:
        return "unrated"
    names = ("behind-3", "behind-2", "behind-1", "level", "ahead-1", "ahead-2", "ahead-3")
    return names[sum(share >= bound for bound in (0.1, 0.2, 0.35, 0.5, 0.65, 0.8))]


def sign(name: str) -> str:
    """The mark that means the same as a shade, without colour."""
    return {"ahead": UP, "behind": DOWN, "level": "="}.get(name.partition("-")[0], "")


def all_stale(rows: Sequence[ProblemRow]) -> dict[str, list[str]]:
    """Reasons by device model whose shown results are all stale for the same ones: they are said once."""
    reasons: dict[str, list[list[str]]] = {}
    for cell in (cell for row in rows for cell in row.cells if cell.result):
        reasons.setdefault(cell.device_model, []).append(cell.result.stale_because if cell.result else [])
    return {slug: of[0] for slug, of in reasons.items() if len(of) > 1 and of[0] and all(one == of[0] for one in of)}


def lines(rows: Sequence[ProblemRow], colour: Measure, said: Collection[str] = ()) -> list[dict[str, Any]]:
    """The rows of the table, in order; `said`: the device models whose results are called stale above them."""
    return [_line(row, colour, said) for row in rows]


def _line(row: ProblemRow, colour: Measure, said: Collection[str]) -> dict[str, Any]:
    problem = row.problem
    query = {
        "kernel": problem.kernel,
        "shape": formatting.shape_text(problem),
        "dtype": problem.dtype,
        "options": formatting.unusual_options(problem),
    }
    ask = plain_address("/ask", query)
    return {
        "shape": formatting.sizes_text(problem),
        "about": " ".join(part for part in (problem.dtype, query["options"]) if part),
        "family": row.family,
        "problem_path": problem_path(problem),
        "cells": [_cell(cell, colour, f"{ask}&device_model={cell.device_model}", said) for cell in row.cells],
    }


def _cell(cell: CellAnswer, colour: Measure, ask_path: str, said: Collection[str]) -> Cell:
    if cell.result is not None:
        return _result(cell, cell.result, colour, ask_path, is_said=cell.device_model in said)
    if cell.failure is not None:
        error = cell.failure.error or "nothing was measured"
        return Cell("failed", f"/jobs/{cell.failure.job_id}", title=error)
    if cell.pending:
        return Cell("open", ask_path, title="a prediction is being computed", value=f"{PENDING} being computed")
    mark, meaning = ("\N{WHITE CIRCLE}", cell.refused or "not tuned") if cell.match is None else MATCHES[cell.match]
    says = "not tuned" if cell.match is None else cell.match.value
    meaning = meaning if cell.shipped is None else f"{says} from {cell.shipped}"
    return Cell("open", ask_path, title=meaning, value=f"{mark} {says}")


def _result(cell: CellAnswer, result: ResultAnswer, colour: Measure, ask_path: str, *, is_said: bool) -> Cell:
    name, said = _rated(result, colour)
    is_stand_in = result.device_model.startswith("cpu:")  # beside a CPU's library it says nothing about a GPU
    if colour is Measure.LIBRARY and (is_stand_in or name == "unrated") and result.gain_over_default is not None:
        name, said = "unrated", f"{formatting.ratio(result.gain_over_default)} default"
    return Cell(
        "result",
        f"/studies/{result.study_id}",
        title=_title(result, cell.environments),
        value=f"{sign(name)} {said}".lstrip(),
        shade=name,
        time=formatting.kernel_time(result.time_ms),
        variant=result.variant,
        notes=_notes(cell, result, is_said=is_said),
        ask_path=ask_path,
    )


def _rated(result: ResultAnswer, colour: Measure) -> tuple[str, str]:
    """The shade, and what it stands for in words."""
    match colour:
        case Measure.ROOF:
            return roof_shade(result.roof_ratio), formatting.percent(result.roof_ratio)
        case Measure.DEFAULT:
            name, ratio = shade(result.gain_over_default), result.gain_over_default
        case _:
            name, ratio = library_shade(result), result.library.speedup if result.library else None
    return name, _told_apart(ratio, name)


def _told_apart(ratio: float | None, name: str) -> str:
    """The ratio, with a third decimal if it would look level otherwise."""
    said = formatting.ratio(ratio)
    return f"{formatting.TIMES}{ratio:.3f}" if ratio and name != "level" and said == formatting.ratio(1.0) else said


def _title(result: ResultAnswer, environments: int) -> str:
    """The title of a line: details that it has no room for."""
    library = result.library
    parts = (
        f"{library.name} {formatting.kernel_time(library.time_ms)}" if library else "no library was timed",
        f"{formatting.percent(result.roof_ratio)} of the roof" if result.roof_ratio is not None else "",
        "above it from the cache" if result.roof_ratio is not None and result.roof_ratio > 1 else "",
        f"{formatting.ratio(result.gain_over_default)} of the default" if result.gain_over_default is not None else "",
        f"the newest of {environments} environments" if environments > 1 else "",
        f"verified {result.verified_at:%Y-%m-%d}",
    )
    return ", ".join(part for part in parts if part)


def _notes(cell: CellAnswer, result: ResultAnswer, *, is_said: bool) -> list[tuple[str, str, str]]:
    """Marks with their meanings and classes, for what is unusual about the result."""
    notes = []
    if result.slowdown is not None:
        meaning = f"regressed: {formatting.ratio(result.slowdown)} the time of the best before it"
        notes.append((STATUSES[CellStatus.REGRESSED][0], meaning, "note regressed"))
    if result.stale and not is_said:
        changed = ", ".join(result.stale_because)
        notes.append((STATUSES[CellStatus.STALE][0], f"stale: {changed} changed since it was measured", "note"))
    if not cell.is_usable and cell.match is not None:
        mark, meaning = MATCHES[cell.match]
        meaning = meaning if cell.shipped is None else f"{cell.match.value} from {cell.shipped}"
        notes.append((mark, f"the source has changed; answered now: {meaning}", "note"))
    if result.environment.origin is not None:
        notes.append(("\N{DOWNWARDS ARROW TO BAR}", f"imported from {result.environment.origin}", "note"))
    return notes


def strip(
    found: Sequence[ModelSummary], models: Sequence[DeviceModelAnswer], kept: Mapping[str, str | None]
) -> list[dict[str, Any]]:
    """The lines of the strip, a device model each, with the address that each count filters by."""
    by_slug = {one.device_model: one for one in found}
    return [
        {
            "place": place,
            "slug": one.device_model,
            "name": model.name,
            "path": address("/", {**kept, "device_model": one.device_model}),
            "mean": one.geometric_mean,
            "gain": one.gain_over_default,
            "is_stand_in": model.kind == "cpu",
            "bar": Bar.of(one.geometric_mean) if one.geometric_mean else None,
            "tuned": one.tuned,
            "counts": [
                (status, count, address("/", {**kept, "device_model": one.device_model, "status": status.value}))
                for status, count in one.counts.items()
            ],
        }
        for place, model in enumerate(columns(models))
        if (one := by_slug.get(model.slug)) is not None
    ]


def columns(models: Sequence[DeviceModelAnswer]) -> list[DeviceModelAnswer]:
    """These device models, in the order of the cells."""
    return sorted(models, key=lambda model: (model.kind == "cpu", model.slug))


def axes_text(problems: Sequence[ProblemAnswer]) -> str:
    """The names of the axes in the order in which shapes are written."""
    return formatting.axes_text(problems[0]) if problems else ""
