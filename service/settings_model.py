"""Every setting with its type and description, and a default that works on a laptop."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from platformdirs import user_data_path
from pydantic import AfterValidator, AnyHttpUrl, Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tilewright.kernels.sources.folders import folders_of

_RIGHT = re.compile(r"([^=,]+)=(read|tune|admin)(?:/([A-Za-z0-9][A-Za-z0-9._-]{0,63}))?")


def _origin(text: str, settings: ValidationInfo) -> str:
    """The address as browsers write it in `Origin`: small letters, no default port, nothing after the host."""
    url = AnyHttpUrl(text)
    if url.path not in {None, "/"} or url.query or url.fragment or url.username or url.password:
        raise ValueError("must be a scheme and a host only, such as https://tiles.example, without a path")
    if not settings.data.get("require_keys"):
        raise ValueError("needs TILEWRIGHT_REQUIRE_KEYS=true: behind a proxy every caller has the proxy's address")
    return str(url).rstrip("/")


EVERYBODY = "*"


class Rights(NamedTuple):
    """The rights of an account that has this value in the claim; with EVERYBODY, of any account."""

    claim: str
    scope: str  # read, tune or admin
    project: str


class Settings(BaseSettings):
    """The settings of the service and the command line."""

    model_config = SettingsConfigDict(env_prefix="TILEWRIGHT_", extra="ignore", frozen=True)

    database_url: str | None = Field(
        default=None,
        description="Address of a shared database, postgresql://… If not set: an embedded PostgreSQL in data_dir.",
    )
    data_dir: Path = Field(
        default_factory=lambda: user_data_path("tilewright"),
        description="Folder of the embedded database, locks and logs.",
    )
    host: str = Field(default="127.0.0.1", description="Address that the API listens on.")
    port: int = Field(default=8000, ge=1, le=65535, description="Port that the API listens on.")
    allowed_hosts: Annotated[list[str], NoDecode] = Field(
        default_factory=lambda: ["127.0.0.1", "localhost", "[::1]"],
        description="Host names that requests may name; others are refused, against DNS rebinding.",
    )
    require_keys: bool = Field(
        default=False,
        description="Require an access key, and answer other machines too. Off: only this machine, without keys.",
    )
    public_url: Annotated[str, AfterValidator(_origin)] | None = Field(
        default=None,
        description="Address that browsers use if a proxy stands in front, such as https://tiles.example. "
        "Needs require_keys; its host is allowed.",
    )
    tls_certificate: Path | None = Field(
        default=None,
        description="PEM file with the certificate chain: `tilewright serve` then speaks https alone, without a proxy.",
    )
    tls_key: Path | None = Field(
        default=None, description="PEM file with the certificate's key. If not set: it is in the same file."
    )
    oidc_issuer: str | None = Field(
        default=None,
        description="Address of an OpenID Connect provider, by which browsers may sign in too. Needs public_url, "
        "oidc_client_id, oidc_rights and the extra `oidc`.",
    )
    oidc_client_id: str | None = Field(default=None, description="Name of this service at the provider.")
    oidc_secret_file: Path | None = Field(
        default=None, description="File with its secret. If not set: it has none, and PKCE alone protects the sign-in."
    )
    oidc_claim: str = Field(default="groups", description="Claim of the provider's token that decides on rights.")
    oidc_rights: Annotated[tuple[Rights, ...], NoDecode] = Field(
        default=(),
        description="Rights by value of that claim, VALUE=SCOPE or VALUE=SCOPE/PROJECT, separated by commas; * is any "
        "account. The highest scope counts.",
    )
    open_reads: bool = Field(default=False, description="With require_keys: allow reading without a key.")
    requests_per_minute: float = Field(
        default=6000,
        gt=0,
        description="With require_keys: requests per minute of one key, or of one address without a key.",
    )
    claims_per_minute: int = Field(
        default=10, gt=0, description="Claims of wrong configurations per minute of one key, each a verification."
    )
    open_jobs_per_key: int = Field(
        default=1000, gt=0, description="Jobs queued or running of one key of scope tune, those of its schedules too."
    )
    queued_seconds_per_key: float = Field(
        default=7 * 24 * 3600,
        gt=0,
        description="Seconds that the open jobs of one key of scope tune may take together.",
    )
    schedules_per_key: int = Field(default=100, gt=0, description="Schedules of one key of scope tune.")
    fires_per_minute: int = Field(
        default=120, gt=0, description="Fires per minute of all schedules of one key of scope tune."
    )
    key: str | None = Field(
        default=None, description="Access key that the command line sends to the API at url.", repr=False
    )
    url: str | None = Field(
        default=None, description="API that the command line talks to. If not set: this machine's database."
    )
    kernel_folders: Annotated[list[Path], NoDecode] = Field(
        default_factory=list,
        description="Folders with kernels of your own: one path, several separated by `:`, or a JSON list.",
    )
    heartbeat_s: float = Field(default=10, gt=0, description="Seconds between two heartbeats of a worker.")
    stalled_after_s: float = Field(
        default=60,
        gt=0,
        description="Seconds without a heartbeat after which a worker's job is given to another; three times as long "
        "while its connection to the database lives.",
    )
    stop_grace_s: float = Field(
        default=20, gt=0, description="Seconds that a job may take to stop after SIGTERM or cancel."
    )
    overrun_s: float = Field(
        default=900,
        gt=0,
        description="Seconds beyond its time budget after which a job is stopped and fails; its trials are kept. The "
        "finals and a trial under way may take a part of them.",
    )
    webhook_private_addresses: bool = Field(
        default=False, description="Allow webhooks to private addresses of your own network, and over plain http."
    )
    demand_kept: int = Field(
        default=1000, gt=0, description="Requested problems that are kept as demand for each kernel and device model."
    )
    demand_most_ms: float = Field(
        default=50.0,
        gt=0,
        description="Schedules skip demand of which one launch must take longer than this, by the device's peak or, "
        "if that is not known, by a bound that no device of its kind exceeds.",
    )
    best_kept: int = Field(
        default=1_000_000,
        ge=0,
        description="Best configurations that each API process keeps in memory, 640 bytes each. 0: none.",
    )
    prediction_processes: int | None = Field(
        default=None,
        gt=0,
        description="Processes that predict for an API process and fit to results, one core each. If not set: as many "
        "as there are cores, less one, but one at least.",
    )
    shipped_records: bool = Field(
        default=True,
        description="Predict from the measurements that come with Tilewright where few shapes or none are tuned here.",
    )
    samples_kept_days: float | None = Field(
        default=None, gt=0, description="Days for which a trial's single times are kept. If not set: for ever."
    )
    record_requests: Literal["changes", "refusals", "all"] = Field(
        default="changes",
        description="What the record of changes holds: changes alone, refused requests too, or reads as well. Equal "
        "requests of two seconds are one entry.",
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Format of the log: text for people, or one JSON object per line."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is logged."
    )
    max_connections: int = Field(
        default=1000, gt=0, description="Open connections of an API process; never more than half its file descriptors."
    )
    max_body_bytes: int = Field(default=1 << 20, gt=0, description="Largest request body, in bytes.")
    max_import_bytes: int = Field(
        default=1 << 24, gt=0, le=1 << 30, description="Largest document that is imported, in bytes when unpacked."
    )
    max_trials: int = Field(default=100_000, gt=0, description="Largest trial budget of one job.")
    max_seconds: float = Field(default=24 * 3600, gt=0, description="Largest time budget of one job, seconds.")

    @field_validator("database_url")
    @classmethod
    def _postgresql(cls, given: str | None) -> str | None:
        if given and not given.startswith("postgres"):
            raise ValueError("must be the address of a PostgreSQL, such as postgresql://host:5432/tilewright")
        return given

    @field_validator("stalled_after_s")
    @classmethod
    def _longer_than_a_heartbeat(cls, given: float, info: ValidationInfo) -> float:
        heartbeat_s = info.data.get("heartbeat_s", 0)
        if given <= heartbeat_s:
            raise ValueError(f"must be several times TILEWRIGHT_HEARTBEAT_S, which is {heartbeat_s:g}")
        return given

    @field_validator("oidc_rights", mode="before")
    @classmethod
    def _rights(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        found = [_RIGHT.fullmatch(part.strip()) for part in given.split(",") if part.strip()]
        if None in found:
            raise ValueError("must be VALUE=SCOPE or VALUE=SCOPE/PROJECT, such as ops=admin,vision=tune/vision,*=read")
        return tuple(Rights(one[1], one[2], one[3] or "default") for one in found if one)

    @field_validator("oidc_rights")
    @classmethod
    def _complete(cls, given: tuple[Rights, ...], info: ValidationInfo) -> tuple[Rights, ...]:
        issuer = info.data.get("oidc_issuer")
        if issuer is None:
            return given
        host = urlsplit(issuer)
        if host.scheme != "https" and not (host.scheme == "http" and host.hostname in {"127.0.0.1", "localhost"}):
            raise ValueError("TILEWRIGHT_OIDC_ISSUER must be an https address")
        for name in ("public_url", "oidc_client_id"):
            if not info.data.get(name):
                raise ValueError(f"TILEWRIGHT_OIDC_ISSUER needs TILEWRIGHT_{name.upper()} too")
        if not given:
            raise ValueError("TILEWRIGHT_OIDC_ISSUER needs rules, such as ops=admin,*=read")
        return given

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _hosts(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        if not given.lstrip().startswith("["):
            return [host.strip() for host in given.split(",") if host.strip()]
        try:
            return json.loads(given)
        except ValueError as error:
            raise ValueError(
                'must be a host name, several separated by commas, or a JSON list such as ["api.example"]'
            ) from error

    @field_validator("kernel_folders", mode="before")
    @classmethod
    def _folders(cls, given: Any) -> Any:
        return folders_of(given) if isinstance(given, str) else given
