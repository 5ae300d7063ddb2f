"""The document `tilewright/1`: what an export writes and an import takes, field by field (docs/exchange.md)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, model_validator

from tilewright.kernels.problem import Limits
from tilewright.service.operations.requests import Request, Size
from tilewright.tuner.devices.device import DeviceModel
from tilewright.tuner.outcome import Outcome

FORMAT = "tilewright/1"
MAX_STUDIES = 20_000
MAX_TRIALS = 100_000
"""Studies of one document, and trials of one of its studies."""

Text = Annotated[str, Field(max_length=256, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9:._+-]{0,127}$")]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Milliseconds = Annotated[float, Field(gt=0, lt=1e9)]
Amount = Annotated[float, Field(ge=0, lt=1e15)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Bytes = Annotated[int, Field(ge=0, lt=2**53)]
Values = Annotated[dict[Name, Annotated[int, Field(ge=-(2**31), lt=2**31)]], Field(max_length=64)]


class ProblemPart(Request):
    """Kernel, shape, dtype and every option."""

    kernel: Name
    shape: Annotated[dict[Name, Count], Field(min_length=1, max_length=16)]
    dtype: Name
    options: Annotated[dict[Name, bool | Text], Field(max_length=16)]


class LimitsPart(Request):
    """The limits of a device model, as kernels.problem.Limits has them."""

    compute_capability: tuple[Count, Count]
    multiprocessors: Annotated[int, Field(ge=1, le=1 << 20)]
    memory_bytes: Annotated[int, Field(ge=1, lt=2**53)]
    max_threads_per_block: Count
    max_shared_bytes: Count
    shared_bytes_per_multiprocessor: Count
    registers_per_multiprocessor: Count
    max_threads_per_multiprocessor: Count
    max_blocks_per_multiprocessor: Count
    max_registers_per_thread: Count
    warp_size: Annotated[int, Field(ge=1, le=1024)]
    max_grid: tuple[Count, Count, Count]
    features: Annotated[list[Name], Field(max_length=32)]


class DeviceModelPart(Request):
    """A device model; it is added where this installation does not know it, and changes nothing where it does."""

    slug: Slug
    name: Text
    kind: Literal["cuda", "cpu"]
    limits: LimitsPart
    l2_bytes: Bytes
    datasheet_gflops: Annotated[dict[Name, Amount], Field(max_length=32)]
    datasheet_gb_per_s: Amount | None
    measured_gb_per_s: Amount | None

    def device_model(self) -> DeviceModel:
        """The part as the tuner's DeviceModel."""
        limits = self.limits.model_dump()
        return DeviceModel(
            **self.model_dump(exclude={"limits"}), limits=Limits(**limits | {"features": frozenset(limits["features"])})
        )


class EnvironmentPart(Request):
    """The environment of a study: driver, toolkit, compiler."""

    driver: Text
    toolkit: Text
    compiler: Text
    compiler_version: Text
    runtime: Text
    clocks: Text


class TrialPart(Request):
    """One configuration and what became of it; a time only when measured."""

    variant: Name
    configuration: Values
    source_hash: Hash
    outcome: Outcome
    l2: Literal["cold", "warm"]
    warm_ms: Milliseconds | None = None
    warm_spread_ms: Amount | None = None
    cold_ms: Milliseconds | None = None
    cold_spread_ms: Amount | None = None
    registers: Count | None = None
    shared_bytes: Count | None = None
    spill_bytes: Count | None = None
    occupancy: Annotated[float, Field(ge=0, le=1)] | None = None
    pack_ms: Amount | None = None
    bound_ratio: Amount | None = None
    compile_ms: Amount | None = None

    @property
    def time_ms(self) -> float | None:
        """The time that ranks it."""
        return self.cold_ms if self.l2 == "cold" else self.warm_ms

    @model_validator(mode="after")
    def _time_only_when_measured(self) -> TrialPart:
        if (self.outcome is Outcome.MEASURED) != (self.time_ms is not None):
            raise ValueError(f"a trial that is {self.outcome.value} has {'no' if self.time_ms is None else 'a'} time")
        return self


class LibraryPart(Request):
    """The library's time beside the best."""

    name: Text
    time_ms: Milliseconds
    faster: bool
    bound_ratio: Amount | None


class BestPart(Request):
    """The winner of the finals; `trial` is its place among the study's trials."""

    trial: Count
    time_ms: Milliseconds
    ci_ms: tuple[Milliseconds, Milliseconds]
    default_ms: Milliseconds | None
    slowest_ms: Milliseconds | None
    library: LibraryPart | None
    ties: Count
    bound_ratio: Amount | None
    verified_at: AwareDatetime

    @model_validator(mode="after")
    def _interval_holds_the_time(self) -> BestPart:
        if not self.ci_ms[0] <= self.time_ms <= self.ci_ms[1]:
            raise ValueError("time_ms lies outside ci_ms")
        return self


class StudyPart(Request):
    """A problem on a device model in an environment: its trials, and the best of them."""

    problem: ProblemPart
    device_model: Slug
    environment: EnvironmentPart
    space_size: Count
    trials: Annotated[list[TrialPart], Field(min_length=1, max_length=MAX_TRIALS)]
    best: BestPart | None

    @model_validator(mode="after")
    def _best_is_a_measured_trial(self) -> StudyPart:
        place = None if self.best is None else self.best.trial
        if place is not None and (place >= len(self.trials) or self.trials[place].time_ms is None):
            raise ValueError(f"best.trial names trial {place}, which is not there or was not measured")
        return self


class RangeLibraryPart(Request):
    """The library in one range of a table; `launched`: launchers make its call there."""

    name: Annotated[str, Field(max_length=256)] | None = None
    faster: bool
    launched: bool = False


class SizeRangePart(Request):
    """Sizes from `low` to `high` of a table, and the configuration that serves them."""

    low: Count
    high: Count
    variant: Name
    configuration: Values
    source_hash: Hash
    times_ms: Annotated[dict[Annotated[str, Field(pattern=r"^[1-9][0-9]{0,9}$")], Milliseconds], Field(max_length=64)]
    library: RangeLibraryPart | None
    verified_at: Annotated[list[Count], Field(max_length=64)]


class MeasuredSizePart(Request):
    """Measurements at one size of a table."""

    size: Count
    time_ms: Milliseconds
    best_ms: Milliseconds
    best: Annotated[str, Field(max_length=4096)]
    library_ms: Milliseconds | None
    own_choice_ms: Milliseconds | None = None


class TablePart(Request):
    """A family's table on a device model in an environment (`tuner/families/table.py`)."""

    kernel: Name
    shape: Annotated[dict[Name, Size], Field(min_length=1, max_length=16)]
    dtype: Name
    options: Annotated[dict[Name, bool | Text], Field(max_length=16)]
    at_launch: Name
    format: Literal["tilewright-table/1"]
    family_hash: Hash
    device_model: Slug
    environment: EnvironmentPart
    ranges: Annotated[list[SizeRangePart], Field(min_length=1, max_length=64)]
    loss: dict[Literal["mean", "largest"], Amount]
    library: Text | None
    measured: Annotated[list[MeasuredSizePart], Field(min_length=1, max_length=256)]
    trials: Count
    compilations: Count
    seconds: Amount
    made_at: AwareDatetime


class Document(Request):
    """The document that an export writes."""

    format: Literal["tilewright/1"]
    made_by: Text
    created_at: datetime
    device_models: Annotated[list[DeviceModelPart], Field(max_length=1000)]
    studies: Annotated[list[StudyPart], Field(max_length=MAX_STUDIES)]
    tables: Annotated[list[TablePart], Field(default_factory=list, max_length=MAX_STUDIES)]
    next_cursor: Text | None = None


class OwnPart(Request):
    """Fields that our own T4 and Kernel Tuner files add to those formats."""

    problem: ProblemPart
    device_model: Slug
    sources: Annotated[dict[Name, Hash], Field(max_length=64)]
    samples_pruned: int = Field(default=0, ge=0)  # trials whose only time is their median
