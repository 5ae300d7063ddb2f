"""The report's files: HTML that needs nothing else, Markdown, two CSV files, and all numbers as JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jinja2

from tilewright.tuner.report import tables
from tilewright.tuner.report.figures import figures
from tilewright.tuner.report.rows import LadderReport
from tilewright.tuner.report.sentences import findings, protocol, reasons, title_of
from tilewright.tuner.report.tables import Table

_PREDICTED = (
    "Loads from global memory are predicted from a step's tiles, 2 m n k numbers over the tile's width: 1/TILE_WIDTH "
    "of what it takes without tiles, where tiles are square."
)
_USED_ONCE = "A matrix that is used once cannot be shared by tiles: what can be saved is asking for more than it has."
_COUNTED = "Counted by ncu in one launch, clocks left alone: loads as they reach the L1 cache, reads of L2, memory."


@dataclass(frozen=True)
class Section:
    """A table with its heading and what has to be said about it."""

    title: str
    text: str
    table: Table
    is_long: bool = False
    """Too long for the Markdown page; the HTML page and the CSV file have it."""


def files(report: LadderReport) -> Mapping[str, str]:
    """The text of each file by its name."""
    return {
        f"{report.kernel}.html": _rendered("page.html.j2", report),
        f"{report.kernel}.md": _rendered("page.md.j2", report),
        f"{report.kernel}-steps.csv": tables.steps_csv(report),
        f"{report.kernel}-sizes.csv": tables.sweep_csv(report),
        f"{report.kernel}.json": json.dumps(report.as_json(), indent=1) + "\n",
    }


def write(report: LadderReport, folder: Path) -> list[Path]:
    """Writes the files, each whole or not at all: they are made beside the folder's own and then put in place."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as made:
        for name, text in files(report).items():
            (Path(made) / name).write_text(text, encoding="utf-8")
        return [(Path(made) / name).replace(folder / name) for name in files(report)]


def _rendered(template: str, report: LadderReport) -> str:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    page = jinja2.Environment(
        loader=loader,
        autoescape=jinja2.select_autoescape(("html.j2",)),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    ).get_template(template)
    return page.render(
        report=report,
        title=title_of(report),
        findings=findings(report),
        reasons=reasons(report),
        protocol=protocol(report),
        sections=_sections(report),
        details=_details(report),
        figures=figures(report) if template.endswith(".html.j2") else [],
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
        found.append(Section("Bytes moved", _traffic_text(report), tables.table(tables.TRAFFIC, here, report)))
    return found


def _traffic_text(report: LadderReport) -> str:
    texts = [_PREDICTED if report.unit == "gflops" else _USED_ONCE]
    is_counted = any(step.traffic is not None for step in report.steps)
    return " ".join([*texts, _COUNTED if is_counted else "Nothing was counted here: see the notes."])


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
        columns = [column for column in tables.SWEEP if column.name != "configuration"]
        text = f"{' = '.join(report.swept)}; other sizes as in the first table."
        found.append(Section("Every size", text, tables.table(columns, report.sweep, report), is_long=True))
    if report.rectangles:
        text = "Each axis in turn an eighth of the others; configurations chosen as in the sweep."
        columns = [column for column in tables.SWEEP if column.name != "configuration"]
        table = tables.table(columns, report.rectangles, report)
        found.append(Section("Rectangular shapes", text, table, is_long=True))
    return found
