import errno
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tilewright.tuner.compile.cache import CubinCache, default_folder, folder_size
from tilewright.tuner.compile.compilation import Compiled
from tilewright.tuner.outcome import Resources

KEY = "ab" + "0" * 62
COMPILED = Compiled(b"\x7fELF" + bytes(range(256)), Resources(32, 4096, 0), "ptxas said", 12.5)


@pytest.fixture
def cache(tmp_path):
    return CubinCache(tmp_path / "cubin")


def stored_file(cache):
    (path,) = (p for p in cache.folder.glob("*/*") if p.is_file())
    return path


def test_what_was_put_comes_back_and_took_no_time_to_compile(cache):
    assert cache.get(KEY) is None
    cache.put(KEY, COMPILED)
    assert cache.get(KEY) == Compiled(COMPILED.cubin, COMPILED.resources, COMPILED.log, 0.0)


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "foreign"])
def test_a_damaged_entry_is_no_entry_and_is_replaced(cache, damage):
    cache.put(KEY, COMPILED)
    path = stored_file(cache)
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    path.write_bytes({"empty": b"", "truncated": data[:-1], "flipped": bytes(flipped), "foreign": b"PK" * 99}[damage])
    assert cache.get(KEY) is None
    assert not path.exists()
    cache.put(KEY, COMPILED)
    assert cache.get(KEY) is not None


def test_an_entry_under_another_key_is_no_entry(cache):
    cache.put(KEY, COMPILED)
    other = "ab" + "1" * 62
    stored_file(cache).rename(cache.folder / other[:2] / other[2:])
    assert cache.get(other) is None
    assert list(cache.folder.glob("*/*")) == []


def test_an_entry_can_be_read_by_whom_the_umask_lets(cache):
    before = os.umask(0o022)
    try:
        cache.put(KEY, COMPILED)
    finally:
        os.umask(before)
    assert stored_file(cache).stat().st_mode & 0o777 == 0o644


def test_a_writer_that_was_killed_leaves_no_entry(tmp_path):
    script = """
import os, sys
from pathlib import Path
from tilewright.tuner.compile.cache import CubinCache
from tilewright.tuner.compile.compilation import Compiled
Path.replace = lambda *_: os.kill(os.getpid(), 9)
CubinCache(Path(sys.argv[1])).put(sys.argv[2], Compiled(bytes(1000)))
"""
    ended = subprocess.run([sys.executable, "-c", script, tmp_path, KEY], check=False)
    assert ended.returncode == -signal.SIGKILL
    cache = CubinCache(tmp_path)
    assert [path.name[:5] for path in tmp_path.glob("*/*")] == [".new-"]
    assert cache.get(KEY) is None
    cache.put(KEY, COMPILED)
    assert cache.get(KEY).cubin == COMPILED.cubin


def test_a_full_disk_is_told_once_and_leaves_nothing_behind(cache, monkeypatch, caplog):
    opened = Path.open

    def full(path, mode="r", **of):
        if "x" in mode:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, mode, **of)

    monkeypatch.setattr(Path, "open", full)
    with caplog.at_level(logging.WARNING):
        cache.put(KEY, COMPILED)
        cache.put(KEY, COMPILED)
    assert [r.getMessage().count("No space left") for r in caplog.records] == [1]
    assert cache.get(KEY) is None
    assert not list(cache.folder.glob("*/*"))


def test_a_folder_that_cannot_be_made_costs_only_the_cache(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = CubinCache(tmp_path / "file" / "cubin")
    cache.put(KEY, COMPILED)
    assert cache.get(KEY) is None
    assert "compiling goes on without it" in caplog.text


def test_the_least_recently_used_go_first(tmp_path):
    cache = CubinCache(tmp_path, max_bytes=1_000_000)
    keys = [f"{i:02x}" + "0" * 62 for i in range(5)]
    for age, key in enumerate(keys):
        cache.put(key, Compiled(bytes(100_000)))
        os.utime(cache.folder / key[:2] / key[2:], (1000 + age, 1000 + age))
    assert cache.get(keys[0]) is not None  # used now: the youngest
    cache.max_bytes = 340_000
    cache.evict()
    assert [cache.get(key) is not None for key in keys] == [True, False, False, True, True]


def test_a_folder_whose_parts_vanish_meanwhile_is_counted(tmp_path, monkeypatch):
    (tmp_path / "kept").write_bytes(bytes(100))
    scratch, scandir = tmp_path / "scratch", os.scandir

    class Listed:
        """Of a folder, whose scratch folder goes after it was listed and before it is entered."""

        def __init__(self, folder):
            if Path(folder) == tmp_path:
                scratch.mkdir()
            with scandir(folder) as entries:
                self.entries = list(entries)
            if Path(folder) == tmp_path:
                scratch.rmdir()

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def __iter__(self):
            return self

        def __next__(self):
            if not self.entries:
                raise StopIteration
            return self.entries.pop()

    monkeypatch.setattr(os, "scandir", Listed)
    assert folder_size(tmp_path) == (1, 100)


def test_a_cache_below_its_limit_keeps_everything(cache):
    cache.put(KEY, COMPILED)
    cache.evict()
    assert cache.get(KEY) is not None


def test_writers_and_readers_at_once_never_see_half_an_entry(tmp_path):
    results, stop = [], threading.Event()

    def read():
        cache = CubinCache(tmp_path)
        while not stop.is_set():
            found = cache.get(KEY)
            if found is not None:
                results.append(found.cubin in contents)

    def write(content):
        cache = CubinCache(tmp_path)
        for _ in range(100):
            cache.put(KEY, Compiled(content))

    contents = {bytes([i]) * 200_000 for i in range(3)}
    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert results
    assert all(results)
    assert len(list(tmp_path.glob("*/*"))) == 1


def test_the_folder_is_the_users_to_choose(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    assert default_folder() == tmp_path / "cubin"
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR")
    assert default_folder().parts[-2:] == ("tilewright", "cubin")


def test_a_cache_over_its_limit_is_emptied_to_nine_tenths_of_it(tmp_path):
    cache = CubinCache(tmp_path, max_bytes=10_000_000)
    for number in range(11):
        cache.put(f"{number:02x}" + "0" * 62, Compiled(bytes(100_000)))
    each = stored_size(cache) // 11
    cache.max_bytes = 10 * each
    cache.evict()
    assert len(list(tmp_path.glob("*/*"))) == 9


def stored_size(cache):
    return sum(path.stat().st_size for path in cache.folder.glob("*/*"))
