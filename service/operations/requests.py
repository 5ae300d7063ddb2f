"""What callers ask for: checked on arrival, field by field."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Request(BaseModel):
    """Immutable; unknown fields are refused, so that a typing error is not silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class BudgetRequest(Request):
    """When to stop: whichever comes first; at least one is set."""

    trials: int | None = Field(default=None, gt=0, description="Trials of this job.")
    seconds: float | None = Field(default=None, gt=0, description="Seconds of searching.")
    target_ms: float | None = Field(default=None, gt=0, description="Stop at the first trial this fast.")

    @model_validator(mode="after")
    def _something(self) -> BudgetRequest:
        if self.trials is None and self.seconds is None and self.target_ms is None:
            raise ValueError('set at least one of trials, seconds, target_ms, for instance {"trials": 100}')
        return self


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

    kernel: str = Field(max_length=64, examples=["gemm"])
    shape: dict[str, int] = Field(examples=[{"m": 256, "n": 100, "k": 784}], max_length=16)
    dtype: str = Field(default="float32", max_length=16)
    options: dict[str, bool | str] = Field(default_factory=dict, max_length=16)
    device_model: str | None = Field(
        default=None, max_length=128, description="Slug; not set: the only model there is."
    )
    device: str | None = Field(default=None, max_length=128, description="UUID of the one device that may run it.")
    budget: BudgetRequest = BudgetRequest(trials=100)
    variants: list[str] | None = Field(default=None, min_length=1, max_length=32, description="Only these variants.")
    compiler: str | None = Field(default=None, pattern="^(nvrtc|pycuda)$", description="CUDA devices only.")
    sampler: str = Field(default="tpe", max_length=32)
    seed: int = Field(default=0, ge=0, lt=2**31)
    priority: int = Field(default=0, ge=-100, le=100)
    dry_run: bool = Field(default=False, description="Answer the size of the space and an estimate; store nothing.")


class ScheduleProblem(Request):
    """One problem to tune each time."""

    kernel: str = Field(max_length=64, examples=["gemm"])
    shape: dict[str, int] = Field(examples=[{"m": 256, "n": 100, "k": 784}], max_length=16)
    dtype: str = Field(default="float32", max_length=16)
    options: dict[str, bool | str] = Field(default_factory=dict, max_length=16)


class ScheduleRequest(Request):
    """Tune problems again and again, at the times that a cron expression names."""

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
        pattern=r"^\w[\w .,:+()/@#-]*$",
        description="Unique. Letters, digits, spaces and . , : + ( ) / @ # _ -",
    )
    cron: str = Field(max_length=128, description="Six fields: second minute hour day month weekday.")
    time_zone: str = Field(default="UTC", max_length=64, description="IANA name in which the cron fields are read.")
    problems: list[ScheduleProblem] = Field(min_length=1, max_length=100, description="One job for each, every time.")
    device_model: str | None = Field(
        default=None, max_length=128, description="Slug; not set: the only model there is."
    )
    device: str | None = Field(default=None, max_length=128, description="UUID of the one device that may run it.")
    budget: BudgetRequest = Field(default=BudgetRequest(trials=100), description="Of every job.")
    variants: list[str] | None = Field(default=None, min_length=1, max_length=32, description="Only these variants.")
    compiler: str | None = Field(default=None, pattern="^(nvrtc|pycuda)$", description="CUDA devices only.")
    priority: int = Field(default=0, ge=-100, le=100)
    overlap: Literal["skip", "queue"] = Field(
        default="skip", description="What to do at a due time while an earlier job of this schedule is open."
    )
    enabled: bool = Field(default=True, description="False: created paused.")
