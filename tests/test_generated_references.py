"""The references are what the code would write now, and leave nothing out."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from tilewright.service.app import create_app
from tilewright.service.cli.application import program

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def references():
    """tools/references.py, as it is when run."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("references")
    finally:
        sys.path.remove(str(ROOT / "tools"))


@pytest.fixture(scope="module")
def made(references):
    return {path.name: text for path, text in references.pages().items()}


def test_pages_are_what_code_and_results_say_now(references):
    stale = [path.name for path, text in references.pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run: make references"


def test_a_table_is_made_from_the_newest_results(references):
    block = "<!-- table predictions: made by make references -->\n{}<!-- /table -->"
    made = references.with_tables(block.format("| stale |\n"))
    assert "| stale |" not in made
    assert "| 0.969 |" in made
    assert references.with_tables(made) == made


def test_every_operation_parameter_status_and_schema_is_there(references, made):
    sections = dict(re.findall(r"^### (.+)\n((?:(?!^###? ).*\n)*)", made["rest.md"], re.MULTILINE))
    document = create_app().openapi()
    operations = {
        f"{method.upper()} {path}": operation
        for path, found in document["paths"].items()
        for method, operation in found.items()
    }
    assert set(sections) == set(operations) | set(document["components"]["schemas"])
    for heading, operation in operations.items():
        told = sections[heading]
        assert all(f"`{one['name']}`" in told for one in operation.get("parameters", [])), heading
        statuses = {status for status in operation["responses"] if status != "default"} - references.EVERYWHERE
        assert statuses <= set(re.findall(r"\b\d{3}\b", told)), heading
        assert ("Body: " in told) == ("requestBody" in operation), heading
    for name, schema in document["components"]["schemas"].items():
        words = [*schema.get("properties", {}), *map(str, schema.get("enum", []))]
        assert all(f"`{word}`" in sections[name] for word in words), name


def test_the_help_groups_commands_as_the_page_does():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", page, re.MULTILINE)
    told = {title: set(re.findall(r"^### tilewright ([\w-]+)$", text, re.MULTILINE)) for title, text in sections}
    group = get_command(program())
    shown: dict[str, set[str]] = {}
    for name in group.list_commands(group.make_context("tilewright", [], resilient_parsing=True)):
        shown.setdefault(group.commands[name].rich_help_panel, set()).add(name)
    assert list(shown.items()) == list(told.items())


def test_every_option_of_every_command_is_there_and_explained(references, made):
    sections = dict(re.findall(r"^### (.+)\n((?:(?!^###? ).*\n)*)", made["cli.md"], re.MULTILINE))
    seen = 0
    for name, command in references.commands(get_command(program())):
        for one in command.params:
            if one.name == "help":
                continue
            assert one.help, f"{name}: {one.name} has no help"
            for spelling in one.opts if one.param_type_name == "option" else ():
                assert f"`{spelling}" in sections[name], f"{name} {spelling}"
                seen += 1
    assert seen > 50


def test_prose_and_examples_stay_and_old_tables_go(references):
    before = (
        "# Page\n\n### tilewright best\n\nProse.\n\n```sh\n# a comment\ntilewright best gemm\n```\n\n## Next\n\nMore.\n"
    )
    once = references._with_block(before, "### tilewright best", ("<!-- a -->", "<!-- /a -->"), "| old |")
    again = references._with_block(once, "### tilewright best", ("<!-- a -->", "<!-- /a -->"), "| new |")
    assert "| old |" not in again
    assert again.replace("<!-- a -->\n| new |\n<!-- /a -->\n\n", "") == before
    assert references._with_block(again, "### tilewright best", ("<!-- a -->", "<!-- /a -->"), "") == before


def test_a_command_without_a_heading_gets_one(references):
    text = references.with_commands("# Command line\n")
    assert text.count("### tilewright report\n") == 1
    assert references.with_commands(text) == text


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"$ref": "#/components/schemas/JobAnswer"}, "[JobAnswer](#jobanswer)"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"type": "array", "items": {"type": "integer"}}, "list of integer"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of number"),
        ({"type": "string", "format": "date-time"}, "string (date-time)"),
        ({"enum": ["a", "b"]}, "`a` or `b`"),
        ({}, "any"),
    ],
)
def test_types_are_told_in_a_few_words(references, schema, text):
    assert references._type(schema) == text
