"""Printing: data to stdout, everything else to stderr, colours and tables only on a terminal."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.service import logs

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

data = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
"""stdout: the answer of the command."""

notes = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
"""stderr: progress, remarks and errors."""


def note(text: str) -> None:
    """Writes one remark to stderr."""
    if not _logged(logging.INFO, text):
        notes.print(text, style="dim")


def warn(text: str) -> None:
    """Writes a remark that asks for attention to stderr."""
    if not _logged(logging.WARNING, text):
        notes.print(Text("note ", style="yellow"), text, sep="")


def fail(text: str) -> None:
    """Writes the command's error to stderr, as one line."""
    text = " ".join(re.sub(r"(?<=[\w)])\s*\n\s*(?=[A-Z])", ". ", text).split())
    if not _logged(logging.ERROR, text):
        notes.print(Text("error ", style="bold red"), text, sep="")


def _logged(level: int, text: str) -> bool:
    """Whether the remark went to the log: a log in JSON must have nothing else on stderr."""
    if logs.are_json():
        logging.getLogger(logs.COMMANDS).log(level, "%s", text)
        return True
    return False


def print_json(value: Any) -> None:
    """Writes the value as JSON to stdout; answers in it become objects. Never coloured: that would not be JSON."""
    sys.stdout.write(json.dumps(_plain(value), indent=2, ensure_ascii=False) + "\n")


def tell(value: Any, text: str, *, as_json: bool) -> None:
    """Writes the value as JSON to stdout, or else the text as a remark to stderr."""
    print_json(value) if as_json else note(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, nothing: str = "There are none.") -> None:
    """Prints a table; in a pipe, lines with tabs between the cells, the names of the columns first."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not cells:
        note(nothing)
        return
    if not data.is_terminal:
        for row in [list(columns), *cells]:
            sys.stdout.write("\t".join(" ".join(cell.split()) for cell in row) + "\n")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False, markup=False, emoji=False).print(table)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Prints names and values, one per line, aligned; empty values are left out."""
    shown = [(name, str(value)) for name, value in facts if value not in (None, "")]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        data.print(Text(name.ljust(width + 2), style="bold"), value, sep="")


def silence_stdout() -> None:
    """Discards all further output to stdout: its reader has gone (`| head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plain(value: Any) -> Any:
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def lists_by_default(group: typer.Typer, list_command: Callable[..., None]) -> None:
    """Makes the group's `list` run without being named, with no option but --json."""

    @group.callback(invoke_without_command=True)
    def run(context: typer.Context, as_json: JsonFlag = False) -> None:
        if context.invoked_subcommand is None:
            list_command(as_json=as_json)
