"""Generated references, and the figures of README.md and docs/results.md, are what code and results say."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from tilewright.kernels.own import own_kernel
from tilewright.service.app import create_app
from tilewright.service.cli.application import program
from tilewright.tuner.cuda_source.passed import UnclearSourceError
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.kernel_check.first import first_declaration
from tilewright.tuner.loop.tune import Budget, Hooks, tune

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
def rest_page(references):
    """tools/rest_page.py, which it uses."""
    return sys.modules[references.rest.__module__]


@pytest.fixture(scope="module")
def made(references):
    return {path.name: text for path, text in references.pages().items()}


def test_pages_are_what_code_and_results_say_now(references):
    stale = [path.name for path, text in references.pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run: make references"


def test_a_table_is_made_from_the_newest_results(references):
    block = "<!-- table first-day -->\n{}<!-- /table -->"
    made = references.with_tables(block.format("| stale |\n"))
    assert "| stale |" not in made
    assert "| 0.966 | 0.889 |" in made
    assert references.with_tables(made) == made


def test_every_operation_parameter_status_and_schema_is_there(rest_page, made):
    sections = dict(re.findall(r"^### (.+)\n((?:(?!^###? ).*\n)*)", made["rest.md"], re.MULTILINE))
    document = create_app().openapi()
    operations = {
        f"{method.upper()} {path}": operation
        for path, found in document["paths"].items()
        for method, operation in found.items()
    }
    schemas = {name: one for name, one in document["components"]["schemas"].items() if not name.startswith("Page_")}
    assert set(sections) == set(operations) | set(schemas)
    for heading, operation in operations.items():
        told = sections[heading]
        for one in operation.get("parameters", []):
            assert f"`{one['name']}`" in told or f"{{{one['name']}}}" in heading, heading
        statuses = {status for status in operation["responses"] if status != "default"}
        statuses -= rest_page.unsaid(heading, operation)
        assert statuses <= set(re.findall(r"\b\d{3}\b", told)), heading
        assert ("Body: " in told) == ("requestBody" in operation), heading
    for name, schema in schemas.items():
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
    assert list(shown.items()) == [(title, names) for title, names in told.items() if names]


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
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string?"),
        ({"type": "array", "items": {"type": "integer"}}, "list of integer"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of number"),
        ({"type": "string", "format": "date-time"}, "time"),
        ({"enum": ["a", "b"]}, "`a` or `b`"),
        ({}, "any"),
    ],
)
def test_types_are_told_in_a_few_words(rest_page, schema, text):
    assert rest_page.type_of(schema) == text


KERNELS = ROOT / "benchmarks" / "results" / "h200" / "kernels.json"


def test_the_kernels_tables_are_made_from_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from kernel_table import readme  # noqa: PLC0415 - benchmarks is no package

    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/results.md"))
    results = json.loads(KERNELS.read_text(encoding="utf-8"))
    for name, made in readme.readme_sections(results).items():
        section = text.partition(f"<!-- {name}:")[2].partition("-->\n")[2].partition(f"<!-- /{name}")[0]
        assert section == made


@pytest.mark.parametrize("target", ["run", "test"])
def test_the_two_commands_are_targets_of_the_makefile(target):
    assert f"\n{target}: ##" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"\nmake {target} " in (ROOT / "README.md").read_text(encoding="utf-8")


PAGE = (Path(__file__).parents[1] / "docs" / "cuda-file.md").read_text(encoding="utf-8")
UNSUPPORTED = re.findall(r"^\| `([^`]*__global__[^`]*|void k[^`]*)` \| ([^|]+) \|$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """The page's kernel, made and checked by the page's first two commands."""
    folder = tmp_path_factory.mktemp("project")
    for name, code in re.findall(r"^`([\w.]+)`[^\n]*:\n\n```cuda\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        (folder / name).write_text(code, encoding="utf-8")
    assert sorted(path.name for path in folder.iterdir()) == ["edges.cu", "pixels.h"]
    [script] = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    new, check, tuning = script.strip().splitlines()
    for line in (new, f"{check} --no-compile --configurations 2"):
        words = line.removeprefix("tilewright ").split()
        ran = subprocess.run(
            [sys.executable, "-m", "tilewright.service.cli", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "--tune edges --shape height=480,width=640 --trials 6 --once" in tuning
    return own_kernel(folder / "edges")


@pytest.mark.in_turn(2)
def test_the_declaration_is_right_but_for_what_the_page_says(kernel):
    problem = kernel.problem({"height": 7, "width": 5})
    assert {tensor.name: (tensor.role, tensor.shape(problem)) for tensor in kernel.tensors} == {
        "image": ("input", (7, 5)),
        "out": ("output", (7, 5)),
    }
    assert [parameter.name for parameter in kernel.variants[0].parameters] == ["BLOCK_SIZE_X", "BLOCK_SIZE_Y"]
    source = kernel.source("plain")
    assert "std::" not in source
    assert "main" not in source


def test_it_is_tuned(kernel):
    device, trials = CpuDevice(), []
    bench = device.bench(kernel, kernel.problem({"height": 48, "width": 64}), 1)
    try:
        space = kernel.space(bench.problem, device.model.limits)
        result = tune(bench, kernel, space, Budget(trials=4), seed=1, hooks=Hooks(trials.append))
    finally:
        bench.close()
        device.close()
    assert result.best is not None
    assert {one.trial.evaluation.outcome for one in trials} == {"measured"}
    assert len(trials) == 4


@pytest.mark.parametrize(("source", "said"), UNSUPPORTED)
def test_what_is_not_supported_is_refused_in_the_words_of_the_page(source, said):
    with pytest.raises(UnclearSourceError, match=re.escape(said.strip())):
        first_declaration(source, "k.cu")


def test_the_page_names_what_is_not_supported():
    assert len(UNSUPPORTED) == 9
