"""The command line: data on stdout, everything else on stderr, one line per error, exit codes for scripts."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from importlib.util import find_spec

from tilewright.service import GARBAGE_AFTER

SERVICE = ("alembic", "fastapi", "httpx", "psycopg", "pydantic_settings", "rich", "sqlalchemy", "typer", "uvicorn")
"""Packages of the extra `service` that the whole command line needs; one that is missing makes it the light one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of one command line, after running it; a light installation has few commands."""
    gc.set_threshold(GARBAGE_AFTER, 10, 10)  # imports leave next to no cycles
    if any(find_spec(name) is None for name in SERVICE):
        from tilewright.service.cli import light  # the launcher is not imported where it is not used

        return light.main(arguments)
    from tilewright.service.cli import application  # needs the extra `service`

    return application.main(arguments)


__all__ = ["main"]
