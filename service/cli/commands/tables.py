"""`tables`: configurations for every size of an axis, tuned as one job on a device of this machine."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.arguments import DtypeOption, KernelArgument, KernelOptions
from tilewright.service.cli.connection import connect
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import JsonFlag, data, note, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from tilewright.kernels.family import Family
    from tilewright.kernels.kernel import Kernel
    from tilewright.service.operations.best.tables import TableAnswer


class TableSource(StrEnum):
    """The places where a table is looked for."""

    LOCAL = "local"
    SERVICE = "service"


app = typer.Typer(help="Tables: configurations for every size of an axis. Tune, show.")

OpenShapeOption = Annotated[
    str,
    typer.Option(
        "--shape", metavar="M=LOW..HIGH,N=…", help="Axis sizes, one of them a range: m=1..8192,n=4096,k=4096."
    ),
]
InvariantOption = Annotated[
    bool,
    typer.Option("--batch-invariant", help="One configuration, by which a row's result does not depend on other rows."),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="cuda:0, cpu, … Default: the first GPU, otherwise cpu.")
]


@app.command("tune")
def tune_table(
    kernel: KernelArgument,
    *,
    shape: OpenShapeOption,
    dtype: DtypeOption = "float32",
    option: KernelOptions = None,
    batch_invariant: InvariantOption = False,
    device: DeviceOption = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="How long each of the first sizes is searched.")
    ] = 3.0,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Stop the search of a size after this many trials.")
    ] = None,
    sizes: Annotated[int, typer.Option("--sizes", min=2, max=20, help="How many sizes are searched at first.")] = 12,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the inputs, the searches, and the sizes to verify.")] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Tune every size of an axis on a device of this machine, and keep the table for launchers of this user."""
    from tilewright.service.cli.local.ladder import alone_on, device_named
    from tilewright.tuner.devices.local import open_device
    from tilewright.tuner.families.limits import FamilyBudget, FamilyHooks
    from tilewright.tuner.families.proposals import shipped_records
    from tilewright.tuner.families.tune import tune_family

    declared, family = _family(kernel, shape, dtype, option, same=batch_invariant)
    entry = device_named(device)
    with alone_on(entry):
        opened = open_device(entry.name)
        try:
            budget = FamilyBudget(seconds, trials, sizes)
            records = shipped_records(declared, family, opened.model)
            hooks = FamilyHooks(say=note)
            table = tune_family(opened, declared, family, budget, seed=seed, records=records, hooks=hooks)
        finally:
            opened.close()
    document = table.as_json(declared)
    path = _folder().put(family, table.device_model, document)
    note(f"kept in {path}")
    print_json(document) if as_json else _print(family.axis, document)


@app.command("show")
def show_table(
    kernel: KernelArgument,
    *,
    shape: OpenShapeOption,
    dtype: DtypeOption = "float32",
    option: KernelOptions = None,
    batch_invariant: InvariantOption = False,
    device_model: Annotated[
        str, typer.Option("--device-model", help="The device model, such as nvidia-h200 or cpu:amd-epyc-9b14.")
    ],
    source: Annotated[
        TableSource, typer.Option("--from", help="local: what `tables tune` keeps; service: what jobs have found.")
    ] = TableSource.LOCAL,
    as_json: JsonFlag = False,
) -> None:
    """Show the table of a family that was tuned on this machine, or by a job."""
    _, family = _family(kernel, shape, dtype, option, same=batch_invariant)
    if source is TableSource.SERVICE:
        with connect() as connection:
            answer = connection.table(kernel, device_model, family.stated_shape, dtype, family.options)
        print_json(answer) if as_json else print_tuned_table(answer)
        return
    document = _folder().get(family, device_model)
    if document is None:
        remedy = f"tilewright tables tune {kernel} --shape {family.shape_text}"
        raise CommandError(
            f"there is no table for {family} on {device_model}. Tune it: {remedy}", ExitCode.NOTHING_FOUND
        )
    print_json(document) if as_json else _print(family.axis, document)


def print_tuned_table(table: TableAnswer) -> None:
    """Prints a table of the service."""
    _print(table.at_launch, table.model_dump(mode="json"))


def _family(kernel: str, shape: str, dtype: str, option: list[str] | None, *, same: bool) -> tuple[Kernel, Family]:
    from tilewright.kernels.family import Family
    from tilewright.service.operations.catalog import kernel_named
    from tilewright.service.operations.parse import parse_open_shape, parse_options

    declared = kernel_named(kernel)
    return declared, Family.of(declared, parse_open_shape(shape), dtype, parse_options(option), batch_invariant=same)


def _folder() -> Any:
    from tilewright.tuner.runtime.any_size.tables import TableFolder, default_tables

    return TableFolder(default_tables())


def _is_called(stated: Mapping[str, Any]) -> bool:
    """Whether launchers make the library's call in that range."""
    return bool((stated["library"] or {}).get("launched"))


def _print(axis: str, document: Mapping[str, Any]) -> None:
    rows = [
        (
            f"{one['low']}..{one['high']}",
            f"{one['library']['name']}, before {one['variant']}" if _is_called(one) else one["variant"],
            " ".join(f"{name}={value}" for name, value in one["configuration"].items()),
            ", ".join(f"{size}: {ms * 1e3:.1f}" for size, ms in one["times_ms"].items()),
        )
        for one in document["ranges"]
    ]
    print_table((axis, "variant", "configuration", "times (us)"), rows)
    loss = document["loss"]
    data.print(
        f"loss over the best of each measured size: mean {loss['mean']:.1%}, largest {loss['largest']:.1%}; "
        f"{document['trials']} trials of {document['compilations']} compilations in {document['seconds']} s"
    )
