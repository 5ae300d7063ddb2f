"""One current best configuration as plain values, with all an answer needs: from a query or from memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Text, cast
from sqlalchemy.orm import InstrumentedAttribute, aliased

from tilewright.kernels.problem import OptionValue
from tilewright.kernels.space import Configuration
from tilewright.service.operations.answers import EnvironmentAnswer
from tilewright.service.operations.staleness.standing import Source, StandingFacts
from tilewright.service.operations.studies.rows import split_configuration
from tilewright.service.store import models

KEPT_TEXTS = 1 << 16
"""How many parsed JSON texts are kept: configurations recur in thousands of rows, options in all of them."""


class StoredBest(NamedTuple):
    """A stored best with all that an answer needs; fields are named as in the tables."""

    id: int
    device_model: str
    shape: Mapping[str, int]
    dtype: str
    options: Mapping[str, OptionValue]
    configuration: Configuration
    source: Source
    seen: StandingFacts
    environment: EnvironmentAnswer
    environment_id: int
    study_id: int
    trial_number: int
    verified_at: datetime
    l2: str
    ties: int
    time_ms: float
    ci_low_ms: float
    ci_high_ms: float
    gflops: float | None
    gb_per_s: float | None
    roof_ratio: float | None
    default_ms: float | None
    slowest_ms: float | None
    bound_ratio: float | None
    library_name: str | None
    library_ms: float | None
    library_faster: bool | None
    library_bound_ratio: float | None
    pack_ms: float | None = None


def _as_text(column: InstrumentedAttribute[Any]) -> Any:
    return cast(column, Text)


MEASURED = aliased(models.KernelVariant)
"""The winner's source, apart from those that a standing asks about."""

_best, _environment = models.BestConfiguration, models.Environment
_OWN = tuple(getattr(_best, name) for name in StoredBest._fields[StoredBest._fields.index("verified_at") : -1])

COLUMNS: tuple[Any, ...] = (
    _best.id,
    models.DeviceModel.slug,
    _as_text(models.Problem.shape),
    models.Problem.dtype,
    _as_text(models.Problem.options),
    _as_text(models.Trial.configuration),
    MEASURED.name,
    MEASURED.source_hash,
    _environment.id,
    *(getattr(_environment, name) for name in EnvironmentAnswer.model_fields),
    models.Trial.study_id,
    models.Trial.number,
    *_OWN,
    models.Trial.pack_ms,
)
"""What `stored_best` reads, of a query that joins all these tables; those of `StandingFacts.of` come after them."""

_ENVIRONMENT = slice(9, 9 + len(EnvironmentAnswer.model_fields))
_REST = slice(_ENVIRONMENT.stop, _ENVIRONMENT.stop + 2 + len(_OWN) + 1)


def stored_best(row: Sequence[Any]) -> StoredBest:
    """The row of a query for COLUMNS and the columns of `staleness.with_standing`."""
    moved, tried, space = row[_REST.stop : _REST.stop + 3], row[_REST.stop + 3], row[_REST.stop + 4]
    return StoredBest(
        row[0],
        row[1],
        json.loads(row[2]),
        row[3],
        _options(row[4]),
        _configuration(row[5]),
        _source(row[6], row[7]),
        _seen(tuple(moved), tuple(sorted(tried or ())), _without_any(space)),
        _environment_answer(*row[_ENVIRONMENT]),
        row[8],
        *row[_REST],
    )


@lru_cache(maxsize=KEPT_TEXTS)
def _options(text: str) -> dict[str, OptionValue]:
    options: dict[str, OptionValue] = json.loads(text)
    return options


@lru_cache(maxsize=KEPT_TEXTS)
def _configuration(text: str) -> Configuration:
    return Configuration.of(*split_configuration(json.loads(text)))


@lru_cache(maxsize=1 << 10)
def _source(name: str, source_hash: str) -> Source:
    return Source(name, source_hash)


@lru_cache(maxsize=1 << 10)
def _environment_answer(*values: str | None) -> EnvironmentAnswer:
    return EnvironmentAnswer(**dict(zip(EnvironmentAnswer.model_fields, values, strict=True)))  # type: ignore[arg-type]


def _without_any(space_by_source: Mapping[str, int] | None) -> tuple[str, ...]:
    """The sources that have no configuration for the problem, all that a standing takes from the counts."""
    return tuple(sorted(key for key, count in (space_by_source or {}).items() if count == 0))


@lru_cache(maxsize=KEPT_TEXTS)
def _seen(moved: tuple[bool | None, ...], tried: tuple[str, ...], without_any: tuple[str, ...]) -> StandingFacts:
    return StandingFacts.of(moved, tried, dict.fromkeys(without_any, 0))
