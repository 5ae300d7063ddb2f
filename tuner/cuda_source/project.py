"""A CUDA source with the headers of its project that it includes: those in quotes that are there to be read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tilewright.kernels.sources.source import INCLUDE
from tilewright.tuner.cuda_source.tree import CudaSource

_INCLUDE = re.compile(r'^([ \t]*#[ \t]*include[ \t]*)"([^"\n]+)"', re.MULTILINE)
MOST_HEADERS = 64
"""The most headers that are taken along: beyond them a project has a library, not a kernel's own text."""


class Project:
    """The source and its headers as trees; includes name each header by `name` alone, and lines keep their numbers.

    `missing` has the headers in quotes that are in none of the folders.
    """

    def __init__(self, text: str, here: Path | None = None, folders: Sequence[Path] = ()) -> None:
        self.headers: dict[str, CudaSource] = {}
        self.missing: list[str] = []
        self._names: dict[Path, str] = {}
        self._folders = folders
        self.main = CudaSource(self._with_names(text, here))

    @property
    def sources(self) -> list[CudaSource]:
        """The source, then its headers."""
        return [self.main, *self.headers.values()]

    def _with_names(self, text: str, here: Path | None) -> str:
        def renamed(include: re.Match[str]) -> str:
            path = self._find(include[2], here)
            if path is None:
                if not (INCLUDE / include[2]).is_file():
                    self.missing.append(include[2])
                return include[0]
            return f'{include[1]}"{self._name(path)}"'

        return _INCLUDE.sub(renamed, text)

    def _find(self, name: str, here: Path | None) -> Path | None:
        folders = [*([here] if here else []), *self._folders]
        return next((path.resolve() for one in folders if (path := one / name).is_file()), None)

    def _name(self, path: Path) -> str:
        """The header's name beside the source; it is read when it is first met."""
        if path in self._names:
            return self._names[path]
        name, number = path.name, 2
        while name in self.headers:
            name, number = f"{path.stem}_{number}{path.suffix}", number + 1
        self._names[path] = name
        if len(self.headers) < MOST_HEADERS:
            self.headers[name] = CudaSource("")  # one that includes itself is met again meanwhile
            text = path.read_text(encoding="utf-8-sig", errors="replace")
            self.headers[name] = CudaSource(self._with_names(text, path.parent))
        return name
