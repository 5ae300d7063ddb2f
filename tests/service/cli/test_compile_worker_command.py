from __future__ import annotations

import pytest

from tilewright.service.settings import settings


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (None, "TILEWRIGHT_COMPILE_KEY: name the PEM file"),
        ("none.pem", "TILEWRIGHT_COMPILE_KEY: none.pem: No such file"),
        ("empty.pem", "TILEWRIGHT_COMPILE_KEY: empty.pem does not hold an Ed25519PrivateKey"),
    ],
)
def test_a_compile_worker_without_its_key_says_so_in_one_line(local, run, monkeypatch, tmp_path, key, said):
    pytest.importorskip("cryptography")
    (tmp_path / "empty.pem").touch()
    if key is not None:
        monkeypatch.setenv("TILEWRIGHT_COMPILE_KEY", str(tmp_path / key))
    settings.cache_clear()
    done = run("compile-worker", "--once")
    assert (done.status, done.out, done.err.count("\n")) == (1, "", 1)
    assert said in done.err
