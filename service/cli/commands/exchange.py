"""`export`, `import`, `bundle`: results as documents."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import JsonFlag, data, note


class ExportFormat(StrEnum):
    """The formats of an export."""

    TILEWRIGHT = "tilewright"
    T4 = "t4"
    KERNEL_TUNER = "kernel-tuner"
    OPTUNA = "optuna"
    VLLM = "vllm"


def export(
    *,
    kernel: Annotated[str | None, typer.Option("--kernel", help="Only this kernel.")] = None,
    device_model: Annotated[str | None, typer.Option("--device-model", help="Only this device model.")] = None,
    trials: Annotated[bool, typer.Option("--trials", help="All trials of each study.")] = False,
    format_: Annotated[
        ExportFormat,
        typer.Option(
            "--format",
            help="t4, kernel-tuner, optuna (SQLite): one study each; vllm: a file for each shape without its m.",
        ),
    ] = ExportFormat.TILEWRIGHT,
    study: Annotated[
        int | None, typer.Option("--study", min=1, help="The study, for all formats but tilewright.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", help="For kernel-tuner: the trials of this variant.")
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="THEIRS=OURS", help="For vllm: a parameter's name in the file and here."),
    ] = None,
    cursor: Annotated[str | None, typer.Option("--cursor", help="next_cursor of the previous document.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; for vllm a folder.")] = None,
) -> None:
    """Write this installation's results as a document."""
    if (study is None) != (format_ in {ExportFormat.TILEWRIGHT, ExportFormat.VLLM}):
        raise CommandError(
            "--format t4, kernel-tuner and optuna need --study, and --study needs one of them", ExitCode.USAGE
        )
    from tilewright.service.cli import documents
    from tilewright.service.operations.exchange.export import ExportSelection

    if format_ is ExportFormat.VLLM:
        documents.write_serving_files(kernel, device_model, rename or (), out)
    elif format_ is ExportFormat.OPTUNA:
        documents.write_storage(study or 0, out)
    else:
        selection = ExportSelection(kernel, device_model, trials, cursor=cursor)
        documents.write_export(format_.value, selection, study, variant, out)


def import_results(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The document, as JSON or gzipped JSON.")],
    *,
    origin: Annotated[
        str, typer.Option("--origin", help="Name of the installation that the results come from.")
    ] = "elsewhere",
    kernel: Annotated[str | None, typer.Option("--kernel", help="For another tool's file: its kernel.")] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", metavar="M=…,N=…", help="For another tool's file: its shape.")
    ] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="For another tool's file: its dtype.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="For another tool's file: an option of the kernel; repeatable."
        ),
    ] = None,
    device_model: Annotated[
        str | None,
        typer.Option("--device-model", help="For another tool's file: slug or product name, like nvidia-a100."),
    ] = None,
    limits: Annotated[
        str | None,
        typer.Option(
            "--limits",
            metavar="NAME=VALUE,…",
            help="For a device model that is new here: compute_capability, multiprocessors, memory_gib, and if known "
            "clock_mhz, gb_per_s, l2_mib.",
        ),
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(
            "--variant", help="For another tool's file: the variant. Default: the one that has its parameters."
        ),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="THEIRS=OURS", help="A parameter's name in the file and here; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and report; store nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Import results of another installation or tool; reports what it left out and why."""
    from tilewright.service.cli import documents

    options = {
        "origin": origin,
        "kernel": kernel,
        "shape": shape,
        "dtype": dtype,
        "options": ",".join(option) if option else None,
        "device_model": device_model,
        "limits": limits,
        "variant": variant,
        "rename": ",".join(rename) if rename else None,
    }
    documents.read_document(file, options, dry_run=dry_run, as_json=as_json)


def bundle(
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write.")] = None,
    device_model: Annotated[
        str | None, typer.Option("--device-model", help="Only this device model. Default: all.")
    ] = None,
    sources: Annotated[bool, typer.Option("--sources", help="Include the source code.")] = False,
    cubins: Annotated[
        bool, typer.Option("--cubins", help="Include compiled code, for applications without NVRTC.")
    ] = False,
    sign: Annotated[Path | None, typer.Option("--sign", help="Sign with this Ed25519 private key (PEM).")] = None,
    check: Annotated[Path | None, typer.Option("--check", help="Check this folder instead of writing one.")] = None,
    public_key: Annotated[
        Path | None, typer.Option("--public-key", help="Check the signature with this public key (PEM).")
    ] = None,
    allow_older: Annotated[
        bool, typer.Option("--allow-older", help="Accept a folder that is older than the last one accepted here.")
    ] = False,
) -> None:
    """Write one file per device model with everything that applications need at run time, or check such a folder."""
    if (out is None) == (check is None):
        raise CommandError("give either --out FOLDER or --check FOLDER", ExitCode.USAGE)
    from tilewright.service.cli import documents
    from tilewright.service.operations.bundles.folder import check_bundles, with_cubins, write_bundles

    if check is not None:
        names = check_bundles(check, public_key, allow_older=allow_older)
        signed = "" if public_key is None else ", signed with that key"
        note(f"{len(names)} unchanged since written{signed}: {', '.join(names)}")
        return
    texts = documents.bundles(device_model, with_sources=sources)
    if not texts:
        raise CommandError("no device model has been registered yet", ExitCode.NOTHING_FOUND)
    if cubins:
        texts = {slug: with_cubins(text) for slug, text in texts.items()}
    for path in write_bundles(out or Path(), texts, sign):
        data.print(str(path))
