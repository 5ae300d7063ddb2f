"""A folder of bundles as it is handed on: one file a device model, SHA256SUMS, and a signature of that.

`tuner/runtime/bundles/folder.py` reads and checks it, for applications too.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tilewright.kernels.family import Family
from tilewright.kernels.space import Configuration
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations import strict_json
from tilewright.service.operations.bundles.bundle import as_text
from tilewright.service.operations.registry import catalogue, tuned_for
from tilewright.tuner.compile.cache import CubinCache, compiled_by
from tilewright.tuner.compile.compilation import Compilation, Compiled, arch_of
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.runtime.bundles import folder as bundle_folder
from tilewright.tuner.runtime.bundles.dates import files_not_older
from tilewright.tuner.runtime.bundles.folder import (
    FORMAT,
    MAX_FILE_BYTES,
    SIGNATURE,
    SUMS,
    BrokenBundleError,
    SigningKeyError,
    made_line,
)

__all__ = ["BrokenBundleError", "check_bundles", "file_name", "is_signed", "sign", "write_bundles"]


def file_name(slug: str) -> str:
    """The file of a device model: its slug, with `-` for what a file system may not take."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", slug).lstrip(".-") + ".json"


def write_bundles(folder: Path, documents: Mapping[str, str], private_key: Path | None) -> list[Path]:
    """The files, each complete or not there: documents by slug, the sums, and with a key their signature."""
    names = {file_name(slug): text.encode() for slug, text in documents.items()}
    if len(names) != len(documents):
        raise InvalidRequestError(
            "device_model", "two slugs give the same file name; write their bundles to separate folders."
        )
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(names.items())]
    # A signature covers the date, so that an old folder with a good signature is known as old.
    head = made_line(datetime.now(UTC)) if private_key is not None else ""
    sums = (head + "".join(lines)).encode()
    signature = sign(sums, private_key) if private_key is not None else None
    folder.mkdir(parents=True, exist_ok=True)
    contents = names | {SUMS: sums} | ({SIGNATURE: signature} if signature is not None else {})
    for name, content in contents.items():
        _write(folder / name, content)
    if signature is None:
        (folder / SIGNATURE).unlink(missing_ok=True)  # of what was there before
    return [folder / name for name in contents]


def check_bundles(folder: Path, public_key: Path | None, *, allow_older: bool = False) -> list[str]:
    """The names of the files, after a check that they are as they were made; raises BrokenBundleError.

    With a key the sums must be signed by it, since sums alone only tell of accidents, and the folder may be no older
    than what was used or checked here before, unless `allow_older` says so.
    """
    with _bad_keys_refused():
        contents = files_not_older(folder, public_key, allow_older=allow_older).contents
    for name, content in contents.items():
        _check_format(name, content)
    return list(contents)


def sign(content: bytes, private_key: Path) -> bytes:
    """The Ed25519 signature (RFC 8032), 64 bytes; the key is PEM without a password."""
    with _bad_keys_refused():
        key = bundle_folder.load_key("load_pem_private_key", private_key, "Ed25519PrivateKey")
    return bytes(key.sign(content))


def is_signed(content: bytes, signature: bytes, public_key: Path) -> bool:
    """Whether that is the key's signature of the content."""
    with _bad_keys_refused():
        return bundle_folder.is_signed(content, signature, public_key)


@contextmanager
def _bad_keys_refused() -> Iterator[None]:
    try:
        yield
    except SigningKeyError as error:
        raise InvalidRequestError("key", str(error)) from None


def _check_format(name: str, content: bytes) -> None:
    try:
        document = strict_json.read(content)
    except (strict_json.MalformedJSONError, strict_json.RefusedJSONError) as error:
        raise BrokenBundleError(f"{name}: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BrokenBundleError(f"{name} is not a {FORMAT} file.")


def _write(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".new", delete=False) as file:
        file.write(content)
    temporary = Path(file.name)
    temporary.chmod(0o644)
    temporary.replace(path)


def with_cubins(text: str) -> str:
    """The document with `cubins` by hash, and `cubin` in each result and each range; compiled here by NVRTC, or cached.

    Raises NoCompilerError, and InvalidRequestError for a CPU, for code that does not compile and for too large a file.
    """
    document = json.loads(text)
    major, minor = map(int, document["device_model"]["compute_capability"].split("."))
    if (major, minor) == (0, 0):
        raise InvalidRequestError(
            "cubins", f"{document['device_model']['slug']} is not a GPU; cubins exist only for GPUs."
        )
    cache, cubins, size = CubinCache(), dict[str, str](), len(text)
    results = document.pop("results")
    ranges = [({**table, **one}, one) for table in document.get("tables", ()) for one in table["ranges"]]
    for stated, result in [*((result, result) for result in results), *ranges]:
        compiled = _compiled(cache, stated, arch_of((major, minor)))
        if compiled.launch is not None:
            result["compiled_launch"] = asdict(compiled.launch)
        for part, cubin in (("cubin", compiled.cubin), ("shared_cubin", compiled.shared)):
            if not cubin:
                continue
            name = result[part] = hashlib.sha256(cubin).hexdigest()
            if name not in cubins:
                cubins[name] = base64.b64encode(cubin).decode()
                size += len(cubins[name])
        if size > MAX_FILE_BYTES:
            raise InvalidRequestError(
                "cubins", f"the bundle would exceed {MAX_FILE_BYTES} bytes with them; leave them out."
            )
    return as_text({**document, "cubins": dict(sorted(cubins.items()))}, results)


def _compiled(cache: CubinCache, result: dict[str, Any], arch: str) -> Compiled:
    kernel = catalogue().get(result["kernel"])
    asked = tuned_for(kernel, result["shape"], result["dtype"], result["options"])
    problem = asked.largest if isinstance(asked, Family) else asked
    configuration = Configuration.of(result["variant"], result["configuration"])
    try:
        return compiled_by(cache, Compilation.of(kernel, problem, configuration, arch, "nvrtc"))
    except TrialFailure as failure:
        raise InvalidRequestError("cubins", f"{problem}, {configuration} does not compile: {failure.log}") from failure
