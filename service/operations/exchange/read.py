"""Reads a document of any supported format into one form; nothing in it is trusted before it is checked."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations import strict_json
from tilewright.service.operations.exchange.document import FORMAT, Document
from tilewright.service.operations.exchange.foreign import read_kernel_tuner, read_ktt, read_t4
from tilewright.service.operations.exchange.incoming import ImportOptions, IncomingDocument, IncomingStudy, refused
from tilewright.service.operations.exchange.report import printable
from tilewright.tuner.devices.device import Environment


def read_document(body: bytes, target: ImportOptions) -> IncomingDocument:
    """The document; raises InvalidRequestError naming the place for one that cannot be read."""
    data = _parse(body)
    named = data.get("format")
    if named == FORMAT:
        return _ours(body, target)
    if named is not None:
        reason = f"is {str(named)[:40]!r}; supported are {FORMAT}, T4 (1.x), Kernel Tuner's cache and KTT's."
        raise InvalidRequestError("format", reason, FORMAT)
    if "cache" in data and "tune_params_keys" in data:
        return read_kernel_tuner(data, target)
    if "results" in data and "schema_version" in data:
        return read_t4(data, target)
    if "Results" in data and "Metadata" in data:
        return read_ktt(data, target)
    reason = (
        f"the document is neither {FORMAT} (member format), nor T4 (schema_version, results), nor a Kernel Tuner cache "
        "(cache, tune_params_keys), nor KTT's results (Metadata, Results)."
    )
    raise InvalidRequestError("format", reason, FORMAT)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        data = _strictly(body)
    except strict_json.MalformedJSONError as error:
        reason = str(error).replace("The body", "It")
        raise InvalidRequestError("document", f"must be JSON, or gzipped JSON. {reason}") from None
    except strict_json.RefusedJSONError as error:
        place = printable(error.pointer.strip("/").replace("/", "."))
        raise InvalidRequestError(place or "document", printable(error.reason)) from None
    if not isinstance(data, dict):
        raise InvalidRequestError("document", "must be a JSON object.")
    return data


def _strictly(body: bytes) -> Any:
    """The value; a number that JSON does not have, such as NaN, becomes null in other tools' files.

    The cache of a Kernel Tuner run that was not ended lacks its last two braces, which are put there.
    """
    try:
        return strict_json.read(body)
    except strict_json.MalformedJSONError:
        is_cache = b'"tune_params_keys"' in body and b'"cache"' in body
        if not is_cache and b'"Metadata"' not in body and b'"schema_version"' not in body:
            raise
        for ending in [b"", b"}}"][: 1 + is_cache]:
            with suppress(strict_json.MalformedJSONError):
                data = strict_json.read((body.rstrip().rstrip(b",") if ending else body) + ending, has_nan=True)
                if isinstance(data, dict) and "format" not in data:
                    return data
        raise


def _ours(body: bytes, target: ImportOptions) -> IncomingDocument:
    try:
        document = Document.model_validate_json(body)
    except ValidationError as error:
        raise refused(error) from None
    described = {part.slug: part.device_model() for part in document.device_models}
    studies = [
        IncomingStudy(
            pointer=f"/studies/{place}",
            problem=study.problem,
            device_model=study.device_model,
            environment=Environment(**study.environment.model_dump()),
            space_size=study.space_size,
            trials=dict(enumerate(study.trials)),
            best=study.best,
            is_verified=True,
        )
        for place, study in enumerate(document.studies)
    ]
    return IncomingDocument(FORMAT, target.origin, studies, described, document.tables)
