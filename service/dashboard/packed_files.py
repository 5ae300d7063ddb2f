"""Static files, compressed once and kept: compressing the largest takes 44 ms, and anybody may request it."""

from __future__ import annotations

import gzip
import os
from functools import lru_cache
from pathlib import Path

from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.types import Scope

LEAST_COMPRESSED = 1024
KEPT = 64
"""Files kept compressed: more than there are."""


class PackedFiles(StaticFiles):
    """A folder of files, gzipped for clients that accept gzip."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """The file, or 304 if the browser has it already."""
        plain = super().file_response(full_path, stat_result, scope, status_code)
        plain.headers["Vary"] = "Accept-Encoding"
        is_taken = "gzip" in Headers(scope=scope).get("accept-encoding", "")
        if not is_taken or not isinstance(plain, FileResponse) or stat_result.st_size < LEAST_COMPRESSED:
            return plain
        packed = Response(_packed(os.fspath(full_path), stat_result.st_mtime_ns), status_code)
        kept = ("content-type", "last-modified", "etag", "vary")
        packed.headers.update({name: plain.headers[name] for name in kept} | {"Content-Encoding": "gzip"})
        return packed


@lru_cache(maxsize=KEPT)
def _packed(path: str, _changed_at: int) -> bytes:
    return gzip.compress(Path(path).read_bytes())
