"""One search for all processes that come to it: the first searches, the others take what it found.

Ranks of `torch.distributed` agree by their process group's store, processes of one host by a locked file.
"""

from __future__ import annotations

import fcntl
import hashlib
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tilewright.tuner.compile.cache import default_folder
from tilewright.tuner.runtime.errors import ServiceWarning, warn
from tilewright.tuner.runtime.known.answers import FRESH_S

PATIENCE_S = 180.0
"""How long a process waits for another one's search before it searches itself: well below NCCL's limit of 600 s."""
LOOK_AGAIN_S = 0.05
FAILED = "failed"


def found_once(topic: str, names: Collection[str], search: Callable[[], str], *, patience_s: float = PATIENCE_S) -> str:
    """One of `names`: the result of `search` here, or of the process that first began a search on the topic.

    A search that failed or takes longer than `patience_s` in the other process is made here too. With ranks, the first
    answer holds for all; a file's answer holds for a day.
    """
    topic, until = hashlib.sha256(topic.encode()).hexdigest(), time.monotonic() + patience_s

    def with_file() -> str:
        return _by_file(topic, names, search, until)

    store = ranks_store()
    return with_file() if store is None else _by_store(store, topic, names, with_file, until)


def ranks_store() -> Any:
    """The key-value store of this process's ranks; None without any.

    No rank waits in it for another, as all do in a collective: a launch is not a point that all ranks come to.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    with suppress(AttributeError):
        return distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - torch names no other way to it
    return None


def _by_store(store: Any, topic: str, names: Collection[str], search: Callable[[], str], until: float) -> str:
    claim, answer = f"tilewright/{topic}/claim", f"tilewright/{topic}/answer"
    try:
        is_ours = store.add(claim, 1) == 1
        while not is_ours and not store.check([answer]) and time.monotonic() < until:
            time.sleep(LOOK_AGAIN_S)
        found = store.get(answer).decode() if store.check([answer]) else ""
    except RuntimeError as error:
        warn(f"ranks may choose differently: torch's store did not answer ({error})", ServiceWarning)
        return search()
    if found in names:
        return found
    if not is_ours:
        _warn_of_a_second(found)
    try:
        own = search()
    except BaseException:
        with suppress(RuntimeError):
            store.compare_set(answer, "", FAILED)
        raise
    with suppress(RuntimeError):
        first = store.compare_set(answer, "", own).decode()
        return first if first in names else own
    return own


def _by_file(topic: str, names: Collection[str], search: Callable[[], str], until: float) -> str:
    path = default_folder().parent / "answers" / "searched" / topic
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError:  # a folder that cannot be written: every process for itself
        return search()
    with file:
        is_ours = _locked(file, until)
        try:
            if (found := _read(file, path)) in names:
                return found
            if not is_ours:
                _warn_of_a_second(found)
                return search()
            own = search()
            with suppress(OSError):
                file.truncate(0)
                file.write(own)
                file.flush()
            return own
        finally:
            if is_ours:
                fcntl.flock(file, fcntl.LOCK_UN)  # not left to `close`: a forked child may hold a copy of the file


def _locked(file: IO[str], until: float) -> bool:
    """Whether this process holds the file's lock now; a process that ends releases it."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(LOOK_AGAIN_S)
        except OSError:  # a file system without locks
            return False
        else:
            return True


def _read(file: IO[str], path: Path) -> str:
    """The answer in the file, unless it is too old."""
    file.seek(0)
    return file.read() if 0 <= time.time() - path.stat().st_mtime < FRESH_S else ""


def _warn_of_a_second(found: str) -> None:
    why = "failed" if found == FAILED else "has not ended in time"
    warn(f"this process searches too: the search of another one {why}", ServiceWarning)
