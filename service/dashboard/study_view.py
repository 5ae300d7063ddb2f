"""The page of a study as data: the chosen variant and parameters, and the charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.service.dashboard.charts import parameters as parameter_charts
from tilewright.service.dashboard.charts import study as study_charts
from tilewright.service.dashboard.charts.parts import Level
from tilewright.service.operations.answers import StudyAnswer
from tilewright.service.operations.best.results import ResultAnswer
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.studies.importance import ParameterCounts, Uncertainty
from tilewright.service.operations.studies.space import TIME, Fastest, Search, Selection

ENOUGH_TRIALS = 8
"""Trials of a variant from which its parameters are worth drawing."""


@dataclass(frozen=True)
class Choice:
    """The variant and parameters that the address names; None where it names none."""

    variant: str | None = None
    across: str | None = None
    up: str | None = None
    slice: str | None = None
    x: str | None = None
    y: str | None = None
    colour: str | None = None


@dataclass(frozen=True)
class Parameters:
    """A variant's parameters: the values on their axes, how much each matters, what each means, which are drawn."""

    values: Mapping[str, Sequence[int]]
    shares: Mapping[str, float]
    uncertainty: Uncertainty | None
    measured: int
    meanings: Mapping[str, str]
    across: str | None
    up: str | None
    slice_by: str | None

    @classmethod
    def of(cls, counts: ParameterCounts, kernel: str, variant: str, choice: Choice, *, is_live: bool) -> Parameters:
        """The chosen parameters are drawn; without a choice, those that matter most.

        In a live study an axis has every declared value from the beginning, so that none moves.
        """
        declared = catalogue().by_name.get(kernel)
        own = {p.name: p for v in declared.variants if v.name == variant for p in v.parameters} if declared else {}
        occurring = {name: list(of) for name, of in counts.by_value.items()}
        if is_live and set(occurring) <= set(own):
            occurring = {name: sorted({*p.values, *occurring.get(name, ())}) for name, p in own.items()}
        names = [*(n for n in own if n in occurring), *(n for n in occurring if n not in own)]
        values = {name: occurring[name] for name in names if len(occurring[name]) > 1}
        shares = counts.shares()
        ranked = list(dict.fromkeys([*shares, *values]))
        first = ranked[0] if ranked else None
        second = ranked[1] if len(ranked) > 1 else None
        return cls(
            values,
            shares,
            counts.uncertainty(),
            counts.measured,
            {name: own[name].doc for name in names if name in own and own[name].doc},
            choice.across or first,
            choice.up or second,
            choice.slice or first,
        )

    def grouped(self) -> list[str]:
        """The parameters of slice and heat map, each once, without names that no trial has."""
        return [
            name
            for name in dict.fromkeys((self.across, self.up, self.slice_by))
            if name is not None and name in self.values
        ]


def chosen_variant(search: Search | None, chosen: str | None) -> str | None:
    """The variant to draw: the chosen one, else the winner's if it has enough trials, else the most tried."""
    if search is None or chosen in search.variants:
        return chosen if search else None
    winner = search.improvements[-1].variant if search.improvements else None
    if winner is not None and search.variants[winner].trials >= ENOUGH_TRIALS:
        return winner
    return max(search.variants, key=lambda name: search.variants[name].trials)


def levels(settled: ResultAnswer | None) -> list[Level]:
    """The library's and the default's time, where finals measured them."""
    if settled is None:
        return []
    lines = [Level("library", settled.library.time_ms, "--series-3")] if settled.library else []
    if settled.gain_over_default:
        lines.append(Level("default", settled.time_ms * settled.gain_over_default, "--series-4", "dotted"))
    return lines


def charts(
    found: StudyAnswer,
    search: Search | None,
    variant: str | None,
    parameters: Parameters | None,
    fastest: Sequence[Fastest],
    *,
    selection: Selection,
    choice: Choice,
    lines: Sequence[Level],
) -> dict[str, Any]:
    """The charts by name; None for those that have nothing to show."""
    failures = [outcome for outcome in found.outcomes if outcome != "measured"]
    drawn: dict[str, Any] = {
        "by_trial": study_charts.best_so_far(search, "trial", failures, lines),
        "by_time": study_charts.best_so_far(search, "spent", failures, lines),
    }
    if search is None or variant is None or parameters is None:
        return drawn
    of, values = search.variants[variant], parameters.values
    across, up, slice_by = parameters.across, parameters.up, parameters.slice_by
    fields = [*values, *parameter_charts.NUMBERS]
    x, y, colour = _free(choice, [*parameters.shares, *values], fields)
    return drawn | {
        "parallel": parameter_charts.parallel(of, values, selection),
        "importance": parameter_charts.importance(parameters.shares, parameters.uncertainty),
        "slice": parameter_charts.slice_of(of, fastest, slice_by, values, lines) if slice_by else None,
        "heat": parameter_charts.heat_map(fastest, across, up, values) if across and up else None,
        "free": parameter_charts.free_axes(of, x, y, colour, values, lines),
        "fields": {name: parameter_charts.NUMBERS.get(name, name) for name in fields},
        "x": x,
        "y": y,
        "colour": colour,
    }


def _free(choice: Choice, ranked: Sequence[str], fields: Sequence[str]) -> tuple[str, str, str]:
    """x, y and colour: those chosen; else the time over the parameter that matters second, coloured by the first."""
    first, second = [*dict.fromkeys(ranked), "trial", "trial"][:2]
    return _known(choice.x, fields, second), _known(choice.y, fields, TIME), _known(choice.colour, fields, first)


def _known(name: str | None, fields: Sequence[str], otherwise: str) -> str:
    return name if name is not None and name in fields else otherwise


def as_drawn(variant: str | None, parameters: Parameters | None, charts: Mapping[str, Any]) -> dict[str, str | None]:
    """The choice that draws the same again, whatever is measured meanwhile."""
    if parameters is None:
        return {}
    grouped = {"across": parameters.across, "up": parameters.up, "slice": parameters.slice_by}
    return {"variant": variant, **grouped, **{name: charts[name] for name in ("x", "y", "colour")}}
