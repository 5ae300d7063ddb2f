"""Parameters of paths, query strings and headers. Query strings refuse unknown names, as bodies do."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from fastapi import Header, Path
from pydantic import BaseModel, ConfigDict, Field

from tilewright.service.api.examples import FIELD_EXAMPLES as EXAMPLE
from tilewright.service.operations.pages import MAX_ROW_ID

KernelName = Annotated[str, Path(max_length=64, description="A kernel's name.", examples=[EXAMPLE["kernel"]])]
JobId = Annotated[UUID, Path(description="A job's id.", examples=[EXAMPLE["job_id"]])]
StudyId = Annotated[int, Path(ge=1, le=MAX_ROW_ID, description="A study's id.", examples=[1])]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,128}$",
        description="A string of your choice; the same request sent again with it returns the same job.",
        examples=[EXAMPLE["Idempotency-Key"]],
    ),
]
IfNoneMatch = Annotated[
    str | None, Header(alias="If-None-Match", max_length=1024, description="ETags of answers that you have already.")
]
LastEventId = Annotated[
    int | None,
    Header(
        alias="Last-Event-ID", ge=0, le=MAX_ROW_ID, description="Id of the last event that you received.", examples=[12]
    ),
]


class Query(BaseModel):
    """A query string; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Format = Annotated[
    Literal["json", "csv"],
    Field(
        description="csv: one line per item; all items, or with `limit` or `cursor` one page and the next in `Link`.",
        examples=[EXAMPLE["format"]],
    ),
]


OF_PROJECT = Field(default=None, max_length=64, description="Only those of this project.", examples=["default"])


class ListQuery(Query):
    """The format of a list that has no pages."""

    format: Format = "json"


class PageQuery(Query):
    """The page of a list that is wanted."""

    limit: int = Field(default=50, ge=1, le=200, description="Items per page.", examples=[50])
    cursor: str | None = Field(
        default=None, max_length=64, description="`next_cursor` of the previous page.", examples=[EXAMPLE["cursor"]]
    )
    format: Format = "json"


class ResultQuery(PageQuery):
    """Filters of results and studies."""

    kernel: str | None = Field(default=None, max_length=64, examples=[EXAMPLE["kernel"]])
    device_model: str | None = Field(default=None, max_length=128, examples=[EXAMPLE["device_model"]])


class ScheduleQuery(ListQuery):
    """The filter of schedules."""

    project: str | None = OF_PROJECT


class JobQuery(PageQuery):
    """Filters of jobs."""

    state: Literal["queued", "running", "done", "failed", "cancelled"] | None = Field(
        default=None, description="Only jobs in this state.", examples=[EXAMPLE["state"]]
    )
    search: str | None = Field(
        default=None,
        max_length=256,
        description="Only jobs that fit every word: an axis or option (`m=256`), sizes (`4096x4096x4096`), or part of "
        "a kernel, type, device model, host, state, error or id.",
        examples=["gemm m=256"],
    )
    project: str | None = OF_PROJECT


class ProblemQuery(Query):
    """A problem as text."""

    dtype: str = Field(default="float32", max_length=16, examples=[EXAMPLE["dtype"]])
    options: str | None = Field(
        default=None,
        max_length=512,
        description="Options that differ from their defaults.",
        examples=[EXAMPLE["options"]],
    )


class BestQuery(ProblemQuery):
    """A problem and where it runs."""

    shape: str = Field(max_length=512, description="Every axis of the kernel.", examples=[EXAMPLE["shape"]])
    device_model: str | None = Field(
        default=None,
        max_length=128,
        description="Slug; may be left out while only one device model has devices.",
        examples=[EXAMPLE["device_model"]],
    )
    driver: str | None = Field(default=None, max_length=64, description="Only results of this driver.")
    toolkit: str | None = Field(default=None, max_length=64, description="Only results of this toolkit.")


class TableQuery(BestQuery):
    """A family and where it runs."""

    shape: str = Field(
        max_length=512, description="Every axis, one of them a range of sizes.", examples=["m=1..8192,n=4096,k=4096"]
    )


class SourceQuery(ProblemQuery):
    """A variant, and the problem and configuration that its macros are for."""

    variant: str | None = Field(default=None, max_length=64, examples=[EXAMPLE["variant"]])
    shape: str | None = Field(
        default=None, max_length=512, description="Default: the kernel's example.", examples=[EXAMPLE["shape"]]
    )
    configuration: str | None = Field(
        default=None,
        max_length=1024,
        description="Parameters that differ from their defaults.",
        examples=[EXAMPLE["configuration"]],
    )
    source_hash: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="Hash of an older version of the source, as results have it.",
        examples=[EXAMPLE["source_hash"]],
    )
