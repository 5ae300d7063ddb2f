"""Bundles: enough to launch a kernel without the product, and no file that was tampered with passes."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from datetime import UTC, datetime

import pytest
from tuned_results import LIMITS, MODEL, SHAPE, Results

from tilewright.kernels.sources.identity import code_hash
from tilewright.kernels.space import Configuration
from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations.bundles.bundle import bundle
from tilewright.service.operations.bundles.folder import (
    BrokenBundleError,
    check_bundles,
    file_name,
    is_signed,
    with_cubins,
    write_bundles,
)
from tilewright.service.operations.exchange.import_document import import_document
from tilewright.service.operations.exchange.incoming import ImportOptions
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.transaction import transaction
from tilewright.tuner.runtime.bundles.bundle import Bundle
from tilewright.tuner.runtime.choice import TargetDevice


def made(**of) -> str:
    with transaction() as session:
        return bundle(session, MODEL.slug, **of)


@pytest.fixture
def folder(measured, tmp_path):
    write_bundles(tmp_path / "bundles", {MODEL.slug: made()}, None)
    return tmp_path / "bundles"


def test_a_result_says_all_that_a_launch_needs(measured):
    document = json.loads(made())
    kernel = catalogue().get("gemm")
    problem, configuration = kernel.problem(SHAPE), Configuration.of("tiled", {"TILE_WIDTH": 8})
    result = next(r for r in document["results"] if r["shape"] == SHAPE)
    assert result["definitions"] == kernel.definitions(problem, configuration)
    launch = kernel.variant("tiled").launch(configuration.values, problem)
    assert result["launch"] == {"grid": list(launch.grid), "block": list(launch.block), "shared_bytes": 0}
    assert result["before"] == []
    assert (result["time_ms"], result["bound_ratio"], result["origin"]) == (0.5, 0.25, None)
    assert result["library"]["faster"] is False
    assert document["kernels"]["gemm"]["entry"] == "gemm"
    assert [a["name"] for a in document["kernels"]["gemm"]["arguments"]] == [a.name for a in kernel.arguments]
    assert document["sources"][result["source"]]["variant"] == "tiled"


def test_a_result_of_several_launches_says_all_of_them_in_order(database):
    shape = {"m": 64, "n": 48, "k": 800}
    kernel = catalogue().get("gemm")
    variant, problem = kernel.variant("tensor3xfp16_sm90"), kernel.problem(shape)
    defaults = {parameter.name: parameter.default for parameter in variant.parameters}
    configuration = Configuration.of(variant.name, defaults | {"TILE_M": 64, "TILE_N": 64, "PROMOTE_K": 64})
    with transaction() as session:
        Results(session).tune(shape, best=configuration)
    (result,) = json.loads(made())["results"]
    *ahead, (_, last) = variant.launches("gemm", configuration.values, problem)
    assert [one["entry"] for one in result["before"]] == ["gemm_survey"]
    assert [one["grid"] for one in result["before"]] == [list(launch.grid) for _, launch in ahead]
    assert result["launch"]["grid"] == list(last.grid)
    assert result["workspace_bytes"] == variant.workspace_bytes(configuration.values, problem) > 0


def test_a_result_says_which_tensor_maps_its_kernel_takes(database):
    shape = {"m": 2048, "n": 4096, "k": 512}
    configuration = catalogue().get("gemm").variant("tensor_half_sm90").space().default()
    with transaction() as session:
        Results(session).tune(shape, best=configuration, dtype="bfloat16")
        Results(session).tune(shape)
    half, single = sorted(json.loads(made())["results"], key=lambda result: result["dtype"])
    assert half["tensor_maps"][2] == {"tensor": "C", "box": [1, 16, 64], "swizzle_bytes": 128}
    assert single["tensor_maps"] == []


def test_batches_and_views_are_exported_bundled_and_found_by_the_launcher(database, export, tmp_path):
    gemm, view = catalogue().get("gemm"), {**SHAPE, "batch": 6, "lda": 96, "stride_b": 0}
    with transaction() as session:
        Results(session).tune(view, best_ms=0.25)
        Results(session).tune(SHAPE, best_ms=0.5)
    assert {study["problem"]["shape"].get("batch") for study in export()["studies"]} == {None, 6}
    write_bundles(tmp_path / "bundles", {MODEL.slug: made()}, None)
    taken, place = Bundle.open(tmp_path / "bundles", None), TargetDevice(MODEL.slug, LIMITS)
    found = taken.find(gemm, gemm.problem(view), place)
    assert found is not None
    assert found.time_ms == 0.25
    assert taken.find(gemm, gemm.problem({**view, "lda": 100}), place) is None


def test_the_text_of_a_source_is_what_its_hash_says(measured):
    for source_hash, source in json.loads(made(with_sources=True))["sources"].items():
        assert code_hash(source["text"]) == source_hash
    assert "text" not in next(iter(json.loads(made())["sources"].values()))


def test_the_same_database_gives_the_same_bytes(measured):
    assert made() == made()


def test_imported_results_are_in_it_with_their_origin(document, device):
    import_document(json.dumps(document).encode(), ImportOptions(origin="lab-7"))
    with transaction() as session:
        Results(session).tune(SHAPE, best_ms=5.0)
    found = {result["shape"]["m"]: (result["time_ms"], result["origin"]) for result in json.loads(made())["results"]}
    assert found == {64: (5.0, None), 128: (0.75, "lab-7")}


def test_an_empty_bundle_is_a_document_too(database):
    with transaction() as session:
        Results(session).device()
    assert json.loads(made())["results"] == []


def test_an_unknown_device_model_is_refused(measured):
    with transaction() as session, pytest.raises(NotFoundError, match="test-gpu"):
        bundle(session, "nosuch")


def test_a_folder_passes_as_it_was_written_and_for_sha256sum_too(folder):
    assert check_bundles(folder, None) == ["test-gpu.json"]
    assert {path.name for path in folder.iterdir()} == {"test-gpu.json", "SHA256SUMS"}
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)


def sums(folder, *names: str) -> None:
    """Right sums of these files."""
    lines = [f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n" for n in names]
    (folder / "SHA256SUMS").write_text("".join(lines))


def tampered(folder) -> None:
    path = folder / "test-gpu.json"
    path.write_text(path.read_text().replace("0.5", "0.4", 1))


def cut_off(folder) -> None:
    path = folder / "test-gpu.json"
    path.write_bytes(path.read_bytes()[:-10])
    sums(folder, path.name)


def of_another_version(folder) -> None:
    (folder / "test-gpu.json").write_text('{"format": "tilewright-bundle/2"}')
    sums(folder, "test-gpu.json")


def outside(folder) -> None:
    (folder.parent / "secret.json").write_text("{}")
    sums(folder, "../secret.json")


def through_a_link(folder) -> None:
    shutil.move(folder / "test-gpu.json", folder.parent / "real.json")
    (folder / "test-gpu.json").symlink_to(folder.parent / "real.json")


def a_folder(folder) -> None:
    (folder / "test-gpu.json").unlink()
    (folder / "test-gpu.json").mkdir()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (tampered, "differs from its SHA-256 in SHA256SUMS"),
        (cut_off, "test-gpu.json"),
        (of_another_version, "is not a tilewright-bundle/1 file"),
        (outside, "not the SHA-256 of a file in this folder"),
        (through_a_link, "test-gpu.json"),
        (a_folder, "test-gpu.json"),
        (lambda f: (f / "test-gpu.json").unlink(), "No such file"),
        (lambda f: (f / "SHA256SUMS").unlink(), "No such file"),
        (lambda f: (f / "SHA256SUMS").write_text(""), "lists no file"),
        (lambda f: (f / "SHA256SUMS").write_bytes(b"\xff\n"), "not the SHA-256 of a file"),
        (lambda f: (f / "SHA256SUMS").write_text("0" * 64 + "  /etc/passwd\n"), "not the SHA-256 of a file"),
    ],
)
def test_a_folder_that_is_not_as_it_was_made_is_refused(folder, spoil, words):
    spoil(folder)
    with pytest.raises(BrokenBundleError, match=words):
        check_bundles(folder, None)


@pytest.mark.parametrize("slug", ["nvidia-h200", "cpu:amd-epyc", "../../etc/passwd", ".hidden", "a/b\\c", "x\0y"])
def test_a_file_name_stays_in_its_folder(slug, tmp_path):
    name = file_name(slug)
    assert (tmp_path / name).parent == tmp_path
    assert name.endswith(".json")
    assert not name.startswith(".")
    assert not set(name) & set("/\\:\0")


def test_two_models_never_share_a_file(tmp_path):
    with pytest.raises(InvalidRequestError, match="same file name"):
        write_bundles(tmp_path, {"cpu:a": "{}", "cpu-a": "{}"}, None)


@pytest.fixture
def keys(tmp_path):
    """An Ed25519 pair made by OpenSSL, as an operator makes one."""
    pytest.importorskip("cryptography")
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the keys")
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
    return private, public


def test_a_signed_folder_passes_here_and_for_openssl(measured, keys, tmp_path):
    private, public = keys
    folder = tmp_path / "signed"
    write_bundles(folder, {MODEL.slug: made()}, private)
    assert check_bundles(folder, public) == ["test-gpu.json"]
    verify = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin"]
    verify += ["-in", folder / "SHA256SUMS", "-sigfile", folder / "SHA256SUMS.sig"]
    subprocess.run(verify, check=True, capture_output=True)
    # Its first line is the date, which `sha256sum` takes for a comment.
    assert (folder / "SHA256SUMS").read_text().startswith(f"# made {datetime.now(UTC):%Y-}")
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)


def test_right_sums_under_a_wrong_signature_are_refused(measured, keys, tmp_path):
    private, public = keys
    folder = tmp_path / "signed"
    write_bundles(folder, {MODEL.slug: made()}, private)
    tampered(folder)
    sums(folder, "test-gpu.json")
    assert check_bundles(folder, None)
    with pytest.raises(BrokenBundleError, match="signature"):
        check_bundles(folder, public)
    (folder / "SHA256SUMS.sig").unlink()
    with pytest.raises(BrokenBundleError, match=r"SHA256SUMS\.sig"):
        check_bundles(folder, public)


def test_writing_unsigned_over_a_signed_folder_leaves_no_old_signature(measured, keys, tmp_path):
    folder = tmp_path / "signed"
    write_bundles(folder, {MODEL.slug: made()}, keys[0])
    write_bundles(folder, {MODEL.slug: made()}, None)
    assert not (folder / "SHA256SUMS.sig").exists()


def test_a_key_of_another_kind_is_refused(keys, tmp_path):
    private, public = keys
    for path, words in ((public, "PEM"), (tmp_path / "none", "none")):
        with pytest.raises((InvalidRequestError, BrokenBundleError), match=words):
            write_bundles(tmp_path / "out", {MODEL.slug: "{}"}, path)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InvalidRequestError, match="Ed25519PublicKey"):
        is_signed(b"", b"", private)


def test_the_launcher_reads_bundles_and_takes_code_only_from_a_signer_it_knows(measured, keys, tmp_path):
    pytest.importorskip("nvidia", reason="NVRTC makes the code")
    private, public = keys
    folder, text = tmp_path / "bundles", with_cubins(made())
    assert text == with_cubins(made())
    write_bundles(folder, {MODEL.slug: text}, private)
    kernel, place = catalogue().get("gemm"), TargetDevice(MODEL.slug, LIMITS)
    for named, has_code in ((public, True), (None, False)):
        found = Bundle.open(folder, named).find(kernel, kernel.problem(SHAPE), place)
        assert found is not None
        assert (found.configuration, found.time_ms) == (Configuration.of("tiled", {"TILE_WIDTH": 8}), 0.5)
        assert (found.cubin or b"").startswith(b"\x7fELF" if has_code else b"")
        assert bool(found.cubin) is has_code


def test_the_bundle_of_a_cpu_has_no_compiled_code():
    document = {"device_model": {"slug": "cpu:a", "compute_capability": "0.0"}, "results": []}
    with pytest.raises(InvalidRequestError, match="cpu:a is not a GPU"):
        with_cubins(json.dumps(document))
