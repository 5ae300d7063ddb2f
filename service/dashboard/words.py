"""Numbers, times and problems as text: the filters of the templates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from tilewright.kernels.problem import Problem
from tilewright.service.operations.answers import EnvironmentAnswer, ProblemAnswer
from tilewright.service.operations.parse import format_options, format_shape
from tilewright.service.operations.registry import catalogue

NOTHING = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"

_AGES = ((60, 1, "s"), (3600, 60, "min"), (2 * 86400, 3600, "h"), (math.inf, 86400, "days"))
"""For ages below the first number of seconds: the unit in seconds, and its name."""


def number(value: float | None) -> str:
    """Three significant digits without an exponent; whole numbers from a hundred on."""
    if value is None:
        return NOTHING
    return f"{value:,.{decimals_of(value)}f}"


def decimals_of(value: float) -> int:
    """Decimals that show three significant digits of a value."""
    return 0 if value == 0 else min(max(2 - math.floor(math.log10(abs(value))), 0), 9)


def column(values: Iterable[float | None]) -> Callable[[float | None], str]:
    """A format for one column, so that its points stand below each other: three digits of its smallest value."""
    decimals = max((decimals_of(value) for value in values if value), default=2)
    return lambda value: NOTHING if value is None else f"{value:,.{decimals}f}"


def ratio(value: float | None) -> str:
    """A ratio as the times sign and two decimals; two digits if it is small, no decimals if it is large."""
    if value is None:
        return NOTHING
    decimals = 0 if value >= 100 else 2 if value >= 0.1 else min(decimals_of(value) - 1, 9)
    return f"{TIMES}{value:,.{decimals}f}"


def percent(value: float | None) -> str:
    """A share of one, in per cent: whole ones, one decimal below ten, two below a half."""
    if value is None:
        return NOTHING
    decimals = 2 if value < 0.005 else 1 if value < 0.1 else 0
    return f"{value * 100:.{decimals}f}\N{NO-BREAK SPACE}%"


def count(value: int | None) -> str:
    """A whole number with its thousands apart."""
    return NOTHING if value is None else f"{value:,}"


def counted(value: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """`4.2 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds is None:
        return NOTHING
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def binary_size(size: int | None) -> str:
    """Bytes as KiB, MiB or GiB."""
    if size is None:
        return NOTHING
    power = min(int(math.log2(size) // 10), 3) if size else 0
    return f"{size / 1024**power:.{0 if power == 0 else 1}f} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"


def moment(value: datetime | None) -> str:
    """The exact time, in UTC."""
    return NOTHING if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def age(value: datetime | None, now: datetime | None = None) -> str:
    """A `time` element: how long ago or in how long, with the exact time as title."""
    if value is None:
        return NOTHING
    seconds = ((now or datetime.now(UTC)) - value).total_seconds()
    _, unit_s, name = next(row for row in _AGES if abs(seconds) < row[0])
    length = f"{abs(seconds) // unit_s:.0f} {name}"
    words = f"{length} ago" if seconds >= 0 else f"in {length}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(value.isoformat(), moment(value), words)


def problem_text(problem: ProblemAnswer) -> str:
    """`gemm m=256,n=100,k=784 float32 beta_zero=false`: axes in the kernel's order, options only where not default."""
    parts = (problem.kernel, format_shape(ordered_shape(problem)), problem.dtype, unusual_options(problem))
    return " ".join(part for part in parts if part)


def ordered_shape(problem: ProblemAnswer | Problem) -> dict[str, int]:
    """The shape in the order of the kernel's axes, which the database does not keep."""
    declared = catalogue().by_name.get(problem.kernel)
    axes = [axis for axis in declared.axes if axis in problem.shape] if declared else []
    return {axis: problem.shape[axis] for axis in [*axes, *(a for a in problem.shape if a not in axes)]}


def unusual_options(problem: ProblemAnswer | Problem) -> str:
    """The options that differ from their defaults, as text."""
    declared = catalogue().by_name.get(problem.kernel)
    usual = {option.name: option.default for option in declared.options} if declared else {}
    return format_options({name: value for name, value in problem.options.items() if usual.get(name) != value})


def configuration(kernel: str, variant: str, values: Mapping[str, int]) -> str:
    """`TILE_M=64 TILE_N=32`, in the order of the declaration, which the database does not keep."""
    declared = catalogue().by_name.get(kernel)
    variants = {v.name: v for v in declared.variants} if declared else {}
    order = [p.name for p in variants[variant].parameters if p.name in values] if variant in variants else []
    names = [*order, *(name for name in values if name not in order)]
    return " ".join(f"{name}={values[name]}" for name in names)


def environment(value: EnvironmentAnswer | None) -> str:
    """Driver and compiler on one line, and the toolkit if its version differs; a CPU has no driver."""
    if value is None:
        return NOTHING
    toolkit = "" if value.toolkit == value.compiler_version or _is_host(value) else value.toolkit
    named = (
        ("driver", "" if _is_host(value) else value.driver),
        ("CUDA", toolkit),
        (value.compiler, value.compiler_version),
    )
    return ", ".join(f"{name} {version}" for name, version in named if version)


def _is_host(value: EnvironmentAnswer) -> bool:
    """Whether it is a CPU's, which has neither a driver nor a toolkit."""
    return value.driver == "host"


def details(value: EnvironmentAnswer) -> str:
    """All facts of an environment."""
    toolkit = f"CUDA {value.toolkit}" if value.toolkit and not _is_host(value) else ""
    driver = f"driver {value.driver}" if value.driver and not _is_host(value) else ""
    compiler = f"{value.compiler} {value.compiler_version}"
    return ", ".join(part for part in (driver, toolkit, compiler, value.runtime, f"clocks {value.clocks}") if part)


FILTERS: Mapping[str, Callable[..., Any]] = {
    "number": number,
    "ratio": ratio,
    "percent": percent,
    "count": count,
    "counted": counted,
    "duration": duration,
    "binary_size": binary_size,
    "moment": moment,
    "age": age,
    "problem": problem_text,
    "environment": environment,
    "environment_details": details,
    "side": lambda text: text.replace("in a", "in A").replace("in b", "in B"),
    "words": lambda text: text.replace("_", " "),
}
