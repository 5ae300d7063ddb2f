"""Bundles that the launcher refuses, and whose code it loads."""

import base64
import hashlib
import shutil
from pathlib import Path

import pytest
from faulty_kernels import FAULTY, say_that_tiled_was_faulty
from made_bundles import CUBIN, GEMM, PLACE, PROBLEM, bundle_file, choose, result, sums

from tilewright.kernels.sources.identity import text_hash
from tilewright.tuner.runtime import BrokenBundleError, BundleWarning, OlderBundleError, Runtime, UntrustedBundleError
from tilewright.tuner.runtime.bundles.bundle import Bundle
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.runtime import default_runtime


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "tilewright-bundle/2"}, r"is not a tilewright-bundle/1 but 'tilewright-bundle/2'"),
        ({"format": None}, "is not a tilewright-bundle/1"),
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
    with pytest.raises(BrokenBundleError, match="differs from its SHA-256 in SHA256SUMS"):
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
    with pytest.raises(UntrustedBundleError, match="is not a signature of SHA256SUMS by this key"):
        Runtime(bundle=folder, public_key=another)


def test_what_configurations_share_comes_from_the_bundle_too_where_it_has_it(tmp_path):
    key, public = key_pair(tmp_path, "mine")
    name = hashlib.sha256(CUBIN).hexdigest()
    for facts, shared in (({}, b""), ({"shared_cubin": name}, CUBIN)):
        folder = bundle_file(tmp_path / "b", result(**facts))
        (folder / "SHA256SUMS.sig").write_bytes(key.sign((folder / "SHA256SUMS").read_bytes()))
        assert choose(Runtime(bundle=folder, public_key=public)).shared_cubin == shared


def test_machine_code_of_a_source_that_was_faulty_is_not_loaded_and_its_configuration_is_a_prediction(
    tmp_path, monkeypatch
):
    key, public = key_pair(tmp_path, "mine")
    folder = bundle_file(tmp_path / "b", result(source=FAULTY))
    (folder / "SHA256SUMS.sig").write_bytes(key.sign((folder / "SHA256SUMS").read_bytes()))
    runtime = Runtime(bundle=folder, public_key=public)
    say_that_tiled_was_faulty(tmp_path, monkeypatch)
    with pytest.warns(BundleWarning, match=r"a faulty source of tiled.*a prediction, checked at its first use"):
        found = choose(runtime)
    assert (found.origin, found.match, found.cubin, found.configuration.variant) == (
        "bundle",
        "predicted",
        None,
        "tiled",
    )
    assert runtime.first_use(GEMM, PROBLEM, PLACE, found).state == "waiting"


def test_a_result_of_the_version_before_is_used_with_its_machine_code(tmp_path):
    key, public = key_pair(tmp_path, "mine")
    folder = bundle_file(tmp_path / "b", result(source=text_hash(GEMM.source("tiled"))))
    (folder / "SHA256SUMS.sig").write_bytes(key.sign((folder / "SHA256SUMS").read_bytes()))
    found = choose(Runtime(bundle=folder, public_key=public))
    assert (found.match, found.cubin) == ("exact", CUBIN)


def dated(folder, key, date):
    """A signed folder of one result that was made at that moment."""
    bundle_file(folder, result())
    head = f"# made {date}\n" if date else ""
    (folder / "SHA256SUMS").write_text(head + (folder / "SHA256SUMS").read_text())
    (folder / "SHA256SUMS.sig").write_bytes(key.sign((folder / "SHA256SUMS").read_bytes()))
    return folder


@pytest.mark.parametrize("old", ["2026-11-22T23:59:59Z", ""])
def test_a_signed_bundle_that_is_older_than_the_last_one_is_refused_until_allowed(tmp_path, monkeypatch, old):
    monkeypatch.setenv("TILEWRIGHT_STATE_DIR", str(tmp_path / "state"))
    key, public = key_pair(tmp_path, "mine")
    stale = dated(tmp_path / "stale", key, old)
    assert choose(Runtime(bundle=stale, public_key=public)).cubin == CUBIN  # nothing newer is known yet
    fresh = dated(tmp_path / "fresh", key, "2026-11-23T00:00:00Z")
    for _ in range(2):
        assert choose(Runtime(bundle=fresh, public_key=public)).cubin == CUBIN
    with pytest.raises(OlderBundleError, match=r"2026-11-23T00:00:00Z .*--allow-older"):
        Runtime(bundle=stale, public_key=public)
    assert choose(Runtime(bundle=stale)).cubin is None  # no trust is asked for, none is given
    other_key, other_public = key_pair(tmp_path, "another")
    assert Runtime(bundle=dated(tmp_path / "b", other_key, old), public_key=other_public)

    assert Runtime(bundle=stale, public_key=public, allow_older_bundle=True)
    assert Runtime(bundle=stale, public_key=public)
    assert Runtime(bundle=fresh, public_key=public)
    monkeypatch.setenv("TILEWRIGHT_BUNDLE", str(stale))
    monkeypatch.setenv("TILEWRIGHT_BUNDLE_KEY", str(public))
    with pytest.raises(OlderBundleError):
        default_runtime.__wrapped__()
    monkeypatch.setenv("TILEWRIGHT_ALLOW_OLDER_BUNDLE", "1")
    assert default_runtime.__wrapped__()


def test_a_date_that_is_not_signed_protects_nothing_and_a_wrong_one_is_no_sum(tmp_path):
    key, public = key_pair(tmp_path, "mine")
    folder = dated(tmp_path / "b", key, "2026-11-23T00:00:00Z")
    sums = folder / "SHA256SUMS"
    sums.write_text(sums.read_text().replace("2026", "2027"))
    with pytest.raises(UntrustedBundleError, match="is not a signature of SHA256SUMS by this key"):
        Runtime(bundle=folder, public_key=public)
    sums.write_text(sums.read_text().replace("# made", "# by"))
    with pytest.raises(BrokenBundleError, match="not the SHA-256 of a file"):
        Runtime(bundle=folder)


def test_where_no_date_can_be_kept_it_is_said_and_a_damaged_file_is_named(tmp_path, monkeypatch):
    key, public = key_pair(tmp_path, "mine")
    folder = dated(tmp_path / "b", key, "2026-11-23T00:00:00Z")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_STATE_DIR", str(tmp_path / "file"))
    with pytest.warns(BundleWarning, match="TILEWRIGHT_STATE_DIR"):
        Runtime(bundle=folder, public_key=public)
    monkeypatch.setenv("TILEWRIGHT_STATE_DIR", str(tmp_path / "state"))
    Runtime(bundle=folder, public_key=public)
    (kept,) = (tmp_path / "state" / "bundles").iterdir()
    kept.write_text("[")
    with pytest.raises(BrokenBundleError, match=r"is damaged\. Remove it"):
        Runtime(bundle=folder, public_key=public)


@pytest.mark.parametrize("text", ["not base64!", base64.b64encode(b"something else").decode()])
def test_a_cubin_that_is_not_what_its_hash_says_is_refused(tmp_path, text):
    name = hashlib.sha256(CUBIN).hexdigest()
    bundle = Bundle.open(bundle_file(tmp_path / "b", result(), cubins={name: text}))
    bundle.is_trusted = True
    with pytest.raises(BrokenBundleError, match=f"the cubin {name} (is not base64|does not match its hash)"):
        bundle.find(GEMM, PROBLEM, PLACE)


def test_a_bundle_from_the_future_does_not_bar_those_of_today(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_STATE_DIR", str(tmp_path / "state"))
    key, public = key_pair(tmp_path, "mine")
    for name, date in (("future", "2099-01-01T00:00:00Z"), ("today", "2098-12-31T00:00:00Z")):
        assert Runtime(bundle=dated(tmp_path / name, key, date), public_key=public)
    with pytest.raises(OlderBundleError):
        Runtime(bundle=dated(tmp_path / "old", key, "2026-11-23T00:00:00Z"), public_key=public)


WRITTEN = Path(__file__).parents[2] / "data" / "version_before"


@pytest.fixture
def answers(tmp_path):
    """A cache with the answer that was written, which was asked for at ANSWERED_S."""
    shutil.copytree(WRITTEN / "answers", tmp_path / "answers")
    return tmp_path / "answers"


ANSWERED_S = 1764288000.0


def test_a_bundle_is_used():
    found = choose(Runtime(bundle=WRITTEN / "bundle"))
    assert (found.origin, found.match, str(found.configuration)) == ("bundle", "exact", "tiled TILE_WIDTH=8")


def test_an_answer_is_used_for_a_day(answers):
    within = AnswerCache(answers, clock=lambda: ANSWERED_S + 3600).get(GEMM, PROBLEM, PLACE)
    assert within is not None
    assert str(within.configuration) == "tiled TILE_WIDTH=8"
    assert AnswerCache(answers, clock=lambda: ANSWERED_S + 90_000).get(GEMM, PROBLEM, PLACE) is None
