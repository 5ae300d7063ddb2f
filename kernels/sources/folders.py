"""Folders of kernels as a setting names them; nothing is imported here that an application need not have."""

from __future__ import annotations

import json
import os
from pathlib import Path


def folders_of(text: str) -> list[Path]:
    """The folders of a path, of several with `os.pathsep` between, or of a JSON list; raises ValueError."""
    if not text.lstrip().startswith("["):
        return [Path(part.strip()) for part in text.split(os.pathsep) if part.strip()]
    try:
        listed = json.loads(text)
    except ValueError as error:
        raise ValueError(f"this is not a JSON list ({error}). A plain path will do: /srv/kernels/axpy") from error
    if not all(isinstance(folder, str) for folder in listed):
        raise ValueError('the JSON list must hold paths, for instance ["/srv/kernels/axpy"]')
    return [Path(folder) for folder in listed]
