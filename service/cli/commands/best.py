"""`best`: the best known configuration of a problem on a device model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.arguments import DtypeOption, KernelArgument, KernelOptions, ShapeOption
from tilewright.service.cli.connection import connect
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import JsonFlag, print_json
from tilewright.service.cli.report import print_best
from tilewright.service.operations.parse import parse_options, parse_shape
from tilewright.service.settings import settings

if TYPE_CHECKING:
    from tilewright.service.cli.connection import Connection

NO_DEVICE = "No device has been registered yet. A worker registers its device; start one: tilewright worker"


def best(
    kernel: KernelArgument,
    shape: ShapeOption,
    device_model: Annotated[
        str | None,
        typer.Option("--device-model", help="Slug, like nvidia-h200. Default: the only device model that has devices."),
    ] = None,
    dtype: DtypeOption = "float32",
    option: KernelOptions = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the best known configuration, without measuring anything."""
    sizes, options = parse_shape(shape), parse_options(option)
    if settings().url is None:  # an API may have kernels that this installation has not
        from tilewright.service.operations.catalog import kernel_named

        kernel_named(kernel).problem(sizes, dtype, options)
    with connect() as connection:
        model = device_model or only_device_model(connection)
        answer = connection.best(kernel, model, sizes, dtype, options)
    if as_json:
        print_json(answer)
    else:
        print_best(answer, url=settings().url)


def only_device_model(connection: Connection, *, to_measure: bool = False) -> str:
    """The slug of the only device model that has devices; raises CommandError listing them if there are several.

    If none has any, the only known device model will do, except `to_measure`.
    """
    models = sorted({device.model for device in connection.devices()})
    if not models and not to_measure:
        models = [model.slug for model in connection.device_models()]
    if not models:
        raise CommandError(NO_DEVICE, ExitCode.NO_DEVICE)
    if len(models) > 1:
        message = f"There are several device models: {', '.join(models)}. Choose one: --device-model {models[0]}"
        raise CommandError(message, ExitCode.USAGE)
    return models[0]
