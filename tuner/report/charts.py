"""Charts as SVG text, drawn here: no script, no request, colours from the page's style so that dark pages work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 430
_LEFT, _RIGHT, _TOP = 64, 16, 12
_LEGEND_ROW = 18
_LONG_NAME = 20  # characters; names that are longer have a third of the width each, others a quarter
_SHAPES = ("circle", "square", "up", "diamond", "down", "cross", "plus", "bar", "right", "left")


@dataclass(frozen=True)
class Point:
    """A value at a place, and what is said when the pointer rests on it."""

    x: float
    y: float
    said: str = ""


@dataclass(frozen=True)
class Series:
    """Points of one name. `slot` gives colour and mark, the same in every chart of a page; without marks it is a line
    with its name written at its end.
    """

    name: str
    slot: int
    points: Sequence[Point]
    has_line: bool = True
    has_marks: bool = True


@dataclass(frozen=True)
class Chart:
    """A picture of series over one x axis; axis titles say the unit and which way is better."""

    title: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    x_by: int = 2  # ticks are powers of it
    y_by: int = 10
    marked_x: Sequence[tuple[float, str]] = field(default=())

    def svg(self) -> str:
        """The chart as SVG."""
        columns = self._columns()
        rows = -(-len(self._named()) // columns)
        bottom = HEIGHT - 44 - rows * _LEGEND_ROW
        points = [point for one in self.series for point in one.points]
        x = log_axis([p.x for p in points] + [at for at, _ in self.marked_x], _LEFT, WIDTH - _RIGHT, by=self.x_by)
        y = log_axis([p.y for p in points], bottom, _TOP, by=self.y_by)
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_quoted(self.title)}">',
            *self._frame(x, y, bottom),
            *self._marked(x, bottom),
            *(part for one in self.series for part in _drawn(one, x, y)),
            *self._legend(bottom, columns),
            "</svg>",
        ]
        return "\n".join(parts)

    def _named(self) -> list[Series]:
        return [one for one in self.series if one.has_marks]

    def _columns(self) -> int:
        return 3 if any(len(one.name) > _LONG_NAME for one in self._named()) else 4

    def _frame(self, x: Axis, y: Axis, bottom: float) -> Iterator[str]:
        for tick in y.ticks:
            at = y.place(tick)
            yield f'<path class="grid" d="M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}"/>'
            yield f'<text class="tick end" x="{_LEFT - 6}" y="{at + 4:.1f}">{tick_text(tick)}</text>'
        for tick in x.ticks:
            at = x.place(tick)
            yield f'<path class="grid" d="M{at:.1f} {_TOP}V{bottom}"/>'
            yield f'<text class="tick mid" x="{at:.1f}" y="{bottom + 16}">{tick_text(tick)}</text>'
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        yield f'<text class="name mid" x="{middle}" y="{bottom + 34}">{escape(self.x_title)}</text>'
        height = (_TOP + bottom) / 2
        yield f'<text class="name mid" transform="translate(14 {height}) rotate(-90)">{escape(self.y_title)}</text>'

    def _marked(self, x: Axis, bottom: float) -> Iterator[str]:
        for place, (value, said) in enumerate(self.marked_x):
            at = x.place(value)
            yield f'<path class="mark" d="M{at:.1f} {_TOP}V{bottom}"/>'
            # Near the right edge the words stand on the other side of the line.
            side, shift = ("end", -5) if at > WIDTH * 0.7 else ("start", 5)
            yield f'<text class="tick {side}" x="{at + shift:.1f}" y="{bottom - 8 - 14 * place}">{escape(said)}</text>'

    def _legend(self, bottom: float, columns: int) -> Iterator[str]:
        step = (WIDTH - _LEFT - _RIGHT) / columns
        for place, one in enumerate(self._named()):
            left = _LEFT + place % columns * step
            top = bottom + 52 + place // columns * _LEGEND_ROW
            if one.has_line:
                yield f'<path class="line s{one.slot}" d="M{left:.1f} {top}h22"/>'
            yield f'<path class="dot s{one.slot}" d="{_shape(one.slot, left + 11, top)}"/>'
            yield f'<text class="tick" x="{left + 28:.1f}" y="{top + 4}">{escape(one.name)}</text>'


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, a line each: name, value, what stands behind it, colour."""

    title: str
    bars: Sequence[tuple[str, float, str, int]]

    def svg(self) -> str:
        """The picture; longer is better."""
        height, left = 26, 190
        widest = max((value for _, value, _, _ in self.bars), default=1.0) or 1.0
        room = WIDTH - left - 150
        box = f"0 0 {WIDTH} {height * len(self.bars) + 8}"
        parts = [f'<svg viewBox="{box}" role="img" aria-label="{_quoted(self.title)}">']
        for place, (name, value, said, slot) in enumerate(self.bars):
            top, length = place * height + 4, max(1.0, room * value / widest)
            parts += [
                f'<text class="tick end" x="{left - 8}" y="{top + 15}">{escape(name)}</text>',
                f'<rect class="fill s{slot}" x="{left}" y="{top + 2}" width="{length:.1f}" height="{height - 8}"/>',
                f'<text class="tick" x="{left + length + 6:.1f}" y="{top + 15}">{escape(said)}</text>',
            ]
        return "\n".join([*parts, "</svg>"])


def _drawn(one: Series, x: Axis, y: Axis) -> Iterator[str]:
    places = [(x.place(p.x), y.place(p.y), p.said) for p in one.points]
    if one.has_line and len(places) > 1:
        path = "L".join(f"{across:.1f} {down:.1f}" for across, down, _ in places)
        yield f'<path class="line s{one.slot}" d="M{path}"/>'
    if not one.has_marks and places:
        across, down, _ = places[-1]
        yield f'<text class="tick end" x="{across:.1f}" y="{down - 6:.1f}">{escape(one.name)}</text>'
    for across, down, said in places if one.has_marks else ():
        title = f"<title>{escape(said)}</title>" if said else ""
        yield f'<path class="dot s{one.slot}" d="{_shape(one.slot, across, down)}">{title}</path>'


def _shape(slot: int, x: float, y: float) -> str:
    """A mark's outline, so that series differ without colour."""
    r = 3.6
    outlines = {
        "circle": f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0",
        "square": f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}z",
        "up": f"M{x:.1f} {y - r - 1:.1f}l{r + 1} {2 * r}h{-2 * r - 2}z",
        "down": f"M{x:.1f} {y + r + 1:.1f}l{r + 1} {-2 * r}h{-2 * r - 2}z",
        "diamond": f"M{x:.1f} {y - r - 1:.1f}l{r + 1} {r + 1}l{-r - 1} {r + 1}l{-r - 1} {-r - 1}z",
        "right": f"M{x + r + 1:.1f} {y:.1f}l{-2 * r} {r + 1}v{-2 * r - 2}z",
        "left": f"M{x - r - 1:.1f} {y:.1f}l{2 * r} {r + 1}v{-2 * r - 2}z",
        "cross": f"M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}",
        "plus": f"M{x - r:.1f} {y:.1f}h{2 * r}M{x:.1f} {y - r:.1f}v{2 * r}",
        "bar": f"M{x - r:.1f} {y - 1.2:.1f}h{2 * r}v2.4h{-2 * r}z",
    }
    return outlines[_SHAPES[slot % len(_SHAPES)]]


def _quoted(text: str) -> str:
    return escape(text, {'"': "&quot;"})


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` laid out by logarithm from `start` to `end`, in the picture's units."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Where the value lies; raises ValueError for one that is not above zero."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)


def log_axis(values: Iterable[float], start: float, end: float, *, by: int = 10) -> Axis:
    """From the power of `by` at or below the least value to that at or above the greatest."""
    known = [value for value in values if value > 0] or [1.0]
    low = math.floor(round(math.log(min(known), by), 9))
    high = max(math.ceil(round(math.log(max(known), by), 9)), low + 1)
    every = max(1, -(-(high - low) // 8))
    ticks = tuple(float(by) ** exponent for exponent in range(low, high + 1, every))
    return Axis(float(by) ** low, float(by) ** high, start, end, ticks=ticks)


def tick_text(value: float) -> str:
    """Short: 0.001, 20, 10k, 2M."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= factor:
            return f"{value / (1e3 if letter == 'k' else factor):g}{letter}"
    return f"{value:g}" if value == 0 or abs(value) >= 1e-4 else f"{value:.0e}".replace("e-0", "e-")
