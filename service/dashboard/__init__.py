"""The dashboard: pages for browsers."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"
"""Style sheets and scripts, served as they are."""

GUIDE = Path(__file__).parent / "guide"
"""The documentation as a site, where `make docs` has built it."""
