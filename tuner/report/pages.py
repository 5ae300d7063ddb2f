"""The report's findings in sentences, and its files: a page of Markdown, and all numbers as JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import jinja2

from tilewright.tuner.report import tables
from tilewright.tuner.report.rows import LadderReport, StepRow, crossings, ratios
from tilewright.tuner.report.tables import Table, number, shape_text

_PREDICTED = (
    "Loads from global memory are predicted from a step's tiles, 2 m n k numbers over the tile's width: 1/TILE_WIDTH "
    "of what it takes without tiles, where tiles are square."
)
_USED_ONCE = "A matrix that is used once cannot be shared by tiles: what can be saved is asking for more than it has."


@dataclass(frozen=True)
class Section:
    """A table with its heading and what has to be said about it."""

    title: str
    text: str
    table: Table


def files(report: LadderReport) -> Mapping[str, str]:
    """The text of each file by its name."""
    return {
        f"{report.kernel}.md": _page(report),
        f"{report.kernel}.json": json.dumps(report.as_json(), indent=1) + "\n",
    }


def write(report: LadderReport, folder: Path) -> list[Path]:
    """Writes the files, each whole or not at all: they are made beside the folder's own and then put in place."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as made:
        for name, text in files(report).items():
            (Path(made) / name).write_text(text, encoding="utf-8")
        return [(Path(made) / name).replace(folder / name) for name in files(report)]


def _page(report: LadderReport) -> str:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)  # noqa: S701 - Markdown
    return environment.get_template("page.md.j2").render(
        report=report,
        title=title_of(report),
        findings=findings(report),
        reasons=reasons(report),
        protocol=protocol(report),
        sections=[*_sections(report), *_details(report)],
        number=tables.number,
    )


def _sections(report: LadderReport) -> list[Section]:
    steps = [step for step in report.steps if step.time is not None]
    found = [
        Section(
            "Results",
            "Peaks are those of the units that a step uses: for tensor cores with numbers in two parts, half of their "
            "TF32 peak. GB/s counts compulsory bytes: each input read once, the output written once. Error: the worst "
            "over all outputs and kinds of inputs, 2 is the most that is let pass.",
            tables.table(tables.RESULTS, steps, report),
        )
    ]
    moved = [step for step in steps if step.moves is not None]
    if moved:
        found.append(
            Section(
                "Allocation and transfers",
                "Wall time of allocating all arrays on the device, uploading the inputs from pageable memory, and "
                "bringing the output back; the last column adds one launch to both transfers.",
                tables.table(tables.MOVES, moved, report),
            )
        )
    here = [step for step in steps if step.place in {"device", "library"}]
    if here:
        text = _PREDICTED if report.unit == "gflops" else _USED_ONCE
        found.append(Section("Bytes moved", text, tables.table(tables.TRAFFIC, here, report)))
    return found


def _details(report: LadderReport) -> list[Section]:
    found = [
        Section(
            "Configurations",
            "What was launched, and how it was chosen.",
            tables.table(
                tables.REMARKS, [step for step in report.steps if step.configuration or step.left_out], report
            ),
        )
    ]
    if report.sweep:
        found.append(Section("Step over step, by size", "Times as fast.", tables.ratio_table(report)))
        text = f"{' = '.join(report.swept)}; other sizes as in the first table."
        found.append(Section("Every size", text, tables.table(tables.SWEEP, report.sweep, report)))
    if report.rectangles:
        text = "Each axis in turn an eighth of the others; configurations chosen as in the sweep."
        found.append(Section("Rectangular shapes", text, tables.table(tables.SWEEP, report.rectangles, report)))
    return found


def findings(report: LadderReport) -> list[str]:
    """The main findings, in a few lines."""
    sentences = [*_fastest(report), *_climb(report), *_short(report)]
    return [*sentences, *_crossings(report), *_compared(report)]


def reasons(report: LadderReport) -> list[tuple[str, str]]:
    """Per step, why it should be faster and whether it was, so that the text agrees with the table."""
    return [(step.name, " ".join([step.reason, *_measured(report, step)])) for step in report.steps]


def _measured(report: LadderReport, step: StepRow) -> Iterator[str]:
    before = _before(report, step)
    if before is None or before.time is None or step.time is None:
        return
    ratio = (_ms(before) / before.work.amount) / (_ms(step) / step.work.amount)  # for the same work, if sizes differ
    same = before.time.low_ms <= step.time.high_ms and step.time.low_ms <= before.time.high_ms
    if same and step.work == before.work:
        yield f"Measured: as fast as {before.name}, within the noise."
    elif ratio >= 1:
        yield f"Measured: {number(ratio)} times as fast as {before.name}."
    else:
        so = "Measured:" if step.than else "Here it is not so:" if step.place == "device" else "Here"
        why = ", on one thread of a CPU, where what a GPU gains by it is not there" if report.kind == "cpu" else ""
        yield f"{so} it takes {number(1 / ratio)} times as long as {before.name}{'' if step.than else why}."


def _before(report: LadderReport, step: StepRow) -> StepRow | None:
    """The step that a step is compared with: the one it names, the one before it, or for the library the fastest."""
    timed = [s for s in report.steps if s.time is not None]
    if step.than:
        return next((s for s in timed if s.key == step.than), None)
    alike = [s for s in timed if s.key != step.key and s.shape == step.shape and s.dtype == step.dtype and not s.than]
    if step.place == "library":
        return min((s for s in alike if s.place == "device"), key=_ms, default=None)
    kind = {"device"} if step.place == "device" else {"loop", "blas"}
    keys = [s.key for s in report.steps]
    earlier = [s for s in alike if s.place in kind and keys.index(s.key) < keys.index(step.key)]
    return earlier[-1] if earlier else None


def _short(report: LadderReport) -> Iterator[str]:
    short = [f"{step.title} ({step.chosen.partition(': ')[2]})" for step in report.steps if step.is_short]
    if short:
        yield (
            f"Searched too little to stand for what it can do: {', '.join(short)}. Tune the problem first "
            "(tilewright tune): a report takes what is known to be best."
        )


def _fastest(report: LadderReport) -> Iterator[str]:
    rungs = [s.key for s in report.steps if s.place == "device" and not s.than]
    # A ladder of one rung is the default configuration and what is compared with it.
    steps = [s for s in _timed_steps(report) if s.key in rungs or len(rungs) == 1]
    if not steps:
        return
    best = min(steps, key=_ms)
    rate = f"{number(best.gflops)} GFLOP/s" if report.unit == "gflops" else f"{number(best.gb_per_s)} GB/s"
    text = f"At {shape_text(best.shape)} the fastest step is {best.name}: {number(_ms(best))} ms, {rate}"
    library = next((s for s in report.steps if s.place == "library" and s.time is not None), None)
    if library is not None:
        text += f", {number(_ms(library) / _ms(best))} times as fast as the library"
    yield text + "."


def _climb(report: LadderReport) -> Iterator[str]:
    steps = [s for s in _timed_steps(report) if not s.than]
    if len(steps) > 1:
        gains = (f"{b.title} {number(_ms(a) / _ms(b))}" for a, b in pairwise(steps))
        yield f"Each step in times of the one before it: {', '.join(gains)}."


def _crossings(report: LadderReport) -> Iterator[str]:
    if report.kind != "cuda":
        return
    titles, smallest = report.titles(), min((row.size for row in report.sweep), default=0)
    for key in ("cpu_loop", "cpu_blas"):
        if not report.series(key):
            continue
        words = []
        for transfers, said in ((False, "launches alone"), (True, "with transfers in and out")):
            at = crossings(report, key, transfers=transfers)
            never = "nowhere, as moving the inputs takes longer than all of it there" if transfers else "nowhere"
            where = never if at is None else f"from {at:.0f} on" if at > smallest else "at every size"
            words.append(f"{said}, {where}")
        yield f"The device is faster than {titles[key]}: {'; '.join(words)}."


def _compared(report: LadderReport) -> Iterator[str]:
    titles = report.titles()
    for first, second in report.compared:
        by_size = ratios(report, first, second)
        if by_size:
            most, least = max(by_size, key=lambda one: one[1]), min(by_size, key=lambda one: one[1])
            yield (
                f"{titles[second]} over {titles[first]}: from {number(least[1])} times as fast (at {least[0]}) "
                f"to {number(most[1])} (at {most[0]})."
            )


def title_of(report: LadderReport) -> str:
    """The report's title, such as "gemm, step by step, on NVIDIA H200"."""
    where = report.device if report.kind == "cuda" else f"the CPU ({report.device}, one thread)"
    return f"{report.kernel}, step by step, on {where}"


_VERIFIED = (
    "Every step was held against a float64 reference, component by component, with every kind of inputs before it was "
    "timed. The host's loop is timed in CPU seconds of its thread, BLAS by the clock, both by themselves and "
    "checked on their first 32 rows. In the sweep a step with many configurations has, at each size, one that is "
    "known, or the fastest of a few: the table's, its authors', and some drawn at random."
)
_VERIFIED_OWN = (
    "Every step's results were verified as a tuning job verifies them, with every kind of inputs, before it was timed."
)


def protocol(report: LadderReport) -> str:
    """How the numbers were measured."""
    l2 = "a cold L2 cache" if report.l2 == "cold" else "a warm L2 cache"
    times = (
        "GPU time by events" if report.kind == "cuda" else "CPU seconds of one thread, never to be ranked with a GPU's"
    )
    return (
        f"Medians of rounds in which the steps take turns, with the 95 % interval of the median; {times}; {l2}. "
        f"{_VERIFIED if any(step.place == 'loop' for step in report.steps) else _VERIFIED_OWN}"
    )


def _timed_steps(report: LadderReport) -> list[StepRow]:
    here = [s for s in report.steps if s.place == "device"]
    return [s for s in here if s.time is not None and s.dtype == here[0].dtype]


def _ms(step: StepRow) -> float:
    return step.time.median_ms if step.time is not None else float("nan")
