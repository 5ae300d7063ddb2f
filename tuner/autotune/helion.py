"""Helion's remote cache: the service keeps the configurations that Helion has found, or a folder if no service runs.

Nothing here measures or verifies it: it is a configuration that Helion chose, and no result of a kernel of ours.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import time
import urllib.error
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol

from helion.autotuner import RemoteCacheBackend

from tilewright.tuner.compile.cache import default_folder, write_whole
from tilewright.tuner.runtime.errors import ServiceWarning, warn
from tilewright.tuner.runtime.known.local_service import local_address
from tilewright.tuner.runtime.known.service import REST_S, ApiCalls, refusal

LIMIT_S = 5.0
MOST_KEPT = 2000
"""Entries in a folder; the oldest go first."""

PATH = "/v1/helion/entries"
PAGE = 10

_KEY = re.compile(r"[0-9a-f]{64}")


class Entries(Protocol):
    """A store of texts by key."""

    def get(self, key: str) -> str | None:
        """The text; None where there is none."""

    def put(self, key: str, data: str) -> None:
        """Stores the text under that key."""

    def newest(self) -> Iterator[str]:
        """Every text, the newest first."""


class RemoteCache(RemoteCacheBackend):  # type: ignore[misc]  # Helion need not be there where types are checked
    """The service at TILEWRIGHT_URL or the one that runs on this machine, else a folder in TILEWRIGHT_CACHE_DIR.

    Where the service is away or refuses, Helion goes on with its own local cache.
    """

    def __init__(self) -> None:
        url = os.environ.get("TILEWRIGHT_URL") or local_address()
        key = os.environ.get("TILEWRIGHT_KEY") or None
        self._entries: Entries = ServedEntries(ApiCalls(url, key, LIMIT_S)) if url else KeptEntries()

    def get(self, key: str) -> str | None:
        """The entry that is kept; None where there is none, or none that Helion can read."""
        data = self._entries.get(key)
        return data if data is not None and _is_entry(data) else None

    def put(self, key: str, data: str) -> None:
        """Keeps an entry, in the place of the one before."""
        self._entries.put(key, data)

    def list(self, max_results: int | None = None) -> Iterator[str]:
        """The entries, the newest first, from which Helion begins a search for a shape that is not kept."""
        return itertools.islice(filter(_is_entry, self._entries.newest()), max_results)


class ServedEntries:
    """The service's entries. If it does not answer it is left alone for a minute; each kind of refusal warns once."""

    def __init__(self, api: ApiCalls) -> None:
        self._api = api
        self._rests_until = 0.0
        self._warned: set[object] = set()

    def get(self, key: str) -> str | None:
        """The entry's text, as the service has it."""
        answer = self._answer(f"{PATH}/{key}")
        return str(answer["data"]) if answer and "data" in answer else None

    def put(self, key: str, data: str) -> None:
        """Stores it; the service's key needs the scope `tune`."""
        self._answer(f"{PATH}/{key}", {"data": data}, "PUT")

    def newest(self) -> Iterator[str]:
        """The entries' texts, the newest first, requested in pages as they are read."""
        query = f"?limit={PAGE}"
        while page := self._answer(PATH + query):
            yield from (str(item["data"]) for item in page.get("items", ()))
            if not page.get("next_cursor"):
                return
            query = f"?limit={PAGE}&cursor={page['next_cursor']}"

    def _answer(
        self, path: str, body: dict[str, Any] | None = None, method: str | None = None
    ) -> dict[str, Any] | None:
        if time.monotonic() < self._rests_until:
            return None
        try:
            return self._api.call(path, body, method)
        except urllib.error.HTTPError as error:
            told = refusal(error)
            if body is not None or error.code != HTTPStatus.NOT_FOUND:
                self._warn(error.code, str(told.get("detail")))
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            self._rests_until = time.monotonic() + REST_S
            self._warn("away", str(error))
        return None

    def _warn(self, kind: object, reason: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warn(f"{self._api.url} was not of help: {reason}; Helion goes on without it", ServiceWarning)


class KeptEntries:
    """Files of a folder, each whole or not there; any number of processes may share it."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder().parent / "helion"

    def get(self, key: str) -> str | None:
        """The file's text; None where it cannot be read."""
        try:
            return self._path(key).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def put(self, key: str, data: str) -> None:
        """Writes the file, and deletes the oldest beyond 2000; raises OSError, which Helion logs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._path(key), data.encode())
        for path in self._files()[MOST_KEPT:]:
            path.unlink(missing_ok=True)

    def newest(self) -> Iterator[str]:
        """The files' texts, the last written first."""
        for path in self._files():
            with contextlib.suppress(OSError, UnicodeDecodeError):
                yield path.read_text(encoding="utf-8")

    def _files(self) -> list[Path]:
        times = {}
        for path in self.folder.glob("*.json"):
            with contextlib.suppress(OSError):  # another process has deleted it
                times[path] = path.stat().st_mtime_ns
        return sorted(times, key=times.__getitem__, reverse=True)

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key of Helion's: a SHA-256 in hexadecimal digits")
        return self.folder / f"{key}.json"


def _is_entry(data: str) -> bool:
    """Whether Helion can read the text: one that it cannot read would stop the program."""
    try:
        entry = json.loads(data)
        return isinstance(json.loads(entry["config"]), dict)
    except (KeyError, TypeError, ValueError, RecursionError):
        return False
