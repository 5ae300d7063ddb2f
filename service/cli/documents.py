"""Documents that `export`, `import` and `bundle` read and write: by the API if the settings name one, or the
database.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tilewright.service.cli.connection import connect
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import data, note, print_facts, print_json, warn
from tilewright.service.client.exchange import ExchangeClient
from tilewright.service.operations import registry
from tilewright.service.operations.bundles.bundle import bundle
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.exchange.export import ExportSelection, export_studies
from tilewright.service.operations.exchange.foreign_export import export_kernel_tuner, export_t4
from tilewright.service.operations.exchange.import_document import import_document
from tilewright.service.operations.exchange.incoming import import_options_of
from tilewright.service.operations.exchange.report import ImportAnswer, Reason
from tilewright.service.operations.exchange.serving import default_row, described, serving_files
from tilewright.service.operations.parse import parse_renames
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.tuner.search.optuna_storage import write_storage as write_optuna_storage

CHUNK = 1 << 16


def write_export(
    format_: str, selection: ExportSelection, study: int | None, variant: str | None, out: Path | None
) -> None:
    """Writes the document in that format, to stdout if there is no file; says where the next one begins."""
    if settings().url:
        with ExchangeClient(settings().url or "", key=settings().key) as client:
            query = {
                "kernel": selection.kernel,
                "device_model": selection.device_model,
                "trials": selection.trials or None,
                "cursor": selection.cursor,
            }
            _write(client.export(format=format_, study_id=study, variant=variant, **query), out)
        return
    with connect():
        _write((piece.encode() for piece in _local_export(format_, selection, study or 0, variant)), out)


def read_document(file: Path, options: Mapping[str, str | None], *, dry_run: bool, as_json: bool) -> None:
    """Imports the document and prints the report; raises CommandError if nothing of it is here afterwards."""
    target = import_options_of(options)
    body = _read(file)
    if settings().url:
        with ExchangeClient(settings().url or "", key=settings().key) as client:
            answer = client.import_document(body, {**options, "dry_run": dry_run or None})
    else:
        with connect():
            answer = import_document(body, target, dry_run=dry_run)
    _print_import(answer, as_json=as_json)
    _check_import(answer)


def write_serving_files(kernel: str | None, device_model: str | None, rename: Sequence[str], out: Path | None) -> None:
    """A file for each shape but for m and each device model, from what a bundle has of the kernel."""
    if kernel is None or out is None:
        raise CommandError("--format vllm needs --kernel NAME and --out FOLDER", ExitCode.USAGE)
    names = parse_renames(rename)
    files: dict[str, Mapping[str, object]] = {}
    for text in bundles(device_model, with_sources=False).values():
        files |= serving_files(json.loads(text), kernel_named(kernel), names)
    if not files:
        raise CommandError(f"{kernel} has no result that such a file could hold", ExitCode.NOTHING_FOUND)
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        (out / name).write_text(json.dumps(rows, indent=4) + "\n")
        data.print(str(out / name))
        note(f"{name}: {described(rows, default_row(kernel_named(kernel), names))}")


def bundles(device_model: str | None, *, with_sources: bool) -> dict[str, str]:
    """The bundle of each device model, or of that one."""
    if settings().url:
        with ExchangeClient(settings().url or "", key=settings().key) as client:
            slugs = [device_model] if device_model else [model.slug for model in client.device_models()]
            return {slug: client.bundle(slug, with_sources=with_sources) for slug in slugs}
    with connect(), transaction() as session:
        slugs = [device_model] if device_model else [model.slug for model in registry.device_models(session)]
        return {slug: bundle(session, slug, with_sources=with_sources) for slug in slugs}


def write_storage(study: int, out: Path | None) -> None:
    """Writes the study's trials as an Optuna storage, made from its T4 document, which the API gives too."""
    if out is None:
        raise CommandError("--format optuna writes a SQLite file; name it with --out FILE", ExitCode.USAGE)
    if settings().url:
        with ExchangeClient(settings().url or "", key=settings().key) as client:
            document = b"".join(client.export(format="t4", study_id=study)).decode()
    else:
        with connect():
            document = "".join(export_t4(study))
    count = write_optuna_storage(json.loads(document), out, f"study {study}")
    note(f"{count} trials in {out}: optuna-dashboard sqlite:///{out}")


def _local_export(format_: str, selection: ExportSelection, study: int, variant: str | None) -> Iterator[str]:
    if format_ == "t4":
        return export_t4(study)
    if format_ == "kernel-tuner":
        return export_kernel_tuner(study, variant)
    return export_studies(selection)


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
    tables = f", {answer.tables} tables" if answer.tables else ""
    print_facts(
        [
            ("format", answer.format),
            ("origin", answer.origin),
            ("added", f"{answer.studies} studies, {answer.trials} trials, {answer.best} best configurations{tables}"),
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
    if answer.studies or answer.tables or Reason.ALREADY_HERE in answer.reasons:
        return
    counts = ", ".join(f"{count} {reason.value}" for reason, count in answer.reasons.items())
    raise CommandError(f"nothing was imported: {counts or 'the document has no results'}")
