"""`kernels check`: whether the kernel in a folder can be tuned."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.kernels.errors import BrokenDeclarationError
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import JsonFlag, data, note, print_json, print_table
from tilewright.service.operations.parse import SHAPE_EXAMPLE, parse_shape
from tilewright.service.settings import settings

if TYPE_CHECKING:
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
