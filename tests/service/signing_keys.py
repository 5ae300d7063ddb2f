"""Key pairs of compile workers."""

from __future__ import annotations

from pathlib import Path


def write_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """A new private and public Ed25519 key in PEM files."""
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo))
    return private, public
