"""Numbers, times and problems as text: the filters of the templates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from markupsafe import Markup, escape

from tilewright.kernels.problem import Problem
from tilewright.service.operations.answers import EnvironmentAnswer, TunedFor
from tilewright.service.operations.catalog import options_that_differ, packed_input
from tilewright.service.operations.parse import format_options, format_shape
from tilewright.service.operations.registry import catalogue
from tilewright.tuner.loop.verify import C_DEFAULT

NOTHING = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"

_TIMES_MS = ((1e-6, "ns"), (1e-3, "µs"), (1.0, "ms"), (1e3, "s"))
_GFLOPS = ((1e-3, "MFLOP/s"), (1.0, "GFLOP/s"), (1e3, "TFLOP/s"), (1e6, "PFLOP/s"))
_GB_PER_S = ((1e-3, "MB/s"), (1.0, "GB/s"), (1e3, "TB/s"))
"""Units from the smallest, each in that of our figures."""

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

_AGES = ((60, 1, "s"), (3600, 60, "min"), (2 * 86400, 3600, "h"), (math.inf, 86400, "days"))
"""Units of ages: each for ages below its first number of seconds, with its own length in seconds and its name."""


def number(value: float | None) -> str:
    """Three significant digits; whole numbers from a hundred on, powers of ten from a thousand million on."""
    if value is None:
        return NOTHING
    if abs(value) >= 1e9 and math.isfinite(value):
        digits, _, power = f"{value:.2e}".partition("e+")
        return f"{digits}\N{NO-BREAK SPACE}{TIMES}\N{NO-BREAK SPACE}10{power.lstrip('0').translate(_RAISED)}"
    return f"{value:,.{decimals_of(value)}f}"


def decimals_of(value: float) -> int:
    """Decimals that show three significant digits of a value."""
    rounded = float(f"{value:.2e}")  # 0.9996 has the digits of 1.00
    return 0 if value == 0 else min(max(2 - math.floor(math.log10(abs(rounded))), 0), 9)


def time_column(values_ms: Iterable[float | None]) -> Callable[[float | None], str]:
    """A format for one column of times: unit and digits of the smallest, so that their points stand in line."""
    times_ms = [value for value in values_ms if value]
    size, unit = time_unit(times_ms)
    decimals = decimals_of(min(times_ms, default=1.0) / size)
    return lambda value: NOTHING if value is None else f"{value / size:,.{decimals}f}\N{NO-BREAK SPACE}{unit}"


def time_unit(values_ms: Iterable[float]) -> tuple[float, str]:
    """The unit in which the smallest of these times reads well, and its length in ms."""
    return _unit(min(values_ms, default=1.0), _TIMES_MS)


@lru_cache(maxsize=1 << 14)
def kernel_time(value_ms: float | None) -> str:
    """`89.4 µs`, `1.52 ms`: the time of a launch in the unit that suits it."""
    return _scaled(value_ms, _TIMES_MS)


def interval(bounds_ms: tuple[float, float]) -> str:
    """`179 to 248 µs`: the ends of an interval of times in the unit of the lower one."""
    size, unit = time_unit(bounds_ms)
    low, high = (number(bound / size) for bound in bounds_ms)
    return f"{low} to {high}\N{NO-BREAK SPACE}{unit}"


def arithmetic_rate(gflops: float | None) -> str:
    """A rate of operations, such as `910 GFLOP/s` or `51.1 TFLOP/s`."""
    return _scaled(gflops, _GFLOPS)


def bandwidth(gb_per_s: float | None) -> str:
    """A rate of bytes, such as `910 GB/s` or `3.35 TB/s`."""
    return _scaled(gb_per_s, _GB_PER_S)


def _scaled(value: float | None, units: Sequence[tuple[float, str]]) -> str:
    """Three digits and the unit, which no line break parts."""
    if value is None:
        return NOTHING
    size, unit = _unit(value, units)
    return f"{number(value / size)}\N{NO-BREAK SPACE}{unit}"


def _unit(value: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest unit that the value reaches, else the smallest; 0.9996 reaches it by rounding."""
    return next((pair for pair in reversed(units) if value >= 0.9995 * pair[0]), units[0])


@lru_cache(maxsize=1 << 14)
def ratio(value: float | None) -> str:
    """A ratio as the times sign and two decimals; two digits if it is small, no decimals if it is large."""
    if value is None:
        return NOTHING
    decimals = 0 if value >= 100 else 2 if value >= 0.1 else min(decimals_of(value) - 1, 9)
    return f"{TIMES}{value:,.{decimals}f}"


@lru_cache(maxsize=1 << 14)
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
    """A count with its noun, such as `1 trial` or `2 trials`."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def slower(ratio: float) -> str:
    """The excess of one time over another: `13 % slower`."""
    return f"{percent(ratio - 1)} slower"


def of_all(shown: int, total: int, noun: str) -> str:
    """`12 results`, or where not all are shown `the newest 300 of 1,200 results`."""
    return counted(total, noun) if shown >= total else f"the newest {shown:,} of {counted(total, noun)}"


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


def both_times(value: datetime | None) -> str:
    """A `time` element with the exact time in UTC, which the script of every page puts beside that of the browser."""
    if value is None:
        return NOTHING
    return Markup('<time datetime="{}" data-local>{}</time>').format(value.isoformat(), moment(value))


def age(value: datetime | None, now: datetime | None = None) -> str:
    """A `time` element: the distance from now, with the exact time as title; `times.js` keeps it up to date."""
    if value is None:
        return NOTHING
    seconds = ((now or datetime.now(UTC)) - value).total_seconds()
    _, unit_s, name = next(row for row in _AGES if abs(seconds) < row[0])
    length = f"{abs(seconds) // unit_s:.0f} {name}"
    words = f"{length} ago" if seconds >= 0 else f"in {length}"
    return Markup('<time datetime="{}" title="{}" data-age>{}</time>').format(value.isoformat(), moment(value), words)


def problem_text(problem: TunedFor) -> str:
    """`gemm m=256,n=100,k=784 float32 beta_zero=false`: axes in the kernel's order, options only where not default."""
    parts = (problem.kernel, shape_text(problem), problem.dtype, unusual_options(problem))
    return " ".join(part for part in parts if part)


def shape_text(problem: TunedFor | Problem) -> str:
    """`m=256,n=100,k=784`, as commands and addresses have it: axes in the kernel's order, none at its default."""
    return format_shape(ordered_shape(problem))


def ordered_shape(problem: TunedFor | Problem) -> dict[str, int | str]:
    """The shape in the order of the kernel's axes, which the database does not keep."""
    shape = problem.stated_shape if isinstance(problem, Problem) else problem.shape
    declared = catalogue().by_name.get(problem.kernel)
    order = declared.axis_names if declared else ()
    return {axis: shape[axis] for axis in (*(one for one in order if one in shape), *shape)}


def sort_key(problem: TunedFor | Problem) -> tuple[str, list[int], str]:
    """The key that sorts problems: the kernel, the sizes in the order of its axes, the type."""
    sizes = ordered_shape(problem).values()
    return problem.kernel, [int(str(size).rpartition("..")[2]) for size in sizes], problem.dtype


def sizes_text(problem: TunedFor | Problem) -> str:
    """The sizes with times signs between them, in the order of the kernel's axes; axes beyond those by name."""
    axes = _axes(problem)
    if not axes:
        return shape_text(problem).replace(",", ", ")
    shape = ordered_shape(problem)
    named = [f"{axis}={size}" for axis, size in shape.items() if axis not in axes]
    return ", ".join([f" {TIMES} ".join(str(shape[axis]) for axis in axes), *named])


def axes_text(problem: TunedFor | Problem) -> str:
    """The names of the axes as `sizes_text` orders them; empty where it names each axis."""
    return f" {TIMES} ".join(_axes(problem))


def _axes(problem: TunedFor | Problem) -> list[str]:
    declared = catalogue().by_name.get(problem.kernel)
    axes = list(declared.axes) if declared else []
    return axes if set(axes) <= set(problem.shape) else []


def unusual_options(problem: TunedFor | Problem) -> str:
    """The options that differ from their defaults, as text."""
    return format_options(options_that_differ(problem))


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
    """Whether the environment is a CPU's: it has neither a driver nor a toolkit."""
    return value.driver == "host"


def details(value: EnvironmentAnswer) -> str:
    """All facts of an environment."""
    toolkit = f"CUDA {value.toolkit}" if value.toolkit and not _is_host(value) else ""
    driver = f"driver {value.driver}" if value.driver and not _is_host(value) else ""
    compiler = f"{value.compiler} {value.compiler_version}"
    return ", ".join(part for part in (driver, toolkit, compiler, value.runtime, f"clocks {value.clocks}") if part)


LONGEST_WHOLE = 35
"""Characters of a problem's text that stay on one line in tables; conv2d's have more."""


def wrapping(text: str) -> Markup:
    """The text, with places to break a line behind its commas where it is long."""
    whole = escape(text)
    return whole if len(text) <= LONGEST_WHOLE else Markup(",<wbr>").join(whole.split(","))


_IDENTIFIER = re.compile(r"[A-Za-z]{0,8}-?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""A UUID, also with what drivers put in front of it: `GPU-`, `MIG-`."""


def whole_identifiers(text: str) -> Markup:
    """The text, with UUIDs in it that no line break parts."""
    found = list(_IDENTIFIER.finditer(text))
    ends = [0, *(match.end() for match in found)]
    parts = (
        escape(text[end : match.start()]) + Markup('<span class="name">{}</span>').format(match[0])
        for end, match in zip(ends, found, strict=False)
    )
    return Markup("").join([*parts, escape(text[ends[-1] :])])


def place_text(place: str) -> str:
    """`device 0 on gpu-host` for the place `0 of gpu-host`."""
    return f"device {place.replace(' of ', ' on ', 1)}"


MOST_TIMES_ALLOWED = 1_000
"""Larger errors are told apart by nobody: a library in TF32 where FP32 was asked for may be off by any number."""


def of_allowed(bound_ratio: float) -> str:
    """`26 % of the allowed error`: an error over its bound, as a share of what still counts as right."""
    if bound_ratio > MOST_TIMES_ALLOWED * C_DEFAULT:
        return f"over {MOST_TIMES_ALLOWED:,} times the allowed error"
    return f"{percent(bound_ratio / C_DEFAULT)} of the allowed error"


FILTERS: Mapping[str, Callable[..., Any]] = {
    "number": number,
    "kernel_time": kernel_time,
    "interval": interval,
    "place": place_text,
    "of_allowed": of_allowed,
    "slower": slower,
    "arithmetic_rate": arithmetic_rate,
    "bandwidth": bandwidth,
    "ratio": ratio,
    "percent": percent,
    "count": count,
    "counted": counted,
    "duration": duration,
    "binary_size": binary_size,
    "moment": moment,
    "age": age,
    "both_times": both_times,
    "problem": problem_text,
    "packed_input": packed_input,
    "wrapping": wrapping,
    "whole_identifiers": whole_identifiers,
    "environment": environment,
    "environment_details": details,
    "side": lambda text: text.replace("in a", "in A").replace("in b", "in B"),
    "kind": lambda kind: {"improvable": "untried variants"}.get(kind, kind),
    "words": lambda text: text.replace("_", " "),
}
