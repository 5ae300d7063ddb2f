"""Requests: bodies as callers send them, every field checked on arrival."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Strict, Tag, model_validator

from tilewright.service.operations import DEFAULT_PRIORITY
from tilewright.service.operations.caller import Scope
from tilewright.tuner.search.searcher import SAMPLERS

NAME_PATTERN = r"^\w[\w .,:+()/@#-]*$"
"""The pattern of a schedule's name."""


class Request(BaseModel):
    """Immutable; unknown fields are refused, so that a typing error is not silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


Size = Annotated[
    Annotated[int, Tag("int")] | Annotated[str, Field(max_length=32), Tag("str")],
    Discriminator(lambda size: "str" if isinstance(size, str) else "int"),  # so that only one of them is complained of
]
OpenShape = Annotated[
    dict[str, Size],
    Field(
        examples=[{"m": 256, "n": 100, "k": 784}],
        max_length=16,
        description='Axis sizes. One of them may be a range such as "1..8192": a family, tuned as one job.',
    ),
]

KernelName = Annotated[str, Field(max_length=64, examples=["gemm"])]
Dtype = Annotated[str, Field(max_length=16)]
Options = Annotated[dict[str, bool | str], Field(default_factory=dict, max_length=16)]
Slug = Annotated[str | None, Field(max_length=128, description="Slug; not set: the only model that has devices.")]
Device = Annotated[str | None, Field(max_length=128, description="UUID of the one device that may run it.")]
Variants = Annotated[list[str] | None, Field(min_length=1, max_length=32, description="Search only these variants.")]
CompilerName = Annotated[str | None, Field(pattern="^(nvrtc|pycuda)$", description="CUDA devices only.")]
Priority = Annotated[
    int,
    Field(ge=0, le=9, description="9 runs first; among equal ones the keys take turns. Above 5: scope admin."),
]
Configuration = Annotated[dict[str, int], Field(max_length=64, examples=[{"TILE_WIDTH": 32}])]


class BudgetRequest(Request):
    """The limits of a job, which stops at the first of them; at least one is set."""

    trials: int | None = Field(default=None, gt=0, description="Trials of this job.")
    seconds: float | None = Field(
        default=None,
        gt=0,
        description="Seconds of preparing (device, inputs, float64 reference) and searching; finals come on top.",
    )
    target_ms: float | None = Field(default=None, gt=0, description="Stop at the first trial this fast.")

    @model_validator(mode="after")
    def _something(self) -> BudgetRequest:
        if self.trials is None and self.seconds is None and self.target_ms is None:
            raise ValueError('set at least one of trials, seconds, target_ms, for instance {"trials": 100}')
        return self


class StartRequest(Request):
    """A configuration that a search tries first; the parameters that it leaves out have their defaults."""

    variant: str | None = Field(
        default=None, max_length=64, description="Not set: the only variant that has these parameters."
    )
    configuration: Configuration


class JobRequest(Request):
    """Tune one problem on one device model (or on one device) within a budget."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "kernel": "gemm",
                    "shape": {"m": 256, "n": 100, "k": 784},
                    "dtype": "float32",
                    "options": {"trans_b": False},
                    "budget": {"trials": 100, "seconds": 60},
                }
            ]
        }
    )

    kernel: KernelName
    shape: OpenShape
    dtype: Dtype = "float32"
    options: Options
    device_model: Slug = None
    device: Device = None
    budget: BudgetRequest = BudgetRequest(trials=100)
    variants: Variants = None
    starts: list[StartRequest] | None = Field(
        default=None,
        min_length=1,
        max_length=16,
        description="Configurations to try right after the default. For one outside the problem's search space the "
        "nearest inside is tried.",
    )
    compiler: CompilerName = None
    sampler: str = Field(default=SAMPLERS[0], max_length=32)
    seed: int = Field(default=0, ge=0, lt=2**31)
    priority: Priority = DEFAULT_PRIORITY
    dry_run: bool = Field(
        default=False, description="Only answer the size of the search space and an estimated time; store nothing."
    )


class RetryRequest(Request):
    """The trials of a job's study that are to be tried again."""

    trial: int | None = Field(default=None, ge=0, lt=2**31, description="Its number; not set: all that have failed.")


class ScheduleProblem(Request):
    """One problem, or one family, that a schedule tunes at every due time."""

    kernel: KernelName
    shape: OpenShape
    dtype: Dtype = "float32"
    options: Options


class ScheduleRequest(Request):
    """Tune problems regularly, at the times of a cron expression."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "first layer, nightly",
                    "cron": "0 30 2 * * *",
                    "time_zone": "Europe/Berlin",
                    "problems": [{"kernel": "gemm", "shape": {"m": 256, "n": 100, "k": 784}}],
                    "budget": {"trials": 50, "seconds": 120},
                    "overlap": "skip",
                }
            ]
        }
    )

    name: str = Field(
        min_length=1,
        max_length=64,
        pattern=NAME_PATTERN,
        description="Unique. Letters, digits, spaces and . , : + ( ) / @ # _ -",
    )
    cron: str = Field(max_length=128, description="Minute hour day month weekday, or six with the second first.")
    time_zone: str = Field(default="UTC", max_length=64, description="IANA name in which the cron fields are read.")
    target: Literal["problems", "stale", "improvable", "demand"] = Field(
        default="problems",
        description="problems: those listed in `problems`. Or those that are stale or improvable at each due time, or "
        "in demand: requested and not tuned, the most requested first.",
    )
    problems: list[ScheduleProblem] = Field(
        default=[], max_length=100, description="One job for each at every due time; only with the target `problems`."
    )
    top: int = Field(default=20, ge=1, le=100, description="Most problems of one fire; not for the target `problems`.")
    kernel: str | None = Field(
        default=None, max_length=64, description="Only problems of this kernel; not with the target `problems`."
    )
    device_model: Slug = None
    device: Device = None
    budget: BudgetRequest = Field(default=BudgetRequest(trials=100), description="Budget of every job.")
    variants: Variants = None
    compiler: CompilerName = None
    priority: Priority = DEFAULT_PRIORITY
    overlap: Literal["skip", "queue"] = Field(
        default="skip", description="What to do at a due time while an earlier job of this schedule is open."
    )
    enabled: bool = Field(default=True, description="False: the schedule is paused.")


def _only_what_is_sent(schema: dict[str, Any]) -> None:
    """Gives changes no defaults: a field that a caller leaves out stays as it is."""
    for field in schema["properties"].values():
        field.pop("default", None)
    schema["examples"] = [{"cron": "0 30 3 * * *", "budget": {"trials": 80}}]


class ScheduleChanges(ScheduleRequest):
    """Some fields of a schedule; the others stay. Lists and the budget are replaced as a whole."""

    model_config = ConfigDict(json_schema_extra=_only_what_is_sent)

    name: str = Field(default="", min_length=1, max_length=64, pattern=NAME_PATTERN, description="Unique.")
    cron: str = Field(
        default="", max_length=128, description="Minute hour day month weekday, or six with the second first."
    )


class DemandJobs(Request):
    """Budget and priority of the jobs for the most requested problems."""

    budget: BudgetRequest = Field(default=BudgetRequest(trials=100), description="Budget of every job.")
    priority: Priority = DEFAULT_PRIORITY


class RetractionRequest(Request):
    """Why a result is withdrawn."""

    reason: str = Field(
        min_length=1, max_length=1000, pattern=r"\S", examples=["Wrong beyond the bound on our matrices."]
    )


class NoteRequest(Request):
    """A note on a study."""

    text: str = Field(
        min_length=1, max_length=1000, pattern=r"\S", examples=["Clocks were capped on this host, see the ticket."]
    )
    acknowledges: bool = Field(
        default=False, description="Its best is slower than the one before it, and that is known: it no longer counts."
    )


ViewName = Annotated[str, Field(pattern=r"^\S(.{0,62}\S)?$", examples=["H200, worst first"])]


class ViewRequest(Request):
    """An address of the dashboard under a name."""

    name: ViewName = Field(description="At most 64 characters; a view of that name is replaced.")
    address: str = Field(
        pattern=r"^/([^/\\\s][^\\\s]*)?$",
        max_length=2048,
        description="A path of this server with its query.",
        examples=["/?kernel=gemm&device_model=nvidia-h200&order=ratio"],
    )


class SeenTimes(Request):
    """Median times of calls in a client's program on its GPU, in turns with its library's call."""

    ours_ms: float = Field(gt=0, le=1e7, description="The configuration's.", examples=[1.88])
    library_ms: float = Field(gt=0, le=1e7, description="That of the library's call.", examples=[1.21])
    calls: int = Field(gt=0, le=1000, description="How many of each.", examples=[10])


class ClaimRequest(Request):
    """A configuration that was served, and what a client's process saw of it: wrong results, or its times."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "kernel": "gemm",
                    "shape": {"m": 256, "n": 100, "k": 784},
                    "device_model": "nvidia-h200",
                    "driver": "580.159",
                    "variant": "tiled",
                    "configuration": {"TILE_WIDTH": 32},
                    "source_hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
                    "seen": "12 components of the rows that were checked are out of bounds",
                }
            ]
        }
    )

    kernel: KernelName
    shape: dict[str, int] = Field(examples=[{"m": 256, "n": 100, "k": 784}], max_length=16)
    dtype: Dtype = "float32"
    options: Options
    device_model: str = Field(max_length=128, description="Slug of the client's device model.")
    driver: str = Field(max_length=64, description="The client's driver.", examples=["580.159"])
    variant: str = Field(max_length=64, description="As it was served.")
    configuration: dict[str, int] = Field(
        max_length=64, description="As it was served: every parameter.", examples=[{"TILE_WIDTH": 32}]
    )
    source_hash: str = Field(pattern="^[0-9a-f]{64}$", description="As it was served.")
    seen: str = Field(min_length=1, max_length=2000, pattern=r"\S", description="What was seen, in words.")
    times: SeenTimes | None = Field(
        default=None, description="Nothing was wrong, and these were its times: the problem is measured, no more."
    )


KeyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", examples=["ci"])]


ProjectName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", examples=["vision"])]


OwnerName = Annotated[str, Field(pattern=r"^(oidc:)?[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", examples=["ci"])]
"""The name of a key, or of a person who signs in at a provider."""


class ProjectQuotas(Request):
    """Limits on the keys of a project together, instead of the settings' quotas of each key; null: these hold."""

    max_open_jobs: int | None = Field(
        default=None, gt=0, le=10**6, description="Jobs of all its keys, and of their schedules, queued or running."
    )
    max_queued_seconds: float | None = Field(
        default=None, gt=0, le=1e9, description="Seconds that these jobs may take together."
    )
    max_schedules: int | None = Field(default=None, gt=0, le=100_000, description="Schedules of all its keys.")


class ProjectRequest(ProjectQuotas):
    """A new project."""

    name: ProjectName = Field(description="Unique. Letters, digits, `.`, `_`, `-`; at most 64.")


class KeyRequest(Request):
    """A new access key."""

    name: KeyName = Field(description="Letters, digits, `.`, `_`, `-`; at most 64.")
    scope: Annotated[Scope, Strict(strict=False)] = Field(
        default=Scope.READ,
        description="read: look at everything; tune: also jobs, schedules, claims and retractions of what its jobs "
        "found; admin: also keys, imports, webhooks and draining.",
    )
    expires_days: float | None = Field(
        default=None, gt=0, le=3650, description="Days until the key expires; null: never."
    )
    max_trials: int | None = Field(default=None, gt=0, le=10**9, description="Largest trial budget of a job.")
    max_seconds: float | None = Field(default=None, gt=0, le=1e9, description="Largest time budget of a job.")
    max_open_jobs: int | None = Field(
        default=None, gt=0, le=100_000, description="Most jobs queued or running at a time."
    )
    project: ProjectName = Field(default="default", description="The project that it belongs to for good.")


class RotationRequest(Request):
    """How to replace a key's token."""

    grace_s: float = Field(default=0.0, ge=0, le=30 * 86400, description="Seconds that the old token stays valid.")


class SessionRequest(Request):
    """A key, to be exchanged for a browser session."""

    key: str = Field(min_length=8, max_length=128, description="The token of a key in force.")


class WebhookRequest(Request):
    """An address that gets a message whenever a job ends."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "ci", "url": "https://ci.example/hooks/tilewright", "states": ["done", "failed"]}]
        }
    )

    name: KeyName = Field(description="Unique. Letters, digits, `.`, `_`, `-`; at most 64.")
    url: str = Field(max_length=2048, description="https; no private, loopback or link-local address unless allowed.")
    states: list[Literal["done", "failed", "cancelled"]] = Field(
        default=["done", "failed", "cancelled"],
        min_length=1,
        max_length=3,
        description="Only jobs that end in one of these states.",
    )
    project: ProjectName | None = Field(default=None, description="Only jobs of this project; null: of all.")
