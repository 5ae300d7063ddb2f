"""`kernels check`, `new` and `adopt`: kernels of one's own, in folders."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.kernels.errors import BrokenDeclarationError
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import JsonFlag, data, note, print_facts, print_json, print_table, warn
from tilewright.service.operations.parse import SHAPE_EXAMPLE, parse_shape
from tilewright.service.settings import settings

if TYPE_CHECKING:
    from tilewright.tuner.adopt.adopt import Adopted
    from tilewright.tuner.kernel_check.report import KernelCheckReport

TARGETS = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120")  # those of kernels.own; a test compares them

USUAL_TARGETS = ("sm_75", "sm_90", "sm_120")  # the oldest, the one with most shared memory, the newest


def check(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Folder with declaration.py and the sources.")],
    *,
    arch: Annotated[
        list[str] | None,
        typer.Option(
            "--arch", help=f"GPU target: {', '.join(TARGETS)}; repeatable. Default: {', '.join(USUAL_TARGETS)}."
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="M=…,N=…", help=f"Shape to compute, like {SHAPE_EXAMPLE}; repeatable."),
    ] = None,
    configurations: Annotated[
        int,
        typer.Option(
            "--configurations", min=1, help="Configurations to compute per variant and problem, besides the default."
        ),
    ] = 4,
    no_compile: Annotated[bool, typer.Option("--no-compile", help="Do not compile for GPUs.")] = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="Do not compute on the CPU.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Check a kernel of your own; needs no GPU and no database. Runs its declaration and its sources."""
    unknown = [name for name in arch or () if name not in TARGETS]
    if unknown:
        raise CommandError(f"--arch: there is no target {unknown[0]!r}. Targets: {', '.join(TARGETS)}", ExitCode.USAGE)
    from tilewright.kernels.own import CAPABILITIES, own_kernel
    from tilewright.tuner.compile.compilation import arch_of
    from tilewright.tuner.kernel_check.check import check_kernel
    from tilewright.tuner.kernel_check.report import Finding, KernelCheckReport

    try:
        kernel = own_kernel(path, settings().kernel_folders)
    except BrokenDeclarationError as error:
        finding = Finding("error", "declaration", str(error.folder / "declaration.py"), error.reason)
        _show(KernelCheckReport("", [finding]), path, as_json=as_json)
    shapes = [dict(kernel.problem(parse_shape(text), kernel.dtypes[0]).shape) for text in shape or ()]
    report = check_kernel(
        kernel,
        KernelCheckReport(kernel.name),
        capabilities=[one for one in CAPABILITIES if arch_of(one) in (arch or USUAL_TARGETS)],
        shapes=shapes,
        configurations=configurations,
        compile_it=not no_compile,
        run_it=not no_run,
        say=note,
    )
    _show(report, path, as_json=as_json)


def _show(report: KernelCheckReport, path: Path, *, as_json: bool) -> None:
    """Prints the report and raises typer.Exit, with 1 if it has an error."""
    if as_json:
        print_json({"folder": str(path), "ok": report.ok, **asdict(report)})
    else:
        if report.spaces:
            columns = ("variant", "dtype", "target", "combinations", "configurations")
            print_table(columns, [(one.variant, one.dtype, one.target, one.before, one.after) for one in report.spaces])
        for finding in report.findings:
            data.print(f"{finding.severity:<5} {finding}")
        done = f"{report.compiled} compiled, {report.verified} computed, {report.sanitized} sanitizer runs"
        data.print(f"{report.kernel or path}: {'no errors' if report.ok else 'has errors and cannot be tuned'}; {done}")
    raise typer.Exit(ExitCode.DONE if report.ok else ExitCode.FAILED)


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


def adopt_script(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="Script that calls Kernel Tuner.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="Arguments of the script, after --.")
    ] = None,
    *,
    folder: Annotated[Path, typer.Option("--folder", help="Where to make the kernels' folders.")] = Path(),
    python: Annotated[
        str, typer.Option("--python", help="Python that has the script's packages. Default: the one that runs this.")
    ] = "",
    time_limit: Annotated[float, typer.Option("--time-limit", min=1, help="Seconds that the script may take.")] = 600,
    contents_limit: Annotated[
        int, typer.Option("--contents-limit", min=0, help="Largest array that is kept in a file, in MiB.")
    ] = 256,
    as_json: JsonFlag = False,
) -> None:
    """Make the folder of each kernel that a Kernel Tuner script tunes. Runs the script, but tunes nothing."""
    if not script.is_file():
        what = f"{script} is a folder: name the script in it" if script.is_dir() else f"there is no script {script}"
        raise CommandError(what, ExitCode.USAGE)
    from tilewright.tuner.adopt.adopt import adopt

    adoption = adopt(
        script,
        arguments or (),
        target=folder,
        python=python or sys.executable,
        limit_s=time_limit,
        limit_bytes=contents_limit * 2**20,
        others=settings().kernel_folders,
    )
    if as_json:
        print_json({"notes": adoption.notes, "calls": [_as_json(call) for call in adoption.calls]})
    else:
        for text in adoption.notes:
            note(text)
        for call in adoption.calls:
            _print(call)
    if not any(call.folder for call in adoption.calls):
        raise CommandError(f"{script}: none of its {len(adoption.calls)} calls could be taken over")


def _as_json(call: Adopted) -> dict[str, object]:
    return {
        "call": call.call,
        "kernel_name": call.kernel_name,
        "folder": call.folder and str(call.folder),
        "refused": call.refused or None,
        "notes": list(call.notes),
    }


def _print(call: Adopted) -> None:
    if call.folder is None:
        warn(f"call {call.call}, {call.kernel_name}: {call.refused}")
        return
    facts = [("kernel", call.folder.name), *(("note", text) for text in call.notes)]
    print_facts([*facts, ("then", f"tilewright kernels check {call.folder}")])
