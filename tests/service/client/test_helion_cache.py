"""Helion's own classes with our back end, a real service and folders; the search itself needs a GPU."""

from __future__ import annotations

import json
import os
import warnings

import pytest

from tilewright.service.operations.exchange import helion as stored

pytest.importorskip("torch")
helion = pytest.importorskip("helion")

from helion.autotuner import RemoteAutotuneCache  # noqa: E402
from helion.autotuner.local_cache import parse_cache_entry  # noqa: E402
from helion.autotuner.remote_cache import _load_remote_backend  # noqa: E402

from tilewright.helion import RemoteCache  # noqa: E402
from tilewright.tuner.autotune import helion as ours  # noqa: E402
from tilewright.tuner.runtime.errors import ServiceWarning  # noqa: E402

CONFIG = helion.Config(block_sizes=[32, 64], num_warps=4)
ONE, OTHER = "a" * 64, "b" * 64


def entry(**fields: str) -> str:
    """An entry as Helion writes it."""
    return json.dumps({"config": CONFIG.to_json(), "key": {"type": "LooseAutotuneCacheKey", "fields": fields}})


class Cache(RemoteAutotuneCache):
    """Helion's, for a kernel whose key is known: to make one needs a GPU."""

    def __init__(self, key: str, folder) -> None:
        self.key = type("Key", (), {"stable_hash": lambda _: key})()
        self._backend, self.folder = _load_remote_backend(), folder

    def _get_local_cache_path(self):
        return self.folder / "own.best_config"

    def _validate_config_policy(self, data) -> None:
        """For another of Helion's back ends than Triton's."""


@pytest.fixture(autouse=True)
def _backend(monkeypatch, tmp_path):
    monkeypatch.setenv("HELION_REMOTE_CACHE_BACKEND", "tilewright.helion.RemoteCache")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(params=["service", "folder"])
def kept(request, monkeypatch) -> str:
    if request.param == "service":
        monkeypatch.setenv("TILEWRIGHT_URL", request.getfixturevalue("server").url)
    return request.param


def test_what_one_process_stores_another_finds(kept, tmp_path):
    backend = RemoteCache()
    assert backend.get(ONE) is None
    backend.put(ONE, entry(hardware="NVIDIA H200"))
    backend.put(OTHER, entry(hardware="NVIDIA H100"))
    assert RemoteCache().get(ONE) == entry(hardware="NVIDIA H200")
    assert [parse_cache_entry(text).hardware for text in RemoteCache().list()] == ["NVIDIA H100", "NVIDIA H200"]
    assert len(list(RemoteCache().list(1))) == 1
    assert (tmp_path / "cache" / "helion").is_dir() == (kept == "folder")


def test_helion_takes_what_is_kept(kept, monkeypatch, tmp_path):
    RemoteCache().put(ONE, entry())
    put = []
    monkeypatch.setattr(RemoteAutotuneCache.__mro__[1], "put", lambda _, config: put.append(config))
    assert Cache(ONE, tmp_path).get() == CONFIG
    assert put == [CONFIG]  # in its own local cache
    assert Cache(OTHER, tmp_path).get() is None
    (tmp_path / "own.best_config").write_text(entry())
    Cache(OTHER, tmp_path).put(CONFIG)
    assert RemoteCache().get(OTHER) == entry()


def test_more_entries_than_a_page_are_listed(server, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_URL", server.url)
    backend = RemoteCache()
    for number in range(ours.PAGE + 2):
        backend.put(f"{number:064x}", entry(hardware=str(number)))
    found = [parse_cache_entry(text).hardware for text in backend.list(ours.PAGE + 1)]
    assert found == [str(number) for number in range(ours.PAGE + 1, 0, -1)]


def test_what_helion_could_not_read_is_not_given_to_it(tmp_path):
    backend = RemoteCache()
    backend.put(ONE, entry())
    for damaged in ("", "[]", '{"config": 1}', '{"config": "[]"}'):
        (tmp_path / "cache" / "helion" / f"{ONE}.json").write_text(damaged)
        assert RemoteCache().get(ONE) is None
        assert list(backend.list()) == []
    with pytest.raises(ValueError, match="no key"):
        backend.get("../../x")


def test_a_folder_keeps_the_newest(monkeypatch, tmp_path):
    monkeypatch.setattr(ours, "MOST_KEPT", 2)
    backend = RemoteCache()
    for at, name in enumerate("abc"):
        backend.put(name * 64, entry())
        os.utime(tmp_path / "cache" / "helion" / f"{name * 64}.json", (at, at))
    assert [bool(backend.get(name * 64)) for name in "abc"] == [False, True, True]


def test_a_service_that_is_away_warns_once_and_stops_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_URL", "http://127.0.0.1:9")
    cache = Cache(ONE, tmp_path)
    (tmp_path / "own.best_config").write_text(entry())
    with pytest.warns(ServiceWarning, match="Helion goes on without it"):
        assert cache.get() == CONFIG  # of its own local cache
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache._backend.put(ONE, entry())
        assert list(cache._backend.list()) == []


def test_a_refusal_is_told_and_the_next_question_is_asked(server, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_URL", server.url)
    backend = RemoteCache()
    with pytest.warns(ServiceWarning, match="data"):
        backend.put(ONE, entry(text="x" * stored.MOST_CHARACTERS))
    backend.put(ONE, entry())
    assert backend.get(ONE) == entry()
