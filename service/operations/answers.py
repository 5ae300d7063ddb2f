"""Answers of operations: plain, immutable copies of rows, with units in the names."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Self, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from tilewright.kernels.family import is_open

T = TypeVar("T")

PACK_MS = "Time of packing an operand once, which `time_ms` leaves out; null where nothing is packed ahead."


class Answer(BaseModel):
    """Immutable; unknown fields are refused. Every field is sent, so the API's document calls each of them required."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", from_attributes=True, json_schema_serialization_defaults_required=True
    )

    @classmethod
    def of_row(cls, row: object, **others: Any) -> Self:
        """The answer that has the row's columns by the names of its fields; `others` are fields that differ."""
        return cls(**{name: getattr(row, name) for name in cls.model_fields if name not in others}, **others)


class Match(StrEnum):
    """How a best configuration was found.

    `exact`: tuned for this problem. `range`: from a table for every size of an axis. `predicted`: from the trials of
    other shapes; `expected_loss` says how much slower than the best it should be. `nearest`: the best of the nearest
    tuned shape. `transferred`: the same from a similar device model, or what shipped records of one predict.
    `estimated`: every tuned shape is far away; of their bests and the default, this one is estimated to be the fastest.
    `default`: the kernel's default configuration, because nothing is known that should be faster.
    """

    EXACT = "exact"
    RANGE = "range"
    PREDICTED = "predicted"
    NEAREST = "nearest"
    TRANSFERRED = "transferred"
    ESTIMATED = "estimated"
    DEFAULT = "default"


class TunedFor(Answer):
    """A problem, or a family of problems: one size of its shape is then a range such as `1..8192`."""

    kernel: str
    shape: Mapping[str, int | str]
    dtype: str
    options: dict[str, bool | str]

    @property
    def is_family(self) -> bool:
        """Whether a size is a range."""
        return is_open(self.shape)

    @property
    def single(self) -> ProblemAnswer:
        """The problem, for an answer of one size; raises ValueError for a family."""
        return ProblemAnswer(**self.model_dump())


class ProblemAnswer(TunedFor):
    """Kernel, shape, dtype and every option with its value."""

    shape: dict[str, int]


class LaunchAnswer(Answer):
    """Grid and block as (x, y, z), dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int


class EnvironmentAnswer(Answer):
    """The environment of a measurement: driver, toolkit, compiler."""

    driver: str
    toolkit: str
    compiler: str
    compiler_version: str
    runtime: str
    clocks: str
    origin: str | None = Field(
        default=None, description="The installation that the results were imported from; null: measured here."
    )


class LibraryAnswer(Answer):
    """The library's time in the same interleaved rounds; `faster`: use the library instead."""

    name: str
    time_ms: float
    faster: bool
    speedup: float = Field(description="Library time over ours; above 1 ours is faster.")
    bound_ratio: float | None = Field(default=None, description="The library's worst error over the error bound.")
    expected: bool = Field(
        default=False,
        description="Expected from other shapes, not timed; `faster` then holds where a search would hardly gain on it "
        "either.",
    )
    launched: bool = Field(
        default=False,
        description="This call is the answer: launchers make it in place of the variant, which runs where another "
        "version of the library is installed.",
    )


class BestAnswer(Answer):
    """The best known configuration for a problem on a device model, and how it was found."""

    match: Match
    problem: ProblemAnswer = Field(description="The problem that was asked for.")
    tuned_problem: ProblemAnswer | None = Field(description="The tuned problem behind the answer, if another.")
    device_model: str
    variant: str
    configuration: dict[str, int]
    sizes: str | None = Field(
        None, description="For `range`: the sizes that the configuration serves, such as `m=129..512`."
    )
    launch: LaunchAnswer
    flags: list[str] = Field(description="Macro definitions for the compiler, for the problem asked.")
    time_ms: float | None = Field(
        description="Time of one launch of the tuned problem; for `range` and `predicted`, the time expected for the "
        "problem asked for; null for `default`, and where shipped records of another device model are all there is."
    )
    ci_ms: tuple[float, float] | None = None
    pack_ms: float | None = Field(default=None, description=PACK_MS)
    l2: str | None = None
    gflops: float | None = None
    gb_per_s: float | None = None
    roof_ratio: float | None = Field(None, description="Share of the roof reached, 0 to 1.")
    gain_over_default: float | None = Field(None, description="Time of the default configuration over this one.")
    gain_over_slowest: float | None = None
    expected_loss: float | None = Field(
        description="Expected time over the best time, minus 1: 0 for exact, that of the measured sizes beside it for "
        "range, by cross-validation over the tuned shapes for predicted, null where unknown."
    )
    library: LibraryAnswer | None
    environment: EnvironmentAnswer | None
    origins: list[str] = Field(
        default=[], description="Other installations that measured it, or part of what it was predicted from."
    )
    shipped: str | None = Field(
        default=None,
        description="The records that came with Tilewright, of our own measurements, that a predicted or transferred "
        "answer rests on: their device model, driver and date, and what has changed since; null: none.",
    )
    verified_at: datetime | None
    accuracy: str | None = Field(
        default=None, description="The arithmetic that was allowed; null where the kernel has no choice."
    )
    verified: str | None = Field(
        default=None, description="How results are verified where that is not against a reference in float64."
    )
    bound_ratio: float | None = Field(
        default=None,
        description="Worst error over all kinds of inputs, divided by the error bound with c = 1; at most 2 is right.",
    )
    ties: int = 0
    stale: bool = False
    stale_because: list[str] = Field(
        default=[], description="What has changed since it was measured: source, driver, toolkit, compiler."
    )
    improvable: bool = False
    unseen_variants: list[str] = Field(
        default=[], description="Variants whose present source its study has not tried; they make it improvable."
    )
    source_hash: str
    study_id: int | None = None
    trial_number: int | None = None
    pending: bool = Field(
        default=False, description="A prediction for this shape is being computed; asked again, it is the answer."
    )


_WHY_STOPPED = {
    "seconds": "its time budget was used up",
    "target": "the target time was reached",
    "exhausted": "every configuration has been tried",
    "cancelled": "it was cancelled",
}
"""Shown beside the number of trials; a job that made all its trials needs no reason."""


class JobAnswer(Answer):
    """A tuning job and its progress."""

    id: UUID
    state: str
    phase: str
    problem: TunedFor
    device_model: str | None
    device: str | None = Field(description="UUID, where only that device may run it.")
    device_place: str | None = Field(None, description="Number and host of that device, like `0 of gpu-host`.")
    compiler: str | None
    sampler: str
    variants: list[str] | None
    starts: list[dict[str, Any]] | None = Field(
        None, description="Configurations that the caller asked to try first: variant and parameters."
    )
    verifies: bool = Field(
        default=False, description="It only verifies the configuration in `starts`, which a client says is wrong."
    )
    budget: dict[str, float | int | None]
    priority: int
    trials_done: int
    elapsed_s: float
    best_ms: float | None = Field(
        None, description="Time of the winner that its finals settled; before, that of the fastest trial of its study."
    )
    gain_over_default: float | None = Field(None, description="Time of the default over that of the settled winner.")
    study_id: int | None
    worker: str | None
    epoch: int
    cancel_requested: bool
    error: str | None
    result: dict[str, Any] | None
    stopped_by: str | None = Field(
        default=None,
        description="Why a finished job made no more trials: trials, seconds, target (each of its budget), exhausted "
        "(every configuration has been tried), cancelled or import; null before.",
    )
    schedule_id: int | None = Field(None, description="The schedule that made it.")
    fire_at: datetime | None = Field(None, description="The due time that it was made for.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def why_stopped(self) -> str | None:
        """`stopped_by` in words; None for a job that made all its trials or has not ended."""
        if self.stopped_by == "seconds" and not self.trials_done:
            return "its time budget was used up before the first trial"
        return _WHY_STOPPED.get(self.stopped_by or "")


class ScheduleAnswer(Answer):
    """A schedule, its next due times and the outcome of its last fire."""

    id: int
    name: str
    cron: str
    time_zone: str
    target: str = Field(
        "problems",
        description="problems: those listed; stale, improvable, demand: those that are so at each due time.",
    )
    problems: list[TunedFor]
    top: int | None = Field(None, description="Most problems of one fire; null for the target `problems`.")
    kernel: str | None = Field(None, description="Only problems of this kernel are tuned; null: of every kernel.")
    device_model: str
    device: str | None = Field(description="UUID, where only that device may run it.")
    budget: dict[str, float | int | None]
    variants: list[str] | None
    compiler: str | None
    priority: int
    overlap: str
    enabled: bool
    next_at: datetime | None = Field(description="The next due time; null while paused.")
    next_fires: list[datetime] = Field(description="The next five due times, UTC; none while paused.")
    last_fire_at: datetime | None = Field(description="The newest due time that was handled; null before the first.")
    last_outcome: str | None = Field(description="fired or skipped.")
    last_reason: str | None = Field(description="Why the last fire was skipped, or which missed ones it stands for.")
    last_jobs: list[UUID] = Field(description="Jobs of the newest fire that created any.")
    open_jobs: int = Field(description="Its jobs that are queued or running.")
    created_at: datetime


class FireAnswer(Answer):
    """One due time of a schedule and its outcome."""

    id: int
    fire_at: datetime
    outcome: str = Field(description="fired or skipped.")
    manual: bool = Field(description="Fired by hand (run now).")
    jobs: int = Field(description="Number of jobs that it created.")
    reason: str | None
    created_at: datetime


class TrialAnswer(Answer):
    """One trial as recorded."""

    study_id: int
    number: int
    job_id: UUID
    variant: str
    configuration: dict[str, int]
    outcome: str
    time_ms: float | None
    warm_ms: float | None
    cold_ms: float | None
    spread_ms: float | None
    gflops: float | None
    gb_per_s: float | None
    registers: int | None
    shared_bytes: int | None
    spill_bytes: int | None
    occupancy: float | None
    bound_ratio: float | None
    compile_ms: float | None
    clock_mhz: int | None
    temperature_c: int | None
    log: str
    created_at: datetime
    pack_ms: float | None = Field(default=None, description=PACK_MS)
    samples_pruned_at: datetime | None = Field(
        default=None, description="When its samples were deleted to save space; null: they are kept."
    )


class StudyAnswer(Answer):
    """A study with its trials counted by outcome, its settled winner and its fastest trial."""

    id: int
    problem: ProblemAnswer
    device_model: str
    environment: EnvironmentAnswer
    space_size: int
    trials: int
    outcomes: dict[str, int]
    best_ms: float | None = Field(
        description="Time of the winner that the finals settled; where `best_trial` is null, `fastest_ms`."
    )
    best_trial: int | None = Field(None, description="Number of the trial that won the finals; null before the finals.")
    fastest_ms: float | None = Field(
        None,
        description="Fastest time of a single trial of the search: lower than it really is, as the luckiest of many.",
    )
    created_at: datetime


class DeviceModelAnswer(Answer):
    """A product and its limits; `details` holds peaks and limits by name."""

    slug: str
    name: str
    kind: str
    compute_capability: str
    multiprocessors: int
    memory_bytes: int
    details: dict[str, Any]


class DeviceAnswer(Answer):
    """One device. `alive`: its worker has reported within the stall time."""

    uuid: str
    model: str
    host: str
    ordinal: int
    state: str
    alive: bool
    heartbeat_at: datetime
    environment: EnvironmentAnswer | None
    physical_uuid: str | None = Field(None, description="The GPU that it is a slice of; null where it is whole.")
    worker: str | None = Field(None, description="Host, process id and device of its last worker.")
    worker_started_at: datetime | None = None
    draining: bool = Field(default=False, description="It takes no more jobs until it is resumed.")
    job: UUID | None = Field(None, description="The job that it is running.")


class KernelAnswer(Answer):
    """A kernel's declaration."""

    name: str
    declaration: dict[str, Any]


class SourceAnswer(Answer):
    """The exact source of a variant, and the macros that it is compiled with for one problem."""

    kernel: str
    variant: str
    source_hash: str
    entry: str
    source: str
    definitions: dict[str, str]
    flags: list[str]


class Page(Answer, Generic[T]):
    """One page; `next_cursor` is null on the last."""

    items: list[T]
    next_cursor: str | None = None
