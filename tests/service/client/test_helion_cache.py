"""Helion's own classes with our back end, a real service and folders; the search itself needs a GPU."""

from __future__ import annotations

import importlib
import os
import warnings
from importlib.util import find_spec
from types import ModuleType

import pytest

from tilewright.service.operations.exchange import helion as stored
from tilewright.tuner.runtime.errors import ServiceWarning

pytestmark = pytest.mark.skipif(not (find_spec("torch") and find_spec("helion")), reason="Helion is not installed")

ONE, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def of() -> ModuleType:
    """Helion and our back end, imported by the process that runs these tests and by no other: that takes 3 s."""
    return importlib.import_module("tests.service.client.of_helion")


@pytest.fixture(autouse=True)
def _backend(monkeypatch, tmp_path):
    monkeypatch.setenv("HELION_REMOTE_CACHE_BACKEND", "tilewright.helion.RemoteCache")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(params=["service", "folder"])
def kept(request, monkeypatch) -> str:
    if request.param == "service":
        monkeypatch.setenv("TILEWRIGHT_URL", request.getfixturevalue("server").url)
    return request.param


def test_what_one_process_stores_another_finds(of, kept, tmp_path):
    backend = of.RemoteCache()
    assert backend.get(ONE) is None
    backend.put(ONE, of.entry(hardware="NVIDIA H200"))
    backend.put(OTHER, of.entry(hardware="NVIDIA H100"))
    assert of.RemoteCache().get(ONE) == of.entry(hardware="NVIDIA H200")
    assert [of.parse_cache_entry(text).hardware for text in of.RemoteCache().list()] == ["NVIDIA H100", "NVIDIA H200"]
    assert len(list(of.RemoteCache().list(1))) == 1
    assert (tmp_path / "cache" / "helion").is_dir() == (kept == "folder")


def test_helion_takes_what_is_kept(of, kept, monkeypatch, tmp_path):
    of.RemoteCache().put(ONE, of.entry())
    put = []
    monkeypatch.setattr(of.RemoteAutotuneCache.__mro__[1], "put", lambda _, config: put.append(config))
    assert of.Cache(ONE, tmp_path).get() == of.CONFIG
    assert put == [of.CONFIG]  # in its own local cache
    assert of.Cache(OTHER, tmp_path).get() is None
    (tmp_path / "own.best_config").write_text(of.entry())
    of.Cache(OTHER, tmp_path).put(of.CONFIG)
    assert of.RemoteCache().get(OTHER) == of.entry()


def test_more_entries_than_a_page_are_listed(of, server, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_URL", server.url)
    backend = of.RemoteCache()
    for number in range(of.ours.PAGE + 2):
        backend.put(f"{number:064x}", of.entry(hardware=str(number)))
    found = [of.parse_cache_entry(text).hardware for text in backend.list(of.ours.PAGE + 1)]
    assert found == [str(number) for number in range(of.ours.PAGE + 1, 0, -1)]


def test_what_helion_could_not_read_is_not_given_to_it(of, tmp_path):
    backend = of.RemoteCache()
    backend.put(ONE, of.entry())
    for damaged in ("", "[]", '{"config": 1}', '{"config": "[]"}'):
        (tmp_path / "cache" / "helion" / f"{ONE}.json").write_text(damaged)
        assert of.RemoteCache().get(ONE) is None
        assert list(backend.list()) == []
    with pytest.raises(ValueError, match="no key"):
        backend.get("../../x")


def test_a_folder_keeps_the_newest(of, monkeypatch, tmp_path):
    monkeypatch.setattr(of.ours, "MOST_KEPT", 2)
    backend = of.RemoteCache()
    for at, name in enumerate("abc"):
        backend.put(name * 64, of.entry())
        os.utime(tmp_path / "cache" / "helion" / f"{name * 64}.json", (at, at))
    assert [bool(backend.get(name * 64)) for name in "abc"] == [False, True, True]


def test_a_service_that_is_away_warns_once_and_stops_nothing(of, monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_URL", "http://127.0.0.1:9")
    cache = of.Cache(ONE, tmp_path)
    (tmp_path / "own.best_config").write_text(of.entry())
    with pytest.warns(ServiceWarning, match="Helion goes on without it"):
        assert cache.get() == of.CONFIG  # of its own local cache
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache._backend.put(ONE, of.entry())
        assert list(cache._backend.list()) == []


def test_a_refusal_is_told_and_the_next_question_is_asked(of, server, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_URL", server.url)
    backend = of.RemoteCache()
    with pytest.warns(ServiceWarning, match="data"):
        backend.put(ONE, of.entry(text="x" * stored.MOST_CHARACTERS))
    backend.put(ONE, of.entry())
    assert backend.get(ONE) == of.entry()
