"""The catalogue of a process that stays: folders of kernels are read again when one of their files changes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tilewright.kernels.catalogue import Catalogue
from tilewright.kernels.errors import BrokenDeclarationError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
"""How often the folders are checked for changes, on a call of `now`: some microseconds for each file."""

FileState = tuple[str, int, int, int, int]


class WatchedCatalogue:
    """Tilewright's own kernels, which stay as they are, and those of the folders as they are now. Any thread may ask.

    Raises BrokenDeclarationError at first. A folder that cannot be read later is logged, and all stays as it was.
    """

    def __init__(self, folders: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._folders, self._clock = tuple(folders), clock
        self._lock = threading.Lock()
        self._current = Catalogue({})
        self._seen = list(self._files())  # before they are read: what changes meanwhile is seen at the next look
        self._current = Catalogue.load(self._folders)
        self._looked_at = clock()

    def now(self) -> Catalogue:
        """The kernels, at most LOOK_EVERY_S old. Where another thread reads the folders, those of before."""
        is_due = self._folders and self._clock() - self._looked_at >= LOOK_EVERY_S
        if is_due and self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._looked_at = self._clock()
                self._lock.release()
        return self._current

    def _look(self) -> None:
        seen = list(self._files())
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._current = Catalogue.load(self._folders)
        except BrokenDeclarationError as error:
            log.warning("The changed kernels could not be read, so the previous ones stay in use. %s", error)
        else:
            log.info("Read the kernels of %s again.", ", ".join(map(str, self._folders)))

    def _files(self) -> Iterator[FileState]:
        """Every file of the folders, every header beside them, and every file of the include folders.

        Those are known once the kernels have been read: where there are any, the first look reads them a second time.
        """
        kernels = self._current.by_name.values()
        included = {folder.resolve() for kernel in kernels for folder in kernel.include_folders}
        for folder in self._folders:
            yield from _states([*_listed(folder), *folder.resolve().parent.glob("*.cuh")])
        for folder in sorted(included):
            yield from _states(_listed(folder))


def _states(paths: list[Path]) -> Iterator[FileState]:
    for path in sorted(paths):
        try:
            now = path.stat()
        except OSError:  # gone since it was listed
            continue
        # A copy may keep the time of its contents, but nobody can set the time of the last change (ctime).
        yield str(path), now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def _listed(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_file()]
    except OSError:  # away while it is replaced
        return []
