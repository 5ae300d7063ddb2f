"""What callers ask for: checked on arrival, field by field."""

from __future__ import annotations

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
