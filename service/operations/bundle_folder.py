"""A folder of bundles as it is handed on: one file a device model, SHA256SUMS, and a signature of that.

`sha256sum --check SHA256SUMS` and `openssl pkeyutl -verify` check the same without this product.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.service.errors import InvalidRequestError, ServiceError
from tilewright.service.operations import strict_json
from tilewright.service.operations.bundle import FORMAT

SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"
MAX_FILE_BYTES = 256 << 20
MAX_FILES = 1000
MAX_KEY_BYTES = 16 << 10

_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._-]{0,127}\.json)")


class BrokenBundleError(ServiceError):
    """The folder is not as it was made."""


def file_name(slug: str) -> str:
    """The file of a device model: its slug, with `-` for what a file system may not take."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", slug).lstrip(".-") + ".json"


def write_bundles(folder: Path, documents: Mapping[str, str], private_key: Path | None) -> list[Path]:
    """The files, each complete or not there: documents by slug, the sums, and with a key their signature."""
    names = {file_name(slug): text.encode() for slug, text in documents.items()}
    if len(names) != len(documents):
        raise InvalidRequestError("device_model", "two slugs give the same file name; make their bundles apart.")
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(names.items())]
    sums = "".join(lines).encode()
    signature = sign(sums, private_key) if private_key is not None else None
    folder.mkdir(parents=True, exist_ok=True)
    contents = names | {SUMS: sums} | ({SIGNATURE: signature} if signature is not None else {})
    for name, content in contents.items():
        _write(folder / name, content)
    if signature is None:
        (folder / SIGNATURE).unlink(missing_ok=True)  # of what was there before
    return [folder / name for name in contents]


def check_bundles(folder: Path, public_key: Path | None) -> list[str]:
    """The names of the files, all as they were made; raises BrokenBundleError.

    With a key the sums must be signed by it: sums alone only tell of accidents.
    """
    sums = _read(folder / SUMS, 1 << 20)
    if public_key is not None and not is_signed(sums, _read(folder / SIGNATURE, 64), public_key):
        raise BrokenBundleError(f"{SIGNATURE} is not this key's signature of {SUMS}.")
    checked: list[str] = []
    for line in sums.decode("ascii", "replace").splitlines():
        found = _LINE.fullmatch(line)
        if found is None or len(checked) >= MAX_FILES:
            raise BrokenBundleError(f"{SUMS} has a line that is no sum of a file in this folder.")
        content = _read(folder / found[2], MAX_FILE_BYTES)
        if hashlib.sha256(content).hexdigest() != found[1]:
            raise BrokenBundleError(f"{found[2]} is not what {SUMS} says.")
        _check_format(found[2], content)
        checked.append(found[2])
    if not checked:
        raise BrokenBundleError(f"{SUMS} names no file.")
    return checked


def sign(content: bytes, private_key: Path) -> bytes:
    """The Ed25519 signature (RFC 8032), 64 bytes; the key is PEM without a password."""
    key = _key("load_pem_private_key", private_key, "Ed25519PrivateKey")
    return bytes(key.sign(content))


def is_signed(content: bytes, signature: bytes, public_key: Path) -> bool:
    """Whether that is the key's signature of the content."""
    key = _key("load_pem_public_key", public_key, "Ed25519PublicKey")
    try:
        key.verify(signature, content)
    except _module("exceptions").InvalidSignature:
        return False
    return True


def _key(loader: str, path: Path, kind: str) -> Any:
    load = getattr(_module("hazmat.primitives.serialization"), loader)
    text = _read(path, MAX_KEY_BYTES)
    try:
        key = load(text, password=None) if "private" in loader else load(text)
    except (ValueError, TypeError, _module("exceptions").UnsupportedAlgorithm):
        raise InvalidRequestError("key", f"{path.name} holds no {kind} in PEM without a password.") from None
    if not isinstance(key, getattr(_module("hazmat.primitives.asymmetric.ed25519"), kind)):
        raise InvalidRequestError("key", f"{path.name} holds a key of another kind than {kind}.")
    return key


def _module(name: str) -> Any:
    """A module of `cryptography`, which only signatures need: the extra `signatures`."""
    try:
        return importlib.import_module(f"cryptography.{name}")
    except ModuleNotFoundError:
        raise InvalidRequestError("key", "signatures need the package cryptography: tilewright[signatures].") from None


def _check_format(name: str, content: bytes) -> None:
    try:
        document = strict_json.read(content)
    except (strict_json.MalformedJSONError, strict_json.RefusedJSONError) as error:
        raise BrokenBundleError(f"{name}: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BrokenBundleError(f"{name} is no {FORMAT}.")


def _read(path: Path, most: int) -> bytes:
    """The whole file; never through a link, never more than `most` bytes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise BrokenBundleError(f"{path.name}: {error.strerror}") from error
    if len(content) > most:
        raise BrokenBundleError(f"{path.name} has more than {most} bytes.")
    return content


def _write(path: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".new", delete=False) as file:
        file.write(content)
    temporary = Path(file.name)
    temporary.chmod(0o644)
    temporary.replace(path)
