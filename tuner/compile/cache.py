"""Cubins on disk by content: written whole or not at all, checked when read, least recently used thrown out."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import stat
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import platformdirs

from tilewright.tuner.compile.compilation import Compilation, Compiled, CompiledLaunch
from tilewright.tuner.compile.compiler import compile_now
from tilewright.tuner.outcome import Resources

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 30
"""About 30,000 cubins of the catalogue's kernels (20 to 60 KB each)."""

_MAGIC = b"tilewright-cubin-2\n"
_PUTS_BETWEEN_EVICTIONS = 256
"""Listing the folder costs milliseconds; between two listings it grows by at most this many cubins."""


def default_folder() -> Path:
    """TILEWRIGHT_CACHE_DIR where set, else the user's cache folder; `cubin` inside it."""
    root = os.environ.get("TILEWRIGHT_CACHE_DIR")
    return (Path(root) if root else platformdirs.user_cache_path("tilewright")) / "cubin"


class CubinCache:
    """Compiled cubins by key. Any number of processes may share a folder; a failing cache costs time, no result."""

    def __init__(self, folder: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.folder, self.max_bytes = folder or default_folder(), max_bytes
        self._warned = False
        self._puts = 0

    def get(self, key: str) -> Compiled | None:
        """The entry that `put` stored, with compile_ms 0; None where there is none, or it is damaged and so removed."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(error)
            return None
        compiled = decode(key, data)
        with contextlib.suppress(OSError):
            if compiled is None:
                path.unlink()
            else:
                os.utime(path)  # the eviction's clock: access times are often off (noatime)
        return compiled and replace(compiled, compile_ms=0.0)

    def put(self, key: str, compiled: Compiled) -> None:
        """Stores it; a full or read-only disk is reported once and otherwise ignored."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, encode(key, compiled))
        except OSError as error:
            self._warn(error)
            return
        self._puts += 1
        if self._puts % _PUTS_BETWEEN_EVICTIONS == 1:
            self.evict()

    def evict(self) -> None:
        """Removes the least recently used files until the folder holds at most 9/10 of `max_bytes`, if it is over."""
        remove_oldest(self.folder.glob("*/*"), self.max_bytes)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key[2:]

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            log.warning("the cubin cache in %s cannot be used (%s); compiling goes on without it", self.folder, error)


def remove_oldest(paths: Iterable[Path], max_bytes: int) -> None:
    """Removes the files used longest ago down to 9/10 of `max_bytes`, if there are more; folders stay."""
    files: list[tuple[float, int, Path]] = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # another process evicts too
            status = path.stat()
            if not stat.S_ISDIR(status.st_mode):
                files.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in files)
    most = max_bytes if total <= max_bytes else max_bytes * 9 // 10
    for _, size, path in sorted(files):
        if total <= most:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size


def folder_size(folder: Path) -> tuple[int, int]:
    """How many files lie in a cache and their bytes; 0 and 0 where there is none. 30,000 files take about 0.1 s.

    Takes no memory for what it finds: a worker that made a list of it grew by 2 to 4 MiB an hour beside its cache.
    """
    files, size, folders = 0, 0, [os.fspath(folder)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:  # folders vanish: compilers have some
            for entry in entries:
                with contextlib.suppress(OSError):  # another process evicts
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        files, size = files + 1, size + entry.stat(follow_symlinks=False).st_size
    return files, size


def compiled_by(cache: CubinCache | None, work: Compilation) -> Compiled:
    """The cubin from the cache, or compiled in this process and kept there; raises TrialFailure, NoCompilerError."""
    if work.shared is not None:
        shared = compiled_by(cache, work.shared)
        return replace(compiled_by(cache, replace(work, shared=None)), shared=shared.cubin)
    key = work.key()
    cached = cache.get(key) if cache else None
    if cached is not None:
        return cached
    compiled = compile_now(work)
    if cache:
        cache.put(key, compiled)
    return compiled


def write_whole(path: Path, data: bytes) -> None:
    """The file appears complete, under its name, or not at all."""
    new = path.with_name(f".new-{secrets.token_hex(16)}")  # no other process of any host has this name
    try:
        with new.open("xb") as file:  # as readable as the umask allows: hosts may share it
            file.write(data)
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def encode(key: str, compiled: Compiled) -> bytes:
    """The compiled result as bytes, which begin with a SHA-256 over the key and the rest."""
    facts = {"resources": asdict(compiled.resources), "log": compiled.log, "compile_ms": compiled.compile_ms}
    head = json.dumps(facts | ({} if compiled.launch is None else {"launch": asdict(compiled.launch)})).encode()
    body = len(head).to_bytes(8, "big") + head + compiled.cubin
    return _MAGIC + _digest(key, body) + body


def decode(key: str, data: bytes) -> Compiled | None:
    """The result that `encode` was given with that key; None where the bytes are damaged or another key's."""
    start = len(_MAGIC) + hashlib.sha256().digest_size
    body = data[start:]
    if not data.startswith(_MAGIC) or _digest(key, body) != data[len(_MAGIC) : start]:
        return None
    size = int.from_bytes(body[:8], "big")
    head = json.loads(body[8 : 8 + size])
    launch = CompiledLaunch(**head["launch"]) if "launch" in head else None
    resources, compile_ms = Resources(**head["resources"]), head["compile_ms"]
    return Compiled(body[8 + size :], resources, head["log"], compile_ms, launch)


def _digest(key: str, body: bytes) -> bytes:
    return hashlib.sha256(key.encode() + body).digest()
