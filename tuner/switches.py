"""Variables of the environment that turn something on or off."""

from __future__ import annotations

import os


def is_on(variable: str, *, unset: str = "") -> bool:
    """Whether the variable says yes; `unset` is the answer if nobody has set it."""
    return os.environ.get(variable, unset).lower() in {"1", "true", "yes", "on"}
