"""`export`, `import`, `bundle`: results as documents."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tilewright.service.cli.connection import connect
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import JsonFlag, data, note, print_facts, print_json, warn
from tilewright.service.client.exchange import ExchangeClient
from tilewright.service.operations import registry
from tilewright.service.operations.bundles.bundle import bundle as bundle_of
from tilewright.service.operations.bundles.cubins import with_cubins
from tilewright.service.operations.bundles.folder import check_bundles, write_bundles
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.exchange import export as exchange_export
from tilewright.service.operations.exchange import foreign_export as exchange_foreign_export
from tilewright.service.operations.exchange.import_document import import_document
from tilewright.service.operations.exchange.incoming import import_options_of
from tilewright.service.operations.exchange.report import ImportAnswer, Reason
from tilewright.service.operations.exchange.serving import serving_files
from tilewright.service.operations.parse import parse_renames
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.tuner.search.optuna_storage import write_storage

CHUNK = 1 << 16


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
            help="t4, kernel-tuner and optuna (a SQLite file) hold one study; vllm is a file for each shape but for m.",
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
        typer.Option("--rename", metavar="THEIRS=OURS", help="For vllm: a parameter's name there and here."),
    ] = None,
    cursor: Annotated[str | None, typer.Option("--cursor", help="next_cursor of the previous document.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; for vllm a folder.")] = None,
) -> None:
    """Write this installation's results as a document."""
    if (study is None) != (format_ in {ExportFormat.TILEWRIGHT, ExportFormat.VLLM}):
        raise CommandError(
            "--format t4, kernel-tuner and optuna need --study, and --study needs one of them", ExitCode.USAGE
        )
    if format_ is ExportFormat.VLLM:
        _write_serving_files(kernel, device_model, rename or (), out)
        return
    if format_ is ExportFormat.OPTUNA:
        _write_storage(study or 0, out)
        return
    if settings().url:
        with ExchangeClient(settings().url or "", key=settings().key) as client:
            query = {"kernel": kernel, "device_model": device_model, "trials": trials or None, "cursor": cursor}
            _write(
                client.export(format=format_.value, study_id=study, variant=variant, **query),
                out,
            )
        return
    with connect():
        wanted = exchange_export.ExportSelection(kernel, device_model, trials, cursor=cursor)
        _write((piece.encode() for piece in _local_export(format_, wanted, study or 0, variant)), out)


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
        str | None, typer.Option("--variant", help="For another tool's file. Default: the one with its parameters.")
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="THEIRS=OURS", help="A parameter's name there and here; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and report; store nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Import results of another installation or tool; reports what it left out and why."""
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
    target = import_options_of(options)
    body = _read(file)
    if settings().url:
        with ExchangeClient(settings().url or "", key=settings().key) as client:
            answer = client.import_document(body, options | {"dry_run": dry_run or None})
    else:
        with connect():
            answer = import_document(body, target, dry_run=dry_run)
    _print_import(answer, as_json=as_json)
    _check_import(answer)


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
    if check is not None:
        names = check_bundles(check, public_key, allow_older=allow_older)
        signed = "" if public_key is None else ", signed with that key"
        note(f"{len(names)} unchanged since written{signed}: {', '.join(names)}")
        return
    documents = _bundles(device_model, with_sources=sources)
    if not documents:
        raise CommandError("no device model has been registered yet", ExitCode.NOTHING_FOUND)
    if cubins:
        documents = {slug: with_cubins(text) for slug, text in documents.items()}
    for path in write_bundles(out or Path(), documents, sign):
        data.print(str(path))


def _write_serving_files(kernel: str | None, device_model: str | None, rename: Sequence[str], out: Path | None) -> None:
    """A file for each shape but for m and each device model, from what a bundle has of the kernel."""
    if kernel is None or out is None:
        raise CommandError("--format vllm needs --kernel NAME and --out FOLDER", ExitCode.USAGE)
    names = parse_renames(rename)
    files: dict[str, Mapping[str, object]] = {}
    for text in _bundles(device_model, with_sources=False).values():
        files |= serving_files(json.loads(text), kernel_named(kernel), names)
    if not files:
        raise CommandError(f"{kernel} has no result that such a file could hold", ExitCode.NOTHING_FOUND)
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        (out / name).write_text(json.dumps(rows, indent=4) + "\n")
        data.print(str(out / name))


def _bundles(device_model: str | None, *, with_sources: bool) -> dict[str, str]:
    if settings().url:
        with ExchangeClient(settings().url or "", key=settings().key) as client:
            slugs = [device_model] if device_model else [model.slug for model in client.device_models()]
            return {slug: client.bundle(slug, with_sources=with_sources) for slug in slugs}
    with connect(), transaction() as session:
        slugs = [device_model] if device_model else [model.slug for model in registry.device_models(session)]
        return {slug: bundle_of(session, slug, with_sources=with_sources) for slug in slugs}


def _write_storage(study: int, out: Path | None) -> None:
    """Writes the study's trials as an Optuna storage, made from its T4 document, which the API gives too."""
    if out is None:
        raise CommandError("--format optuna writes a SQLite file; name it with --out FILE", ExitCode.USAGE)
    if settings().url:
        with ExchangeClient(settings().url or "", key=settings().key) as client:
            document = b"".join(client.export(format=ExportFormat.T4.value, study_id=study)).decode()
    else:
        with connect():
            document = "".join(exchange_foreign_export.export_t4(study))
    count = write_storage(json.loads(document), out, f"study {study}")
    note(f"{count} trials in {out}: optuna-dashboard sqlite:///{out}")


def _local_export(
    format_: ExportFormat, wanted: exchange_export.ExportSelection, study: int, variant: str | None
) -> Iterator[str]:
    if format_ is ExportFormat.T4:
        return exchange_foreign_export.export_t4(study)
    if format_ is ExportFormat.KERNEL_TUNER:
        return exchange_foreign_export.export_kernel_tuner(study, variant)
    return exchange_export.export_studies(wanted)


def _write(pieces: Iterator[bytes], out: Path | None) -> None:
    """Writes the document; a file appears when it is complete."""
    tail = b""
    if out is None:
        for piece in pieces:
            sys.stdout.write(piece.decode())
            tail = (tail + piece)[-200:]
    else:
        partial = out.with_name(f".{out.name}.new")
        try:
            with partial.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
                    tail = (tail + piece)[-200:]
            partial.replace(out)
        finally:
            partial.unlink(missing_ok=True)
    _, found, cursor = tail.rstrip().rpartition(b'"next_cursor":"')
    if found:
        warn(f"there are more studies: --cursor {cursor.split(bytes([34]))[0].decode()}")


def _read(file: Path) -> bytes:
    """The document, unpacked if it is gzipped; raises CommandError if it is larger than allowed."""
    most, content = settings().max_import_bytes, bytearray()
    unpack = zlib.decompressobj(wbits=31)
    with file.open("rb") as opened:
        packed = opened.read(2) == b"\x1f\x8b"
        opened.seek(0)
        while part := opened.read(CHUNK):
            try:
                content += unpack.decompress(part, most + 1) if packed else part
            except zlib.error as error:
                raise CommandError(f"{file.name}: {error}", ExitCode.USAGE) from error
            if len(content) > most:
                raise CommandError(
                    f"{file.name} is larger than {most} bytes, the limit (TILEWRIGHT_MAX_IMPORT_BYTES)", ExitCode.USAGE
                )
    if packed and not unpack.eof:
        raise CommandError(f"{file.name} is incomplete: the gzip stream ends too early", ExitCode.USAGE)
    return bytes(content)


def _print_import(answer: ImportAnswer, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    print_facts(
        [
            ("format", answer.format),
            ("origin", answer.origin),
            ("added", f"{answer.studies} studies, {answer.trials} trials, {answer.best} best configurations"),
            ("left out", None if answer.reasons else "nothing"),
            *(("left out", _reason(answer, reason, count)) for reason, count in answer.reasons.items()),
        ]
    )
    if answer.dry_run:
        note("dry run: nothing was stored")


def _reason(answer: ImportAnswer, reason: Reason, count: int) -> str:
    first = next(row for row in answer.rows if row.reason is reason)
    return f"{count} {reason.value}, the first at {first.pointer or '/'}: {first.detail}"


def _check_import(answer: ImportAnswer) -> None:
    """Raises CommandError if nothing of the document is here, imported now or before."""
    if answer.studies or Reason.ALREADY_HERE in answer.reasons:
        return
    counts = ", ".join(f"{count} {reason.value}" for reason, count in answer.reasons.items())
    raise CommandError(f"nothing was imported: {counts or 'the document has no results'}")
