"""`kernels`: the kernels that can be tuned, their sources, and those of your own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tilewright.service.cli.arguments import KernelArgument
from tilewright.service.cli.commands.own_kernels import adopt_script, check, new
from tilewright.service.cli.connection import connect
from tilewright.service.cli.output import JsonFlag, data, lists_by_default, print_facts, print_json, print_table
from tilewright.service.operations.parse import format_shape

app = typer.Typer(help="Kernels: list, show, source, check, new, adopt.")
app.command("check")(check)
app.command("new")(new)
app.command("adopt")(adopt_script)


@app.command("list")
def list_kernels(as_json: JsonFlag = False) -> None:
    """List the kernels."""
    with connect() as connection:
        answers = connection.kernels()
    if as_json:
        print_json(answers)
        return
    print_table(
        ("kernel", "axes", "dtypes", "variants", "what it computes"),
        [
            (
                answer.name,
                ", ".join(answer.declaration["axes"]),
                ", ".join(answer.declaration["dtypes"]),
                ", ".join(variant["name"] for variant in answer.declaration["variants"]),
                answer.declaration["doc"],
            )
            for answer in answers
        ],
    )


lists_by_default(app, list_kernels)


@app.command()
def show(kernel: KernelArgument, as_json: JsonFlag = False) -> None:
    """Show a kernel: axes, dtypes, options, and each variant's parameters and constraints."""
    with connect() as connection:
        answer = connection.kernel(kernel)
    if as_json:
        print_json(answer)
        return
    declaration = answer.declaration
    example = format_shape(declaration["example_shape"])
    print_facts(
        [
            ("kernel", f"{answer.name}: {declaration['doc']}".removesuffix(": ")),
            ("axes", ", ".join(declaration["axes"])),
            *(("axis", f"{one['name']}: {one['doc']}") for one in declaration.get("optional_axes", ())),
            ("dtypes", ", ".join(declaration["dtypes"])),
            *(("option", _option(option)) for option in declaration["options"]),
            ("ranked by", f"time with a {declaration['ranking_l2']} L2 cache"),
            *(("ranked by", f"time with a cold L2 cache for {one}") for one in declaration.get("ranks_cold", ())),
            ("verified", declaration.get("verified")),
            ("tune it", f"tilewright tune {answer.name} --shape {example}"),
        ]
    )
    for variant in declaration["variants"]:
        data.print(f"\n{variant['name']}", style="bold", end="")
        data.print(f"  {variant['doc']}")
        print_facts([(f"  {one['name']}", _parameter(one)) for one in variant["parameters"]])
        for constraint in variant["constraints"]:
            data.print(f"  only if: {constraint}")


@app.command()
def source(
    kernel: KernelArgument,
    variant: Annotated[
        str | None, typer.Option("--variant", help="Variant. Default: the kernel's default variant.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a variant's source, as the compilers get it."""
    with connect() as connection:
        answer = connection.source(kernel, variant)
    if as_json:
        print_json(answer)
    else:
        sys.stdout.write(answer.source)


def _option(option: Mapping[str, Any]) -> str:
    values = "|".join(_word(value) for value in option["values"])
    return f"{option['name']}={values} (default {_word(option['default'])}) {option['doc']}".rstrip()


def _parameter(parameter: Mapping[str, Any]) -> str:
    values = ", ".join(str(value) for value in parameter["values"])
    return f"{values} (default {parameter['default']}) {parameter['doc']}".rstrip()


def _word(value: bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else value
