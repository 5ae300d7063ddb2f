"""Pages for people."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"
"""Style sheets and, later, scripts: served as they are."""
