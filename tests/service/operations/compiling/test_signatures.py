from __future__ import annotations

import pytest

pytest.importorskip("cryptography")
from signing_keys import write_keys

from tilewright.service.operations.compiling.signatures import CompileKeyError, Signer, Trust


def test_a_signature_counts_for_exactly_what_was_signed_and_by_whom(tmp_path):
    (private, public), (other_private, other_public) = write_keys(tmp_path, "a"), write_keys(tmp_path, "b")
    signer, trust = Signer(private), Trust.of([other_public, public])
    signature = signer.sign("key", "13.0.88", b"body")
    assert trust.believes(signature, "key", "13.0.88", b"body")
    for changed in (("kez", "13.0.88", b"body"), ("key", "13.0.89", b"body"), ("key", "13.0.88", b"bodz")):
        assert not trust.believes(signature, *changed)
    assert not trust.believes(b"", "key", "13.0.88", b"body")
    assert not Trust.of([public]).believes(
        Signer(other_private).sign("key", "13.0.88", b"body"), "key", "13.0.88", b"body"
    )
    assert not Trust.of([]).believes(signature, "key", "13.0.88", b"body")
    assert set(trust.signers) == {signer.id, Signer(other_private).id}


def test_a_key_that_cannot_be_read_is_told_with_its_setting(tmp_path):
    private, public = write_keys(tmp_path, "a")
    with pytest.raises(CompileKeyError, match=r"TILEWRIGHT_COMPILE_KEY: .*a\.pub"):
        Signer(public)
    with pytest.raises(CompileKeyError, match=r"TILEWRIGHT_COMPILE_TRUST: .*a\.key"):
        Trust.of([private])
    with pytest.raises(CompileKeyError, match=r"none\.pem: No such file"):
        Trust.of([tmp_path / "none.pem"])
