"""The matrix of the first page: cells with text as well as colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tilewright.service.dashboard import words
from tilewright.service.dashboard.rendering import address
from tilewright.service.operations.answers import DeviceModelAnswer, Match
from tilewright.service.operations.best.results import ResultAnswer
from tilewright.service.operations.parse import format_options, format_shape
from tilewright.service.operations.views.families import FAMILIES
from tilewright.service.operations.views.matrix import CellAnswer, ProblemRow

Colour = Literal["library", "default", "roof"]
COLOURS: Mapping[Colour, str] = {
    "library": "\N{MULTIPLICATION SIGN} of the library",
    "default": "\N{MULTIPLICATION SIGN} of the default",
    "roof": "% of the roof",
}

STEPS = (0.05, 0.25, 1.0)
"""Distances from level, in octaves, at which the next shade begins; up to the first it counts as level."""

LEGEND = (
    ("behind-3", "\N{BLACK DOWN-POINTING TRIANGLE} below \N{MULTIPLICATION SIGN}0.50"),
    ("behind-2", "\N{BLACK DOWN-POINTING TRIANGLE} below \N{MULTIPLICATION SIGN}0.84"),
    ("behind-1", "\N{BLACK DOWN-POINTING TRIANGLE} below \N{MULTIPLICATION SIGN}0.97"),
    ("level", "= level"),
    ("ahead-1", "\N{BLACK UP-POINTING TRIANGLE} above \N{MULTIPLICATION SIGN}1.04"),
    ("ahead-2", "\N{BLACK UP-POINTING TRIANGLE} above \N{MULTIPLICATION SIGN}1.19"),
    ("ahead-3", "\N{BLACK UP-POINTING TRIANGLE} above \N{MULTIPLICATION SIGN}2.00"),
)
MATCH_WORDS = {
    Match.NEAREST: "uses a near shape",
    Match.TRANSFERRED: "uses another device model",
    Match.DEFAULT: "uses the default",
}


def shade(ratio: float | None) -> str:
    """The CSS class of a ratio: level, or one of three shades on either side, on a logarithmic scale."""
    if ratio is None or ratio <= 0:
        return "unrated"
    octaves = math.log2(ratio)
    step = sum(abs(octaves) >= bound for bound in STEPS)
    return "level" if step == 0 else f"{'ahead' if octaves > 0 else 'behind'}-{step}"


def roof_shade(share: float | None) -> str:
    """The CSS class of a share of the roof: the best shade from four fifths on, the worst below a tenth."""
    if share is None:
        return "unrated"
    names = ("behind-3", "behind-2", "behind-1", "level", "ahead-1", "ahead-2", "ahead-3")
    return names[sum(share >= bound for bound in (0.1, 0.2, 0.35, 0.5, 0.65, 0.8))]


def sign(name: str) -> str:
    """The mark that means the same as a shade, without colour."""
    side = name.partition("-")[0]
    return {"ahead": "\N{BLACK UP-POINTING TRIANGLE}", "behind": "\N{BLACK DOWN-POINTING TRIANGLE}", "level": "="}.get(
        side, ""
    )


def groups(rows: Sequence[ProblemRow], colour: Colour) -> list[dict[str, Any]]:
    """The rows by family, in the order of FAMILIES; inside by size."""
    by_family: dict[str, list[ProblemRow]] = {}
    for row in rows:
        by_family.setdefault(row.family, []).append(row)
    return [
        {"name": name, "rows": [_line(row, colour) for row in sorted(members, key=_size)]}
        for name, members in sorted(by_family.items(), key=lambda item: FAMILIES.index(item[0]))
    ]


def _size(row: ProblemRow) -> tuple[float, list[int]]:
    sizes = list(row.problem.shape.values())
    return math.prod(map(float, sizes)), sizes


def _line(row: ProblemRow, colour: Colour) -> dict[str, Any]:
    problem = row.problem
    shape, options = format_shape(words.ordered_shape(problem)), words.unusual_options(problem)
    query = {
        "kernel": problem.kernel,
        "shape": shape,
        "dtype": problem.dtype,
        "options": format_options(problem.options),
    }
    return {
        "shape": shape,
        "dtype": problem.dtype,
        "options": options,
        "history_path": address("/history", query),
        "cells": [_cell(cell, colour, query) for cell in row.cells],
    }


def _cell(cell: CellAnswer, colour: Colour, query: Mapping[str, str]) -> dict[str, Any]:
    asked = address("/ask", {**query, "device_model": cell.device_model})
    if cell.result is not None:
        return _result(cell.result, colour) | {
            "kind": "result",
            "ask_path": asked,
            "others": cell.environments - 1,
            "answered": "exact" if cell.is_usable else f"{MATCH_WORDS[cell.match]}: the source has changed",
            "device_model": cell.device_model,
        }
    if cell.failure is not None:
        return {
            "kind": "failed",
            "job_path": f"/jobs/{cell.failure.job_id}",
            "error": cell.failure.error or "nothing was measured",
            "ask_path": asked,
            "device_model": cell.device_model,
        }
    return {
        "kind": "open",
        "match": cell.match.value,
        "says": MATCH_WORDS[cell.match],
        "ask_path": asked,
        "device_model": cell.device_model,
    }


def _result(result: ResultAnswer, colour: Colour) -> dict[str, Any]:
    library = result.library
    ratio = {"library": library.speedup if library else None, "default": result.gain_over_default}.get(colour)
    name = roof_shade(result.roof_ratio) if colour == "roof" else shade(ratio)
    return {
        "shade": name,
        "sign": sign(name),
        "gflops": result.gflops,
        "gb_per_s": result.gb_per_s,
        "ratio": ratio,
        "library": library,
        "roof_ratio": result.roof_ratio,
        "time_ms": result.time_ms,
        "verified_at": result.verified_at,
        "study_path": f"/studies/{result.study_id}",
        "environment": result.environment,
        "stale": ", ".join(result.stale_because) if result.stale else None,
        "is_imported": result.environment.origin is not None,
    }


def columns(models: Sequence[DeviceModelAnswer], chosen: str | None) -> list[DeviceModelAnswer]:
    """The device models of the matrix, in the order of the cells."""
    return sorted(
        (model for model in models if chosen in (None, model.slug)), key=lambda model: (model.kind == "cpu", model.slug)
    )
