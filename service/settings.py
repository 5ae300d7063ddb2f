"""The settings of this process, read from the environment as TILEWRIGHT_<NAME>."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.service.settings_model import Settings


@cache
def settings() -> Settings:
    """The settings of this process."""
    # Imported here: Pydantic takes a quarter of a second, which the help of a command need not wait for.
    from tilewright.service.settings_model import Settings  # noqa: PLC0415

    return Settings()
