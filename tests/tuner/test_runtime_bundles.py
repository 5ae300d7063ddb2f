"""Bundles that the launcher refuses, and whose code it loads."""

from __future__ import annotations

import base64
import hashlib

import pytest
from made_bundles import CUBIN, GEMM, PLACE, PROBLEM, bundle_file, choose, result, sums

from tilewright.tuner.runtime import BrokenBundleError, Runtime, UntrustedBundleError
from tilewright.tuner.runtime.bundle import Bundle


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "tilewright-bundle/2"}, r"is no tilewright-bundle/1; it says 'tilewright-bundle/2'"),
        ({"format": None}, "is no tilewright-bundle/1"),
        ({"device_model": {}}, "lacks a part"),
        ({"results": [{"kernel": "gemm"}]}, "lacks a part"),
        ({"results": [result(configuration={"TILE_WIDTH": "8; int main"})]}, "lacks a part"),
        ({"results": 7}, "lacks a part"),
        ({"cubins": []}, "lacks a part"),
    ],
)
def test_a_bundle_of_another_version_or_with_parts_missing_is_refused(tmp_path, changes, words):
    folder = bundle_file(tmp_path / "b", result(), **changes)
    with pytest.raises(BrokenBundleError, match=words):
        Runtime(bundle=folder)


def test_a_damaged_bundle_is_refused(tmp_path):
    folder = bundle_file(tmp_path / "b", result())
    path = folder / "test-gpu.json"
    path.write_bytes(path.read_bytes().replace(b'"TILE_WIDTH": 8', b'"TILE_WIDTH": 4'))
    with pytest.raises(BrokenBundleError, match="is not what SHA256SUMS says"):
        Runtime(bundle=folder)
    path.write_bytes(b"{")
    sums(folder)
    with pytest.raises(BrokenBundleError, match="is not JSON"):
        Runtime(bundle=folder)
    with pytest.raises(BrokenBundleError, match="No such file"):
        Runtime(bundle=tmp_path / "nowhere")


def test_one_file_is_a_bundle_too_but_never_a_trusted_one(tmp_path):
    path = bundle_file(tmp_path / "b", result()) / "test-gpu.json"
    found = choose(Runtime(bundle=path))
    assert (found.origin, found.cubin) == ("bundle", None)
    with pytest.raises(UntrustedBundleError, match="not a folder with a signature"):
        Runtime(bundle=path, public_key=tmp_path / "key.pub")


def key_pair(folder, name):
    """An Ed25519 pair as PEM files."""
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - an extra

    key = Ed25519PrivateKey.generate()
    encoding = serialization.Encoding.PEM
    public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.pub").write_bytes(public)
    return key, folder / f"{name}.pub"


def test_cubins_are_taken_from_a_bundle_that_the_named_key_signed_and_from_no_other(tmp_path):
    key, public = key_pair(tmp_path, "mine")
    _, another = key_pair(tmp_path, "another")
    folder = bundle_file(tmp_path / "b", result())
    with pytest.raises(BrokenBundleError, match=r"SHA256SUMS\.sig"):
        Runtime(bundle=folder, public_key=public)
    (folder / "SHA256SUMS.sig").write_bytes(key.sign((folder / "SHA256SUMS").read_bytes()))
    assert choose(Runtime(bundle=folder, public_key=public)).cubin == CUBIN
    assert choose(Runtime(bundle=folder)).cubin is None
    with pytest.raises(UntrustedBundleError, match="not this key's signature"):
        Runtime(bundle=folder, public_key=another)


@pytest.mark.parametrize("text", ["not base64!", base64.b64encode(b"something else").decode()])
def test_a_cubin_that_is_not_what_its_hash_says_is_refused(tmp_path, text):
    name = hashlib.sha256(CUBIN).hexdigest()
    bundle = Bundle.open(bundle_file(tmp_path / "b", result(), cubins={name: text}))
    bundle.is_trusted = True
    with pytest.raises(BrokenBundleError, match=f"the cubin {name} is not"):
        bundle.find(GEMM, PROBLEM, PLACE)
