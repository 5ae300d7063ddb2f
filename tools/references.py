"""Generates docs/rest.md and the tables in cli.md and settings.md from the code, those of docs/measuring from results.

    python tools/references.py            write them
    python tools/references.py --check    exit status 1, and their names, where they are not as they would be written

Prose and examples of cli.md and settings.md are written by hand and stay. A command that has no heading yet gets one.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rest_page import COMMON, line, rest, sentence
from result_tables import with_tables
from typer.main import get_command

from tilewright.service.app import create_app
from tilewright.service.cli.application import program
from tilewright.service.settings_model import Settings

DOCS = Path(__file__).parents[1] / "docs"
OPTIONS = ("<!-- options -->", "<!-- /options -->")
COMMON_OPTIONS = "## Common options"
VARIABLES = ("<!-- settings -->", "<!-- /settings -->")


_WORD = re.compile(r"`([\w-]+)")


def main(arguments: Sequence[str]) -> int:
    """Writes or compares."""
    changed = [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        for path in changed:
            print(f"{path.relative_to(DOCS.parent)} is not current: make references")
        return int(bool(changed))
    for path in changed:
        path.write_text(pages()[path], encoding="utf-8")
        print(f"wrote {path.relative_to(DOCS.parent)}")
    return 0


def pages() -> dict[Path, str]:
    """The text that each page should have."""
    cli, settings = DOCS / "cli.md", DOCS / "settings.md"
    return {
        DOCS / "rest.md": rest(create_app().openapi()),
        cli: with_commands(cli.read_text(encoding="utf-8")),
        settings: with_settings(settings.read_text(encoding="utf-8")),
        **{page: with_tables(page.read_text(encoding="utf-8")) for page in sorted((DOCS / "measuring").glob("*.md"))},
    }


def commands(command: Any, words: Sequence[str] = ("tilewright",)) -> Iterator[tuple[str, Any]]:
    """Every command below this one by its full name, groups before what is in them."""
    for name, inner in getattr(command, "commands", {}).items():
        full = (*words, name)
        yield " ".join(full), inner
        yield from commands(inner, full)


def with_commands(text: str) -> str:
    """The page with a current table of options under each command's heading."""
    found = list(commands(get_command(program())))
    common = _common_options(command for _, command in found)
    if COMMON_OPTIONS not in text:
        text = f"{text.rstrip()}\n\n{COMMON_OPTIONS}\n"
    text = _with_block(text, COMMON_OPTIONS, OPTIONS, "\n".join(common))
    for name, command in found:
        if not re.search(rf"^### {re.escape(name)}$", text, re.MULTILINE):
            text = f"{text.rstrip()}\n\n### {name}\n\n{sentence(command.help or '')}\n"
        text = _with_block(text, f"### {name}", OPTIONS, _told(_options(command), common))
    return text


def with_settings(text: str) -> str:
    """The page with a current list of all variables and their defaults before its first section."""
    rows = ["| variable | default |", "|---|---|"]
    for field, described in sorted(Settings.model_fields.items()):
        name = f"TILEWRIGHT_{field.upper()}"
        rows.append(f"| [{name}](#{name.lower()}) | {_default(described)} |")
    first = re.search(r"^# .*$", text, re.MULTILINE)
    return _with_block(text, first[0] if first else "", VARIABLES, "\n".join(rows))


def _with_block(text: str, heading: str, marks: tuple[str, str], block: str) -> str:
    """The text with the block at the end of the heading's section, instead of the one that was there."""
    start = re.search(rf"^{re.escape(heading)}$", text, re.MULTILINE)
    if start is None:
        raise ValueError(f"there is no heading {heading!r}")
    following = re.compile(r"^#+ ", re.MULTILINE).search(text, _after_code(text, start.end()))
    end = following.start() if following else len(text)
    section = re.sub(
        rf"\n*{re.escape(marks[0])}.*?{re.escape(marks[1])}\n*", "\n", text[start.end() : end], flags=re.DOTALL
    )
    made = f"\n\n{marks[0]}\n{block}\n{marks[1]}\n" if block else "\n"
    return text[: start.end()] + section.rstrip() + made + ("\n" if following else "") + text[end:]


def _after_code(text: str, start: int) -> int:
    """Where headings may begin again: a comment inside the section's code looks like one."""
    end = start
    while (fence := text.find("\n```", end)) != -1 and not re.search(r"^#+ ", text[end:fence], re.MULTILINE):
        close = text.find("\n```", fence + 4)
        end = close + 4 if close != -1 else len(text)
    return end


def _options(command: Any) -> dict[str, str]:
    """A line of each argument and option, by how it is written."""
    shown = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    return {_spelt(one): _option(one) for one in shown}


def _common_options(found: Iterable[Any]) -> list[str]:
    """The lines that many commands have, unless a name has two meanings."""
    counts = Counter(pair for command in found for pair in _options(command).items())
    many = [pair for pair, count in counts.items() if count >= COMMON]
    meanings = Counter(name for name, _ in many)
    return [line for name, line in sorted(many, key=lambda pair: pair[0].strip("`-")) if meanings[name] == 1]


def _told(lines: Mapping[str, str], common: Collection[str]) -> str:
    """The command's own options, then the names of those that many commands have."""
    own = [line for line in lines.values() if line not in common]
    listed = ", ".join(f"`{word}`" for name, line in lines.items() if line in common for word in _WORD.findall(name))
    also = f"{'Also' if own else 'Takes'} [common](#common-options) {listed}." if listed else ""
    return "\n".join([*own, *([""] if own and also else []), *([also] if also else [])])


def _spelt(option: Any) -> str:
    if option.param_type_name == "argument":
        return f"`{option.metavar or option.name.upper()}`"
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    return ", ".join(f"`{spelling}{value}`" for spelling in [*option.opts, *option.secondary_opts])


def _option(option: Any) -> str:
    many = " Repeatable." if option.multiple and "repeat" not in (option.help or "") else ""
    default = "" if option.required or "Default:" in (option.help or "") else _shown(option.default)
    is_option = option.param_type_name == "option"
    needed = "" if option.required != is_option else " Required." if is_option else " Optional."
    return line(_spelt(option), f"{option.help or ''}{many}{needed}{f' Default: {default}.' if default else ''}")


def _default(field: Any) -> str:
    return _shown(field.get_default(call_default_factory=True))


def _shown(value: Any) -> str:
    """A default for readers; empty where it says nothing, or differs from machine to machine."""
    if value is None or value is False or callable(value) or value in ((), []):
        return ""
    if isinstance(value, Path) and value.is_absolute():
        return ""
    if isinstance(value, bool | list):
        return f"`{json.dumps(value)}`"
    return f"`{getattr(value, 'value', value)}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
