"""Static files: under an address with their hash browsers keep them for good; compressed once and kept here.

Compressing the largest takes 44 ms, and anybody may request it.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
from functools import lru_cache
from pathlib import Path

from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.types import Scope

from tilewright.service.dashboard import STATIC

_IMPORT = re.compile(rb'(?<= from ")\./([\w-]+\.js)(?=";)')
"""An import of one of our scripts from another."""

LEAST_COMPRESSED = 1024
KEPT = 256
"""Files kept compressed: more than there are."""

FOR_GOOD = "public, max-age=31536000, immutable"
"""The cache policy for an address that names its content: other content has another address."""


class PackedFiles(StaticFiles):
    """A folder of files, gzipped for clients that accept gzip."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """The file, or 304 if the browser has it already."""
        plain = super().file_response(full_path, stat_result, scope, status_code)
        plain.headers["Vary"] = "Accept-Encoding"
        if scope["query_string"] == f"v={_hash(os.fspath(full_path), stat_result.st_mtime_ns)}".encode():
            plain.headers["Cache-Control"] = FOR_GOOD
        is_taken = "gzip" in Headers(scope=scope).get("accept-encoding", "")
        is_packed = is_taken and stat_result.st_size >= LEAST_COMPRESSED
        if not isinstance(plain, FileResponse) or not (is_packed or os.fspath(full_path).endswith(".js")):
            return plain
        content = _packed if is_packed else _content
        sent = Response(content(os.fspath(full_path), stat_result.st_mtime_ns), status_code)
        kept = ("content-type", "last-modified", "etag", "vary", "cache-control")
        sent.headers.update({name: plain.headers[name] for name in kept if name in plain.headers})
        if is_packed:
            sent.headers["Content-Encoding"] = "gzip"
        return sent


class BuiltFiles(PackedFiles):
    """A folder of files that may be missing, or be made while the server runs."""

    async def check_config(self) -> None:
        """Accepts a folder that does not exist: its files are answered with 404."""


@lru_cache(maxsize=KEPT)
def _packed(path: str, changed_at: int) -> bytes:
    return gzip.compress(_content(path, changed_at))


def _content(path: str, _changed_at: int) -> bytes:
    """The file; what a script of ours imports has the address that names its content."""
    text = Path(path).read_bytes()
    return _IMPORT.sub(lambda found: static_path(found[1].decode()).encode(), text) if path.endswith(".js") else text


def static_path(name: str) -> str:
    """The address of a static file, with the hash of its content."""
    path = STATIC / name
    return f"/static/{name}?v={_hash(os.fspath(path), path.stat().st_mtime_ns)}"


@lru_cache(maxsize=KEPT)
def _hash(path: str, changed_at: int) -> str:
    return hashlib.sha256(_content(path, changed_at)).hexdigest()[:12]
