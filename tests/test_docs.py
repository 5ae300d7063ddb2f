"""The pages under docs/: complete, and every example in them works."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tilewright.kernels.catalogue import Catalogue, catalogue
from tilewright.kernels.errors import BrokenDeclarationError
from tilewright.service.cli.application import program
from tilewright.service.operations import registry
from tilewright.service.settings import settings
from tilewright.service.settings_model import Settings
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.outcome import Outcome

ROOT = Path(__file__).parents[1]
PAGES = sorted((*ROOT.glob("docs/**/*.md"), ROOT / "README.md"))
PROSE = re.compile(r"^```.*?^```\n", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", PROSE.sub("", text), re.MULTILINE)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# --- settings


def test_every_setting_has_its_heading_and_no_other_has():
    documented = [heading for heading in headings(page("settings.md")) if heading.startswith("TILEWRIGHT_")]
    assert sorted(documented) == sorted(f"TILEWRIGHT_{name.upper()}" for name in Settings.model_fields)


def test_documented_defaults_are_the_defaults():
    sections = dict(
        re.findall(r"^### TILEWRIGHT_(\w+)\n(.*?)(?=^##|\Z)", page("settings.md"), re.MULTILINE | re.DOTALL)
    )
    checked = 0
    for name, field in Settings.model_fields.items():
        stated = re.search(r"Default: `([^`]*)`(?! in)", sections[name.upper()])
        if stated:
            default = field.get_default(call_default_factory=True)
            assert stated[1] == (json.dumps(default) if isinstance(default, list | bool) else str(default)), name
            checked += 1
    assert checked >= 8


# --- the command line


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command, groups included."""
    for name, child in getattr(command, "commands", {}).items():
        yield (*path, name)
        yield from commands(child, (*path, name))


PROGRAM = typer.main.get_command(program())


def test_every_command_has_its_heading_with_an_example_and_no_other_has():
    sections = dict(re.findall(r"^### tilewright (.+)\n((?:(?!^##).*\n)*)", page("cli.md"), re.MULTILINE))
    assert sorted(sections) == sorted(" ".join(words) for words in commands(PROGRAM))
    for words, section in sections.items():
        assert f"tilewright {words}" in "".join(blocks(section, "sh")), f"{words} has no example"


def examples() -> list[Any]:
    """Every `tilewright …` line of a shell block, in every page."""
    found = []
    for path in PAGES:
        for block in blocks(path.read_text(encoding="utf-8"), "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                called = re.search(r"(?:^|[ (])tilewright( [^)#;&|]*)", line)
                if called:
                    found.append(pytest.param(called[1].strip(' "'), id=f"{path.name}: {called[1].strip()}"))
    return found


@pytest.mark.parametrize("example", examples())
def test_an_example_is_understood(example):
    """Words and options exist and their values are accepted; nothing is run."""
    words, command, name = shlex.split(example), PROGRAM, "tilewright"
    while words and words[0] in getattr(command, "commands", {}):
        name = words.pop(0)
        command = command.commands[name]
    if "--help" in words:
        words.remove("--help")
        assert getattr(command, "commands", None) or not words
        return
    command.make_context(name, words, resilient_parsing=False)


def test_a_wrong_example_is_not_understood():
    with pytest.raises(Exception, match="No such option"):
        test_an_example_is_understood("jobs list --no-such-option")


# --- kernels


OPTIONAL_AXES = {
    "attention": "layouts and shared heads",
    "gemm": "batches and views",
    "conv2d": "stride, padding and dilation",
}


def test_every_kernel_variant_and_option_has_its_heading_and_no_other_has():
    documented = set(headings(page("kernels.md"))[1:]) - {"Loops"}
    wanted = set()
    for kernel in catalogue().kernels():
        wanted |= {kernel.name}
        wanted |= {f"{kernel.name}: option {option.name}" for option in kernel.options}
        wanted |= {f"{kernel.name}: {OPTIONAL_AXES[kernel.name]}"} if kernel.optional_axes else set()
        wanted |= {f"{kernel.name}: variant {variant.name}" for variant in kernel.variants}
    assert documented == wanted


def test_the_table_of_kernels_names_every_variant():
    rows = [line for line in page("kernels.md").partition("\n## ")[0].splitlines() if line.startswith("| [")]
    named = {kernel: row for row in rows for kernel in re.findall(r"`(\w+)`", row.split("|")[1])}
    for kernel in catalogue().kernels():
        text = named[kernel.name] + (named["gemm"] if "of `gemm`" in named[kernel.name] else "")
        beginnings = tuple(re.findall(r"`(\w+)…`", text))
        assert not [v.name for v in kernel.variants if f"`{v.name}`" not in text and not v.name.startswith(beginnings)]


def test_the_page_on_kernels_names_every_axis_that_a_shape_may_leave_out():
    axes = {f"`{axis.name}`" for kernel in catalogue().kernels() for axis in kernel.optional_axes}
    assert not {axis for axis in axes if axis not in page("kernels.md")}


def test_the_page_on_kernels_names_only_parameters_that_exist():
    sections = re.split(r"^### ", page("kernels.md"), flags=re.MULTILINE)[1:]
    for section in sections:
        kernel, _, variant = section.partition("\n")[0].partition(": variant ")
        if variant:
            parameters = {one.name for one in catalogue().get(kernel).variant(variant).parameters}
            assert set(re.findall(r"`([A-Z][A-Z_]+)`", section)) <= parameters, section


def test_option_words_are_documented():
    text = page("kernels.md")
    for kernel in catalogue().kernels():
        for option in kernel.options:
            section = text.split(f"### {kernel.name}: option {option.name}\n")[1].split("\n#")[0]
            words = {str(value).lower() for value in option.values}
            assert words <= set(re.findall(r"`([\w-]+)`", section)), option.name


# --- adding a kernel


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The page's kernel, written as the page says."""
    text = page("adding-a-kernel.md")
    for name, code in re.findall(
        r"`((?:axpy|vector_add)/[\w.]+)`:\n\n```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code, encoding="utf-8")
    assert sorted(path.name for path in (tmp_path / "axpy").iterdir()) == ["axpy.cu", "declaration.py"]
    return tmp_path / "axpy"


def test_the_smallest_kernel_takes_fifteen_lines_and_is_right(example):
    folder = example.parent / "vector_add"
    declaration = (folder / "declaration.py").read_text()
    assert len([line for line in declaration.splitlines() if line.strip()]) <= 15
    kernel, device = Catalogue.load([folder]).get("vector_add"), CpuDevice()
    assert (kernel.axes, kernel.folder) == (("n",), folder)
    bench = device.bench(kernel, kernel.problem({"n": 333}), seed=1)
    try:
        *_, largest = kernel.space(bench.problem, device.model.limits).feasible
        assert largest.values.block_size_x == 1024
        evaluation = bench.evaluate(largest, "warm")
        assert (evaluation.outcome, evaluation.log) == ("measured", "")
    finally:
        bench.close()
        device.close()


def test_the_example_kernel_is_right_in_every_configuration(example, monkeypatch, capsys):
    """The page's own loop, on the CPU device."""
    monkeypatch.chdir(example.parent)
    (trial,) = (block for block in blocks(page("adding-a-kernel.md"), "python") if "CpuDevice()" in block)
    exec(compile(ast.parse(trial), "adding-a-kernel.md", "exec"), {})  # noqa: S102 - the documentation's own code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 10
    assert {re.search(r"right|wrong", line)[0] for line in lines} == {"right"}
    assert {line.split()[0] for line in lines} == {"float32", "float64"}


def test_a_mistake_in_the_example_is_found(example):
    source = example / "axpy.cu"
    source.write_text(source.read_text().replace("a * x[i] + y[i]", "a * x[i]"))
    kernel = Catalogue.load([example]).get("axpy")
    device = CpuDevice()
    bench = device.bench(kernel, kernel.problem({"n": 300}), seed=1)
    try:
        default = kernel.default_configuration(kernel.space(kernel.problem({"n": 300}), device.model.limits))
        assert bench.verify(bench.compile(default)).wrong > 0
    finally:
        bench.close()
        device.close()


def test_the_example_kernel_is_loaded_by_its_setting(example, monkeypatch):
    (line,) = re.findall(r"^export (TILEWRIGHT_KERNEL_FOLDERS)=(\S+)", page("adding-a-kernel.md"), re.MULTILINE)
    monkeypatch.setenv(line[0], line[1].replace("/srv/kernels/axpy", str(example)))
    settings.cache_clear()
    registry.watched_catalogue.cache_clear()
    try:
        assert registry.catalogue().get("axpy").variants[0].name == "strided"
    finally:
        monkeypatch.undo()
        settings.cache_clear()
        registry.watched_catalogue.cache_clear()


def test_a_default_that_the_source_does_not_have_is_refused_as_the_page_says(example):
    source = example / "axpy.cu"
    source.write_text(source.read_text().replace("#define ITEMS 4", "#define ITEMS 8"))
    with pytest.raises(BrokenDeclarationError, match="must define the default ITEMS 4"):
        Catalogue.load([example])


# --- all pages


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", PROSE.sub("", path.read_text())):
        if "://" in target:
            continue
        linked = (path.parent / target) if target else path
        assert linked.exists(), target
        if anchor:
            assert anchor in {slug(heading) for heading in headings(linked.read_text())}, f"{target}#{anchor}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_that_pages_name_exist(path):
    folders = "deploy|docs|requirements|tools|benchmarks|tests|kernels|tuner|service|migrations|api|operations"
    named = re.findall(rf"`((?:{folders})/[\w./-]+)`", path.read_text())
    assert [name for name in named if not (ROOT / name).exists() and "secrets/" not in name] == []


def test_glossary_explains_the_outcomes():
    text = page("glossary.md")
    assert all(f"`{outcome.value}`" in text for outcome in Outcome)


def test_glossary_explains_a_word_once():
    words = [
        word for line in re.findall(r"^\*\*(.+?)\*\*:", page("glossary.md"), re.MULTILINE) for word in line.split(", ")
    ]
    assert len(words) == len(set(words))
