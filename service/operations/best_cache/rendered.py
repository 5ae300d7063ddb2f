"""Renders answers from memory as JSON: what many rows share once, a row's own figures for each answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from typing import Any

from pydantic_core import to_json

from tilewright.kernels.kernel import Launch
from tilewright.kernels.problem import OptionValue, Problem
from tilewright.kernels.space import Values
from tilewright.service.operations.answers import Match
from tilewright.service.operations.best.answer import BestQuery, stored_fields
from tilewright.service.operations.best.stored import StoredBest
from tilewright.service.operations.best_cache.packed import FIGURES
from tilewright.service.operations.catalog import compiler_flags
from tilewright.service.operations.staleness.standing import Standing

KEPT = 4096
"""How many templates of 2 or 3 kB are kept: one for each configuration, environment and standing in use."""

Kind = tuple[str, str, tuple[tuple[str, OptionValue], ...]]
"""A kernel's name, a dtype, and every option with its value."""

_MARK = re.compile(rb'"\\u0000(\d+)\\u0000"|\\u0000(\d+)\\u0000')


@dataclass(frozen=True)
class Template:
    """An answer with placeholders for the requested sizes, tuned sizes, launch, figures and device model."""

    text: bytes  # for bytes' own `%`
    picked: Callable[[Sequence[Any]], tuple[Any, ...]]
    launch: Callable[[Values, Problem], Launch]
    values: Values

    def filled(self, problem: Problem, sizes: Sequence[int], figures: Sequence[Any], device_model: bytes) -> bytes:
        """The answer. `sizes`: of the axes as they were asked for, then those of the tuned problem."""
        launch = self.launch(self.values, problem)
        # Numbers and a moment: none holds a comma.
        own = to_json(figures, inf_nan_mode="null")[1:-1].split(b",")
        return self.text % self.picked((*sizes, *launch.grid, *launch.block, launch.shared_bytes, *own, device_model))


class Templates:
    """The templates of one process; safe for several threads."""

    def __init__(self) -> None:
        self._kept: dict[Kind, dict[Hashable, Template]] = {}

    def of(self, kind: Kind) -> dict[Hashable, Template]:
        """The templates of a kernel, dtype and options, which the caller may add to by `keep`."""
        return self._kept.setdefault(kind, {})

    def forget(self, kernel: str) -> None:
        """Drops the templates of this kernel, which has changed."""
        for kind in [kind for kind in self._kept if kind[0] == kernel]:
            del self._kept[kind]

    def __len__(self) -> int:
        return sum(len(kept) for kept in list(self._kept.values()))


def keep(kept: dict[Hashable, Template], key: Hashable, template: Template) -> Template:
    """The template, kept from here on under this key."""
    if len(kept) >= KEPT:
        kept.clear()  # so rare that what is still needed may well be made again
    kept[key] = template
    return template


def template(asked: BestQuery, match: Match, best: StoredBest, standing: Standing) -> Template:
    """The template of the answer for these, and of all answers that differ from it only in the placeholders."""
    marked, first_figure = _marked(asked, match, best, standing)
    order: list[int] = []

    def placed(found: re.Match[bytes]) -> bytes:
        order.append(int(found[1] or found[2]))
        return b"%d" if order[-1] < first_figure else b"%b"

    text = _MARK.sub(placed, to_json(marked).replace(b"%", b"%%"))
    configuration = best.configuration
    launch = asked.kernel.variant(configuration.variant).launch
    return Template(text, itemgetter(*order), launch, configuration.values)


def _marked(asked: BestQuery, match: Match, best: StoredBest, standing: Standing) -> tuple[dict[str, Any], int]:
    """The answer's fields with a numbered mark for each placeholder, and the number of the first figure."""
    marks: Iterator[str] = (f"\0{number}\0" for number in count())  # PostgreSQL keeps no text with such a character
    kernel, problem = asked.kernel, asked.problem
    fields = stored_fields(asked, best, match, standing)
    sizes = tuple((axis, next(marks)) for axis in kernel.axes)
    like: Any = Problem(problem.kernel, sizes, problem.dtype, problem.option_items)  # type: ignore[arg-type]
    fields |= {"problem": like.as_json(), "flags": compiler_flags(kernel, like, best.configuration)}
    tuned = {axis: next(marks) for axis in kernel.axes}
    if fields["tuned_problem"] is not None:
        fields["tuned_problem"] |= {"shape": tuned}
    grid, block = [next(marks) for _ in range(3)], [next(marks) for _ in range(3)]
    fields["launch"] = {"grid": grid, "block": block, "shared_bytes": next(marks)}
    first_figure = 2 * len(kernel.axes) + 7
    of = dict(zip((*FIGURES, "device_model"), marks, strict=False))
    fields |= {name: of[name] for name in fields if name in of}
    fields["ci_ms"] = (of["ci_low_ms"], of["ci_high_ms"])
    if fields["library"] is not None:
        own = {"time_ms": of["library_ms"], "speedup": of["library_speedup"], "faster": of["library_faster"]}
        fields["library"] |= own | {"bound_ratio": of["library_bound_ratio"]}
    return fields, first_figure
