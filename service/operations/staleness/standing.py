"""Decides whether a best is stale or improvable: against its model's current environment and today's sources.

The current environment is the newest that any device of the model reports. Its driver counts; toolkit and compiler
are those of the newest environment with the same compiler, since a job may choose between compilers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    and_,
    any_,
    case,
    cast,
    false,
    func,
    literal,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel, Variant
from tilewright.kernels.problem import Limits
from tilewright.service.operations.registry import catalogue, limits_of
from tilewright.service.store import models

Row = TypeVar("Row")


class Source(NamedTuple):
    """One state of a variant's source."""

    name: str
    source_hash: str


class StaleReason(StrEnum):
    """The change since a best was measured that made it stale."""

    SOURCE = "source"
    DRIVER = "driver"
    TOOLKIT = "toolkit"
    COMPILER = "compiler"


@dataclass(frozen=True)
class Standing:
    """Why a best is stale (empty: it is not), and the variants whose current source its study has not tried."""

    stale_because: tuple[StaleReason, ...] = ()
    unseen_variants: tuple[str, ...] = ()

    @property
    def stale(self) -> bool:
        """Whether anything changed since it was measured."""
        return bool(self.stale_because)

    @property
    def improvable(self) -> bool:
        """Whether some variant is still to be tried."""
        return bool(self.unseen_variants)


@dataclass(frozen=True)
class StandingFacts:
    """The database's facts about a best: what changed in its environment, and which sources its study has tried."""

    moved: tuple[StaleReason, ...]
    tried: frozenset[str]  # of `source_key`
    space_by_source: Mapping[str, int] = field(hash=False)

    @classmethod
    def of(
        cls, moved: Sequence[bool | None], tried: Iterable[str] | None, space_by_source: Mapping[str, int] | None
    ) -> StandingFacts:
        """The facts in the columns of `with_standing`."""
        reasons = tuple(reason for reason, holds in zip(_MOVED, moved, strict=True) if holds)
        return cls(reasons, frozenset(tried or ()), space_by_source or {})

    def standing(
        self, keys: Mapping[str, str], winner: models.KernelVariant | Source, usable: Iterable[Variant]
    ) -> Standing:
        """The standing today, by the kernel's `source_keys`.

        `winner` is the measured source, `usable` the variants that the problem admits.
        """
        changed = keys.get(winner.name) != source_key(winner.name, winner.source_hash)
        unseen = (v.name for v in usable if keys[v.name] not in self.tried and self._may_hold(keys[v.name]))
        return Standing(((StaleReason.SOURCE,) if changed else ()) + self.moved, tuple(unseen))

    def _may_hold(self, key: str) -> bool:
        """Whether the variant may have configurations for the problem, by the last job's counts."""
        return self.space_by_source.get(key) != 0


def source_key(variant: str, source_hash: str) -> str:
    """A variant's name with its source hash, in the database's form: two variants may share a source."""
    return f"{variant}:{source_hash}"


def source_keys(kernel: Kernel) -> dict[str, str]:
    """The key of every variant in its present state in this process, by name."""
    return {name: source_key(name, source_hash) for name, source_hash in kernel.source_hashes.items()}


_there = models.Environment
_newest, _peer = aliased(models.Environment), aliased(models.Environment)
_winner = aliased(models.Trial)


def _differs(
    now: ColumnElement[str] | InstrumentedAttribute[str], then: InstrumentedAttribute[str]
) -> ColumnElement[bool]:
    """Whether two columns differ; false, not NULL, where no device tells its present state."""
    return func.coalesce(now != then, false())


_MOVED: Mapping[StaleReason, ColumnElement[bool]] = {
    StaleReason.DRIVER: _differs(_newest.driver, _there.driver),
    # What was imported may come from a compiler that no device here has: then any is its peer.
    StaleReason.TOOLKIT: or_(
        _differs(_peer.toolkit, _there.toolkit),
        and_(_there.origin.is_not(None), _peer.id.is_(None), _differs(_newest.toolkit, _there.toolkit)),
    ),
    StaleReason.COMPILER: or_(
        _differs(_peer.compiler_version, _there.compiler_version),
        # The CPU device's driver is its shim, which is compiled into every kernel.
        and_(_there.driver == "host", _differs(_peer.runtime, _there.runtime)),
    ),
}


def is_current() -> ColumnElement[bool]:
    """The condition that a best configuration is neither superseded nor retracted."""
    best = models.BestConfiguration
    return and_(best.superseded_by_id.is_(None), best.retracted_at.is_(None))


def with_standing(query: Any) -> Any:
    """The query over best configurations with environment and problem joined, and the columns of `StandingFacts.of`."""
    tried_of, variant = aliased(models.Trial), models.KernelVariant
    # Said explicitly: by itself SQLAlchemy looks one level up only, and would look at the trials of any study.
    has_tried = (
        select(tried_of.id)
        .where(tried_of.study_id == _winner.study_id, tried_of.kernel_variant_id == variant.id)
        .correlate(_winner, variant)
    )
    tried = (
        select(func.array_agg(variant.name + ":" + variant.source_hash))
        .where(variant.kernel_id == models.Problem.kernel_id, has_tried.exists())
        .scalar_subquery()
    )
    query = _with_environment_now(query).join(models.Study, models.Study.id == _winner.study_id)
    return query.add_columns(*_MOVED.values(), tried, models.Study.space_by_source)


def _with_environment_now(query: Select[Row]) -> Select[Row]:
    """Joins the winner's trial, and environments that the model's devices report: newest, and of its compiler."""
    best = models.BestConfiguration
    return _with_reported(query.join(_winner, _winner.id == best.trial_id), best.device_model_id)


def _with_reported(query: Select[Row], model_id: Any) -> Select[Row]:
    device, reported = models.Device, aliased(models.Environment)
    newest = select(func.max(device.environment_id).label("id")).where(device.model_id == model_id)
    peer = newest.join(reported, reported.id == device.environment_id).where(reported.compiler == _there.compiler)
    # Lateral, so that the database keeps what it has found for a model and a compiler: rows by the thousand share both.
    now, like = newest.lateral("newest_reported"), peer.lateral("peer_reported")
    query = query.outerjoin(now, true()).outerjoin(_newest, _newest.id == now.c.id)
    return query.outerjoin(like, true()).outerjoin(_peer, _peer.id == like.c.id)


def _pair(model_id: Any, environment_id: Any) -> ColumnElement[int]:
    """A device model and an environment as one number."""
    number: ColumnElement[int] = cast(model_id, BigInteger) * 2**32 + environment_id
    return number


def _environments_that_moved(session: Session) -> list[int]:
    """Pairs of a device model and an environment with a current best, whose devices now report another one.

    Read on their own, a few: the database has no idea how many there are, and would go through all results for each.
    """
    best = models.BestConfiguration
    pairs = select(best.device_model_id, best.environment_id).where(is_current()).distinct().subquery()
    query = select(_pair(pairs.c.device_model_id, pairs.c.environment_id)).select_from(pairs)
    query = query.join(_there, _there.id == pairs.c.environment_id)
    return list(session.scalars(_with_reported(query, pairs.c.device_model_id).where(or_(*_MOVED.values()))))


def only_stale(session: Session, query: Select[Row], *, wanted: bool = True) -> Select[Row]:
    """The query narrowed to stale best configurations, or to fresh ones; it must not join environments yet."""
    joined, is_stale = with_staleness(session, query)
    return joined.where(is_stale if wanted else ~is_stale)


def with_staleness(session: Session, query: Select[Row]) -> tuple[Select[Row], ColumnElement[bool]]:
    """The query joined with everything that staleness depends on, and the condition for stale bests."""
    known, moved = current_sources(session), _environments_that_moved(session)
    best, variant, kernel = models.BestConfiguration, aliased(models.KernelVariant), aliased(models.Kernel)
    changed = and_(kernel.name.in_(list(catalogue().by_name)), variant.id.not_in(known))
    joined = (
        query.join(_there, _there.id == best.environment_id)
        .join(_winner, _winner.id == best.trial_id)
        .join(variant, variant.id == _winner.kernel_variant_id)
        .join(kernel, kernel.id == variant.kernel_id)
    )
    return joined, or_(
        changed, _pair(best.device_model_id, best.environment_id) == any_(literal(moved, ARRAY(BigInteger)))
    )


def in_preference_of_best(is_stale: ColumnElement[bool]) -> list[Any]:
    """The order of a problem's rows on a device model, the one that `best` prefers first (`best.rows.in_preference`).

    For a query of `with_staleness`: measured here before imported, fresh before stale; of fresh ones the fastest, of
    stale ones the last measured.
    """
    best = models.BestConfiguration
    return [
        _there.origin.is_not(None),
        is_stale,
        case((is_stale, -func.extract("epoch", best.verified_at)), else_=0),
        case((is_stale, -best.environment_id), else_=0),
        best.time_ms,
    ]


def perhaps_improvable(session: Session, query: Any) -> Any:
    """The query narrowed to bests whose study has not tried all variants; `standings` leaves out impossible ones."""
    best, trial, tried = models.BestConfiguration, aliased(models.Trial), aliased(models.Trial)
    problem, study, variant = aliased(models.Problem), aliased(models.Study), models.KernelVariant
    seen = select(tried.id).where(tried.study_id == study.id, tried.kernel_variant_id == variant.id)
    seen = seen.correlate(study, variant)
    configurations = func.jsonb_extract_path_text(study.space_by_source, variant.name + ":" + variant.source_hash)
    holds = func.coalesce(configurations, "unknown") != "0"
    unseen = select(variant.id).where(
        variant.kernel_id == problem.kernel_id, variant.id.in_(current_sources(session)), ~seen.exists(), holds
    )
    unseen = unseen.correlate(problem, study)
    return (
        query.join(trial, trial.id == best.trial_id)
        .join(study, study.id == trial.study_id)
        .join(problem, problem.id == best.problem_id)
        .where(unseen.exists())
    )


def current_sources(session: Session) -> list[int]:
    """Row ids of all variants in their present state in this process."""
    keys = {(kernel.name, key) for kernel in catalogue().kernels() for key in source_keys(kernel).values()}
    variant = models.KernelVariant
    rows = session.execute(
        select(variant.id, variant.name, variant.source_hash, models.Kernel.name.label("kernel")).join(
            models.Kernel, models.Kernel.id == variant.kernel_id
        )
    )
    return [row.id for row in rows if (row.kernel, source_key(row.name, row.source_hash)) in keys]


def standings(session: Session, ids: Sequence[int]) -> dict[int, Standing]:
    """The standings of these best configurations, by id; by environment alone for kernels unknown here."""
    best, variant = models.BestConfiguration, aliased(models.KernelVariant)
    query: Any = (
        select(best.id, models.Problem, models.DeviceModel, models.Kernel.name, variant)
        .join(best.environment)
        .join(best.problem)
        .join(models.Problem.kernel)
        .join(best.device_model)
        .where(best.id.in_(ids))
    )
    query = with_standing(query).join(variant, variant.id == _winner.kernel_variant_id)
    known = catalogue().by_name
    limits: dict[int, Limits] = {}
    by_id: dict[int, Standing] = {}
    for best_id, problem, model, kernel_name, winner, *moved, tried, space in session.execute(query):
        seen = StandingFacts.of(moved, tried, space)
        kernel = known.get(kernel_name)
        if kernel is None:
            by_id[best_id] = Standing(seen.moved)
            continue
        its_limits = limits.setdefault(model.id, limits_of(model))
        try:
            asked = kernel.problem(problem.shape, problem.dtype, problem.options)
        except InvalidProblemError:  # the kernel has other axes or options now: nobody can ask for this any more
            by_id[best_id] = seen.standing(source_keys(kernel), winner, ())
        else:
            by_id[best_id] = seen.standing(source_keys(kernel), winner, kernel.usable_variants(asked, its_limits))
    return by_id
