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
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from result_tables import with_tables
from typer.main import get_command

from tilewright.service.app import create_app
from tilewright.service.cli.application import program
from tilewright.service.settings_model import Settings

DOCS = Path(__file__).parents[1] / "docs"
OPTIONS = ("<!-- options: made by make references -->", "<!-- /options -->")
VARIABLES = ("<!-- settings: made by make references -->", "<!-- /settings -->")

METHODS = ("get", "post", "put", "patch", "delete")
HEAD = """# REST reference

Made from the code by `make references`; a running server gives the same as JSON at `/openapi.json`. Parameters stand in
the query unless they are marked as parts of the path, which are required, or as headers. Bodies and answers are
`application/json` where no other type is named; their fields are always there unless marked optional. A refusal is a
problem document as `application/problem+json` ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)):
[ProblemDocument](#problemdocument), with its type's page at `/problems/{name}`. Any request can meet 401, 403, 421 and
429, 422 where a parameter or a field is wrong, and 503 while the database is away; operations name the other refusals.
Who may call what is in [operating](operating.md#access-keys).
"""
EVERYWHERE = frozenset({"422", "503"})
COMMON = 3
"""A parameter of so many operations is told once."""


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


def rest(document: Mapping[str, Any]) -> str:
    """Every operation by its tag, then every schema."""
    by_tag: dict[str, list[str]] = {}
    usual, common = _usual_refusals(document), _common_parameters(document)
    for path, operations in document["paths"].items():
        for method in METHODS:
            if method in operations:
                operation = operations[method]
                by_tag.setdefault(operation["tags"][0], []).append(_operation(method, path, operation, usual, common))
    parts = [HEAD, "| refusal | reason, where an operation names no other |", "|---|---|"]
    parts += [f"| {status} | {_cell(reason)} |" for status, reason in sorted(usual.items())]
    parts += ["", "## Common parameters\n", "| parameter | type | what |", "|---|---|---|", *common, ""]
    for tag, found in by_tag.items():
        parts += [f"## {tag.capitalize()}\n", *found]
    schemas = document["components"]["schemas"]
    told: dict[str, str] = {}
    parts += ["## Schemas\n", *(_schema(name, schemas[name], told) for name in sorted(schemas))]
    return "\n".join(parts)


def _usual_refusals(document: Mapping[str, Any]) -> dict[str, str]:
    """The most frequent description of each status that refuses."""
    counts: dict[str, Counter[str]] = {}
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if status.isdigit() and int(status) >= HTTPStatus.BAD_REQUEST:
                    counts.setdefault(status, Counter())[response["description"]] += 1
    return {status: found.most_common(1)[0][0] for status, found in counts.items()}


def _common_parameters(document: Mapping[str, Any]) -> list[str]:
    """The rows of parameters that several operations take, those of paths first."""
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    counts = Counter(_parameter(one) for operation in operations for one in operation.get("parameters", []))
    return sorted((row for row, count in counts.items() if count >= COMMON), key=lambda row: ("(path)" not in row, row))


def commands(command: Any, words: Sequence[str] = ("tilewright",)) -> Iterator[tuple[str, Any]]:
    """Every command below this one by its full name, groups before what is in them."""
    for name, inner in getattr(command, "commands", {}).items():
        full = (*words, name)
        yield " ".join(full), inner
        yield from commands(inner, full)


def with_commands(text: str) -> str:
    """The page with a current table of options under each command's heading."""
    for name, command in commands(get_command(program())):
        if not re.search(rf"^### {re.escape(name)}$", text, re.MULTILINE):
            text = f"{text.rstrip()}\n\n### {name}\n\n{_sentence(command.help or '')}\n"
        text = _with_block(text, f"### {name}", OPTIONS, _options(command))
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


def _options(command: Any) -> str:
    shown = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    rows = [_option(one) for one in shown if one.opts != ["--json"]]
    table = ["| argument or option | what | default |", "|---|---|---|", *rows] if rows else []
    return "\n".join([*table, *(["", "Also `--json`."] if len(rows) < len(shown) else [])]).strip()


def _option(option: Any) -> str:
    if option.param_type_name == "argument":
        name = f"`{option.metavar or option.name.upper()}`"
    else:
        value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
        name = ", ".join(f"`{spelling}{value}`" for spelling in [*option.opts, *option.secondary_opts])
    default = "required" if option.required else _shown(option.default)
    many = " Repeatable." if option.multiple and "repeat" not in (option.help or "") else ""
    return f"| {name} | {_cell((option.help or '') + many)} | {default} |"


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


def _operation(
    method: str, path: str, operation: Mapping[str, Any], usual: Mapping[str, str], common: Sequence[str]
) -> str:
    lines = [f"### {method.upper()} {path}\n", _sentence(operation["description"]), ""]
    rows = {one["name"]: _parameter(one) for one in operation.get("parameters", [])}
    own = [row for row in rows.values() if row not in common]
    if own:
        lines += ["| parameter | type | what |", "|---|---|---|", *own, ""]
    if len(own) < len(rows):
        shared = ", ".join(f"`{name}`" for name, row in rows.items() if row in common)
        lines += [f"{'Also' if own else 'Takes'} {shared}: [common parameters](#common-parameters).", ""]
    if "requestBody" in operation:
        kinds = [_body(kind, each) for kind, each in operation["requestBody"]["content"].items()]
        lines += [f"Body: {' or '.join(kinds)}.", ""]
    answers, refusals = [], []
    for status, response in sorted(operation["responses"].items()):
        if status.isdigit() and int(status) < HTTPStatus.BAD_REQUEST:
            answers.append(f"{status} {_answer(response)}".rstrip())
        elif status.isdigit():
            reason = response["description"].replace(usual[status], "").strip()
            if reason or status not in EVERYWHERE:
                refusals.append(f"{status} ({reason})" if reason else status)
    lines += [f"Answer: {'; '.join(answers)}.", ""]
    return "\n".join([*lines, f"Refused: {_cell(', '.join(refusals))}.", ""] if refusals else lines)


def _body(kind: str, content: Mapping[str, Any]) -> str:
    """The schema, and the media type where that is not JSON."""
    return _type(content.get("schema", {})) + ("" if kind == "application/json" else f" as `{kind}`")


def _answer(response: Mapping[str, Any]) -> str:
    """The response: schema and media type, or its description where there is no body."""
    bodies = [_body(kind, each) for kind, each in response.get("content", {}).items()]
    description = response["description"].rstrip(".")
    return ", or ".join(bodies) if bodies else "" if description == "Successful Response" else description


def _parameter(parameter: Mapping[str, Any]) -> str:
    schema = parameter["schema"]
    sentences = [parameter.get("description", "")]
    sentences += [f"Default: `{_word(schema['default'])}`."] if schema.get("default") is not None else []
    examples = [one for one in schema.get("examples", [])[:1] if one != schema.get("default")]
    sentences += [f"For instance `{_word(example)}`." for example in examples]
    place = parameter["in"]
    marks = [place] if place != "query" else ["required"] if parameter["required"] else []
    name = f"`{parameter['name']}`" + (f" ({', '.join(marks)})" if marks else "")
    kind = _type(schema).removesuffix(" or null")  # a parameter that is left out
    return f"| {name} | {kind} | {_cell(' '.join(part for part in sentences if part))} |"


def _schema(name: str, schema: Mapping[str, Any], told: dict[str, str]) -> str:
    """One schema; fields that an earlier one has in the same words are named alone. `told`: rows, by whom."""
    lines = [f"### {name}\n"]
    if schema.get("description"):
        lines += [_sentence(schema["description"]), ""]
    if "enum" in schema:
        return "\n".join([*lines, f"One of {', '.join(f'`{word}`' for word in schema['enum'])}.", ""])
    required = set(schema.get("required", []))
    rows, others = dict[str, str](), list[str]()
    for field, inner in schema.get("properties", {}).items():
        what = inner.get("description", "")
        if inner.get("default") is not None:
            what = f"{what} Default: `{_word(inner['default'])}`.".strip()
        shown = f"`{field}`" + ("" if field in required else " (optional)")
        if what:
            rows[f"| {shown} | {_type(inner)} | {_cell(what)} |"] = shown
        else:
            others.append(f"{shown}: {_type(inner)}")
    counts = Counter(told[row] for row in rows if row in told)
    for other in [one for one, count in counts.items() if count > 1]:
        same = [row for row in rows if told.get(row) == other]
        others.append(f"as in {_type({'$ref': other})}: {', '.join(rows.pop(row) for row in same)}")
    told |= dict.fromkeys(rows, name)
    if rows:
        lines += ["| field | type | what |", "|---|---|---|", *rows, *([""] if others else [])]
    if others:
        lines.append(f"{'Also ' if rows else ''}{'; '.join(others)}.")
    for example in schema.get("examples", [])[:1]:
        lines += ["", "```json", json.dumps(example, indent=2, ensure_ascii=False), "```"]
    return "\n".join([*lines, ""])


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in a few words, with links to those that have a section."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[union]))
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{word}`" for word in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if kind == "array":
        inner = [*schema.get("prefixItems", []), *([schema["items"]] if "items" in schema else [])]
        return f"list of {' and '.join(dict.fromkeys(_type(one) for one in inner)) or 'any'}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_type(schema['additionalProperties'])}"
    return f"{kind} ({schema['format']})" if "format" in schema else str(kind)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cell(text: str) -> str:
    """One line that no table breaks at."""
    return " ".join(text.split()).replace("|", "\\|")


def _sentence(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
