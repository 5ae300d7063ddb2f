"""Signatures of compile workers: Ed25519 over a cubin's key, the compiler's version and all that was made."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tilewright.service.errors import ServiceError
from tilewright.tuner.errors import TunerError
from tilewright.tuner.runtime.bundles.folder import load_key

_PURPOSE = b"tilewright compiled cubin 1"
"""So that no signature which a key made for another purpose counts here."""


class CompileKeyError(ServiceError):
    """A key of compile workers cannot be used."""


class Signer:
    """A compile worker's private key; `id` is the SHA-256 of its public one."""

    def __init__(self, path: Path) -> None:
        """Reads the PEM file; raises CompileKeyError."""
        self._key = _load("TILEWRIGHT_COMPILE_KEY", path, "private")
        self.id = _id(self._key.public_key())

    def sign(self, key: str, compiler_version: str, body: bytes) -> bytes:
        """The signature of what was made for that key of a cubin."""
        signature: bytes = self._key.sign(_message(key, compiler_version, body))
        return signature


class Trust:
    """The public keys of the compile workers whose cubins this host uses."""

    def __init__(self, keys: Mapping[str, Any]) -> None:
        self._keys = dict(keys)

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Self:
        """The keys in these PEM files; raises CompileKeyError."""
        keys = [_load("TILEWRIGHT_COMPILE_TRUST", path, "public") for path in paths]
        return cls({_id(key): key for key in keys})

    @property
    def signers(self) -> list[str]:
        """The trusted keys, each by its SHA-256."""
        return list(self._keys)

    def believes(self, signature: bytes, key: str, compiler_version: str, body: bytes) -> bool:
        """Whether one of these keys has signed that."""
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra; a key that was read shows that it is there

        message = _message(key, compiler_version, body)
        for public in self._keys.values():
            try:
                public.verify(signature, message)
            except InvalidSignature:
                continue
            return True
        return False


def _message(key: str, compiler_version: str, body: bytes) -> bytes:
    return b"\0".join((_PURPOSE, key.encode(), compiler_version.encode(), body))


def _load(setting: str, path: Path, kind: str) -> Any:
    try:
        return load_key(f"load_pem_{kind}_key", path, f"Ed25519{kind.capitalize()}Key")
    except TunerError as error:
        raise CompileKeyError(f"{setting}: {error}") from None


def _id(public: Any) -> str:
    return hashlib.sha256(public.public_bytes_raw()).hexdigest()
