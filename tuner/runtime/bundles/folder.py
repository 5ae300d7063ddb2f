"""A folder of bundles: its files, checked against SHA256SUMS and its signature.

docs/exchange.md describes the format; `sha256sum --check` and `openssl pkeyutl -verify` check the same.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tilewright.tuner.errors import TunerError

FORMAT = "tilewright-bundle/1"
SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"
MAX_FILE_BYTES = 256 << 20
MAX_FILES = 1000
MAX_KEY_BYTES = 16 << 10

_MADE = re.compile(r"# made ([0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}Z)")
"""The first line of the sums of a signed folder; for `sha256sum` it is a comment."""

_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._-]{0,127}\.json)")


class BrokenBundleError(TunerError):
    """The bundle is not as it was made, or of another version."""


class UntrustedBundleError(BrokenBundleError):
    """The bundle is not signed by the key that was named."""


class OlderBundleError(UntrustedBundleError):
    """A newer bundle of the same key has been used here."""


class SigningKeyError(TunerError):
    """The file does not hold such a key, or the package that reads it is missing."""


@dataclass(frozen=True)
class CheckedFolder:
    """Contents by name, all as they were made. `date`: of making, if a signature covers it, else empty."""

    contents: dict[str, bytes]
    date: str = ""


def made_line(moment: datetime) -> str:
    """The first line of a signed folder's checksums, for a moment in UTC."""
    return f"# made {moment:%Y-%m-%dT%H:%M:%SZ}\n"


def checked_files(folder: Path, public_key: Path | None) -> CheckedFolder:
    """The files after a check of their sums; raises BrokenBundleError where one has changed.

    With a key the sums must be signed by it, else UntrustedBundleError: sums alone only tell of accidents.
    """
    sums = read_file(folder / SUMS, 1 << 20)
    if public_key is not None and not is_signed(sums, read_file(folder / SIGNATURE, 64), public_key):
        raise UntrustedBundleError(f"{SIGNATURE} is not a signature of {SUMS} by this key.")
    contents: dict[str, bytes] = {}
    lines = sums.decode("ascii", "replace").splitlines()
    made = _MADE.fullmatch(lines[0]) if lines else None
    for line in lines[1:] if made else lines:
        entry = _LINE.fullmatch(line)
        if entry is None or len(contents) >= MAX_FILES:
            raise BrokenBundleError(f"{SUMS} has a line that is not the SHA-256 of a file in this folder.")
        content = read_file(folder / entry[2], MAX_FILE_BYTES)
        if hashlib.sha256(content).hexdigest() != entry[1]:
            raise BrokenBundleError(f"{entry[2]} differs from its SHA-256 in {SUMS}.")
        contents[entry[2]] = content
    if not contents:
        raise BrokenBundleError(f"{SUMS} lists no file.")
    return CheckedFolder(contents, made[1] if made and public_key is not None else "")


def key_id(public_key: Path) -> str:
    """A name for the key in a file: the SHA-256 of its 32 bytes. Raises SigningKeyError."""
    key = load_key("load_pem_public_key", public_key, "Ed25519PublicKey")
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def is_signed(content: bytes, signature: bytes, public_key: Path) -> bool:
    """Whether that is the key's Ed25519 signature (RFC 8032) of the content; raises SigningKeyError."""
    key = load_key("load_pem_public_key", public_key, "Ed25519PublicKey")
    try:
        key.verify(signature, content)
    except _module("exceptions").InvalidSignature:
        return False
    return True


def load_key(loader: str, path: Path, kind: str) -> Any:
    """The key of that kind in a PEM file without a password; raises SigningKeyError."""
    load = getattr(_module("hazmat.primitives.serialization"), loader)
    text = read_file(path, MAX_KEY_BYTES)
    try:
        key = load(text, password=None) if "private" in loader else load(text)
    except (ValueError, TypeError, _module("exceptions").UnsupportedAlgorithm):
        raise SigningKeyError(f"{path.name} does not hold an {kind} in PEM without a password.") from None
    if not isinstance(key, getattr(_module("hazmat.primitives.asymmetric.ed25519"), kind)):
        raise SigningKeyError(f"{path.name} holds a key, but not an {kind}.")
    return key


def read_file(path: Path, most: int) -> bytes:
    """The whole file; never through a link, never more than `most` bytes. Raises BrokenBundleError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        shown = path.name if path.parent.is_dir() else path
        raise BrokenBundleError(f"{shown}: {error.strerror}") from error
    if len(content) > most:
        raise BrokenBundleError(f"{path.name} has more than {most} bytes.")
    return content


def _module(name: str) -> Any:
    """A module of `cryptography`, which only signatures need: the extra `signatures`."""
    try:
        return importlib.import_module(f"cryptography.{name}")
    except ModuleNotFoundError:
        raise SigningKeyError("signatures need the package cryptography: tilewright[signatures].") from None
