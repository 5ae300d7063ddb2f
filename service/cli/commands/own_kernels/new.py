"""`kernels new`: the folder of a kernel, made from its source."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from tilewright.kernels.errors import BrokenDeclarationError
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import print_facts, warn
from tilewright.service.settings import settings


def new(
    path: Annotated[Path, typer.Argument(metavar="FILE.cu", help="CUDA source with a __global__ function.")],
    *,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder to make. Default: the kernel's name, here.")
    ] = None,
    entry: Annotated[
        str, typer.Option("--entry", help="The function, where the source has several: NAME, or NAME<…> of a template.")
    ] = "",
    include: Annotated[
        list[Path] | None,
        typer.Option("--include", help="Folder of headers that the source includes in quotes; repeatable."),
    ] = None,
) -> None:
    """Make a first declaration for a kernel that you have, with the arguments and parameters that its source shows."""
    if path.suffix == ".py":
        reason = "first declarations are made from CUDA sources. docs/triton.md shows one for a Triton function"
        raise CommandError(f"{path}: {reason}")
    from tilewright.kernels.catalogue import Catalogue
    from tilewright.kernels.own import own_kernel
    from tilewright.tuner.cuda_source.passed import UnclearSourceError
    from tilewright.tuner.kernel_check.first import first_declaration

    try:
        source = path.read_text(encoding="utf-8-sig")
        made = first_declaration(
            source,
            path.name,
            entry or None,
            here=path.parent,
            folders=include or (),
            taken_names=Catalogue.load(settings().kernel_folders).by_name,
        )
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}", ExitCode.USAGE) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        reason = f"line {line} has the byte 0x{byte:02x}, which is not UTF-8. Save the file as UTF-8"
        raise CommandError(f"{path} cannot be read: {reason}", ExitCode.USAGE) from error
    except UnclearSourceError as error:
        raise CommandError(f"{path}: {error}") from error
    target = folder or Path(made.name)
    try:
        target.mkdir(parents=True)
    except OSError as error:
        raise CommandError(f"{target} cannot be made: {error.strerror}. Name another folder with --folder") from error
    try:
        for name, text in [*made.headers.items(), (made.file_name, made.source)]:
            (target / name).write_text(text, encoding="utf-8")
        (target / "declaration.py").write_text(made.declaration, encoding="utf-8")
        kernel = own_kernel(target, settings().kernel_folders)
    except (OSError, BrokenDeclarationError) as error:
        shutil.rmtree(target)
        raise CommandError(f"{path}: no declaration could be made from it. {error}") from error
    if made.missing:
        names = ", ".join(made.missing)
        warn(f"left out, as they are not beside {path.name}: {names}. If the kernel needs them, name --include FOLDER")
    parameters = (f"{p.name} ({', '.join(map(str, p.values))})" for p in kernel.variants[0].parameters)
    print_facts(
        [
            ("kernel", kernel.name),
            ("arguments", ", ".join(argument.name for argument in kernel.arguments)),
            ("parameters", ", ".join(parameters) or "none found: macros that are defined as numbers would be"),
            ("declaration", f"{target / 'declaration.py'}: look at its shapes, roles and launch"),
            ("then", f"tilewright kernels check {target}"),
        ]
    )
