"""Settings, all read from the environment as TILEWRIGHT_<NAME>; every one has a default that works on a laptop."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from platformdirs import user_data_path
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What an operator may set."""

    model_config = SettingsConfigDict(env_prefix="TILEWRIGHT_", extra="ignore", frozen=True)

    database_url: str | None = Field(
        default=None, description="postgresql://… of a shared database. Not set: an embedded PostgreSQL in data_dir."
    )
    data_dir: Path = Field(
        default_factory=lambda: user_data_path("tilewright"), description="Embedded database, locks, logs."
    )
    host: str = Field(default="127.0.0.1", description="Address that the API listens on.")
    port: int = Field(default=8000, ge=1, le=65535, description="Port that the API listens on.")
    allowed_hosts: list[str] = Field(
        default_factory=lambda: ["127.0.0.1", "localhost", "[::1]"],
        description="Host names that a request may carry; all others are refused (DNS rebinding).",
    )
    url: str | None = Field(
        default=None, description="API that the command line talks to. Not set: this machine's database."
    )
    kernel_folders: list[Path] = Field(default_factory=list, description="Folders with kernels of your own.")
    heartbeat_s: float = Field(default=10, gt=0, description="How often a worker says that it lives.")
    stalled_after_s: float = Field(
        default=60, gt=0, description="Silence after which a worker's job is given to another."
    )
    stop_grace_s: float = Field(
        default=20, gt=0, description="How long a job may take to stop after SIGTERM or cancel."
    )
    max_body_bytes: int = Field(default=1 << 20, gt=0, description="Largest request body.")
    max_trials: int = Field(default=100_000, gt=0, description="Largest trial budget of one job.")
    max_seconds: float = Field(default=24 * 3600, gt=0, description="Largest time budget of one job, seconds.")


@cache
def settings() -> Settings:
    """The settings of this process."""
    return Settings()
