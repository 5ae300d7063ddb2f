"""Turns a stored row, a prediction or a kernel's default configuration into the answer of `best`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilewright.kernels.kernel import Kernel, Variant
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.service.errors import InvalidRequestError, NoConfigurationError
from tilewright.service.operations.answers import BestAnswer, EnvironmentAnswer, LaunchAnswer, LibraryAnswer, Match
from tilewright.service.operations.best.results import measured_fields
from tilewright.service.operations.best.stored import StoredBest
from tilewright.service.operations.best.tables import Served
from tilewright.service.operations.catalog import compiler_flags
from tilewright.service.operations.staleness.standing import Standing, source_keys
from tilewright.tuner import roofline
from tilewright.tuner.predict.record import Prediction

MOST_POINTS = 8_000_000
"""Configurations that one request may enumerate, before constraints: 1.5 million of gemm take half a second."""


@dataclass(frozen=True)
class BestQuery:
    """A caller's question: a problem on a device model, with that model's limits."""

    kernel: Kernel
    problem: Problem
    slug: str
    limits: Limits
    running: Sequence[Variant] | None = None  # the kernel's variants that the limits admit, where already computed
    wrong: Collection[Configuration] = ()  # found so for this problem, though they are in its space

    @property
    def accuracy(self) -> str | None:
        """The arithmetic that the caller admits; None where the kernel has no such option."""
        chosen = self.problem.options.get("accuracy")
        return None if chosen is None else str(chosen)

    def is_member(self, configuration: Configuration) -> bool:
        """Whether the configuration is in the problem's space and not known to be wrong, without enumerating it."""
        if self.wrong and configuration in self.wrong:
            return False
        for variant in self.usable_variants:
            if variant.name == configuration.variant:
                break
        else:
            return False
        space, given = variant.space(), dict(configuration.items)
        # Lists, not generators: half of the time of an answer that is not exact goes by here.
        if len(space.parameters) != len(given) or False in [given.get(p.name) in p.values for p in space.parameters]:
            return False
        return space.admits(configuration.values, self.problem, self.limits)

    @cached_property
    def usable_variants(self) -> list[Variant]:
        """The variants that the model and the problem admit."""
        if self.running is None:
            return self.kernel.usable_variants(self.problem, self.limits)
        return [variant for variant in self.running if variant.admits(self.problem, self.limits)]

    def launch(self, configuration: Configuration) -> LaunchAnswer:
        """The geometry for the asked problem."""
        launch = self.kernel.variant(configuration.variant).launch(configuration.values, self.problem)
        return LaunchAnswer(grid=launch.grid, block=launch.block, shared_bytes=launch.shared_bytes)


def first_usable(asked: BestQuery, rows: Sequence[StoredBest], match: Match) -> BestAnswer | None:
    """The answer from the first of the rows whose configuration fits the requested problem; None where none does."""
    return next((answer_by(asked, row, match) for row in rows if asked.is_member(row.configuration)), None)


def answer_by(asked: BestQuery, best: StoredBest, match: Match) -> BestAnswer:
    """The answer from a row whose configuration fits the requested problem."""
    return BestAnswer(**stored_fields(asked, best, match, standing_of(asked, best)))


def standing_of(asked: BestQuery, best: StoredBest) -> Standing:
    """Whether the row is stale, and which variants of the requested problem its study has not tried."""
    return best.seen.standing(source_keys(asked.kernel), best.source, asked.usable_variants)


def stored_fields(asked: BestQuery, best: StoredBest, match: Match, standing: Standing) -> dict[str, Any]:
    """The fields of a BestAnswer, in its order, from a row whose configuration fits the requested problem."""
    kernel, configuration, problem = asked.kernel, best.configuration, asked.problem
    tuned = None
    if match is not Match.EXACT:
        tuned = kernel.problem(kernel.ordered(best.shape), best.dtype, best.options).as_json()
    launch = kernel.variant(configuration.variant).launch(configuration.values, problem)
    fields = measured_fields(best, standing) | {
        "match": match,
        "problem": problem.as_json(),
        "tuned_problem": tuned,
        "device_model": best.device_model,
        "variant": configuration.variant,
        "configuration": dict(configuration.items),
        "sizes": None,
        "launch": {"grid": launch.grid, "block": launch.block, "shared_bytes": launch.shared_bytes},
        "flags": compiler_flags(kernel, problem, configuration),
        "expected_loss": 0.0 if match is Match.EXACT else None,
        "environment": dict(best.environment),
        "origins": [] if best.environment.origin is None else [best.environment.origin],
        "shipped": None,
        "accuracy": asked.accuracy,
        "verified": kernel.verified,
        "source_hash": best.source.source_hash,
        "study_id": best.study_id,
        "trial_number": best.trial_number,
        "pending": False,
    }
    if match is not Match.EXACT and fields["library"]:
        fields["library"]["launched"] = False  # it was timed at another problem
    return {name: fields[name] for name in BestAnswer.model_fields}


def range_answer(asked: BestQuery, served: Served) -> BestAnswer:
    """The answer from a table; its time is the one expected for the requested problem."""
    rates = roofline.rates(asked.kernel, asked.problem, served.time_ms)
    library, name, launched = served.library_ms, served.library, served.is_library
    timed = None
    if library is not None and name:
        speedup = library / served.time_ms
        faster = speedup < 1 or launched
        timed = LibraryAnswer(
            name=name, time_ms=library, faster=faster, speedup=speedup, expected=True, launched=launched
        )
    environment = EnvironmentAnswer.model_validate(served.row.environment)
    return _unmeasured_answer(
        asked,
        served.configuration,
        match=Match.RANGE,
        sizes=served.sizes,
        time_ms=served.time_ms,
        gflops=rates["gflops"],
        gb_per_s=rates["gb_per_s"],
        expected_loss=served.loss,
        library=timed,
        environment=environment,
        origins=[] if environment.origin is None else [environment.origin],
        verified_at=served.row.made_at,
    )


def predicted_answer(asked: BestQuery, prediction: Prediction) -> BestAnswer:
    """The answer from a prediction; its time is the one expected for the requested problem."""
    rates = roofline.rates(asked.kernel, asked.problem, prediction.time_ms)
    return _unmeasured_answer(
        asked,
        prediction.configuration,
        match=Match.PREDICTED,
        tuned_problem=prediction.near.as_json(),
        time_ms=prediction.time_ms,
        gflops=rates["gflops"],
        gb_per_s=rates["gb_per_s"],
        expected_loss=prediction.expected_loss,
        library=_expected_library(prediction),
        origins=list(prediction.origins),
        shipped="; ".join(prediction.shipped) or None,
    )


def _expected_library(prediction: Prediction) -> LibraryAnswer | None:
    library = prediction.library
    if library is None:
        return None
    return LibraryAnswer(
        name=library.name,
        time_ms=library.time_ms,
        faster=prediction.is_library_faster,
        speedup=library.time_ms / prediction.time_ms,
        expected=True,
    )


def transferred_answer(asked: BestQuery, prediction: Prediction, there: str) -> BestAnswer:
    """The answer from what would be predicted on another device model, whose times say nothing here."""
    elsewhere = predicted_answer(asked, prediction)
    unknown = {"time_ms": None, "gflops": None, "gb_per_s": None, "expected_loss": None, "library": None}
    return elsewhere.model_copy(update={"match": Match.TRANSFERRED, "device_model": there} | unknown)


def default_answers(asked: Sequence[BestQuery], *, is_search_allowed: bool = True) -> dict[str, BestAnswer]:
    """The kernel's default configuration for each problem, by problem hash; none was measured here.

    Where no variant's default fits, another is searched for; if that is not allowed, the problem is left out.

    Raises NoConfigurationError where no variant runs, InvalidRequestError where the search would take too long.
    """
    points, answers = 0, {}
    for query in asked:
        configuration = declared_default(query)
        if configuration is None:
            if not is_search_allowed:
                continue
            if points > MOST_POINTS:
                reason = f"no default fits {query.problem} and many shapes before it; ask for fewer such shapes."
                raise InvalidRequestError("shapes", reason)
            points += sum(variant.space().product_size() for variant in query.usable_variants)
            configuration = _first_feasible(query)
        answers[query.problem.hash] = _unmeasured_answer(query, configuration, match=Match.DEFAULT)
    return answers


def _unmeasured_answer(asked: BestQuery, configuration: Configuration, **known: Any) -> BestAnswer:
    """The answer with a configuration that was not measured for the requested problem; `known` are its other fields."""
    nothing: dict[str, Any] = dict.fromkeys(("tuned_problem", "time_ms", "expected_loss", "library"))
    fields = {
        "problem": asked.problem.as_json(),
        "device_model": asked.slug,
        "variant": configuration.variant,
        "configuration": dict(configuration.items),
        "launch": asked.launch(configuration),
        "flags": compiler_flags(asked.kernel, asked.problem, configuration),
        "environment": None,
        "verified_at": None,
        "accuracy": asked.accuracy,
        "verified": asked.kernel.verified,
        "improvable": True,
        "source_hash": asked.kernel.source_hash(configuration.variant),
    }
    return BestAnswer(**nothing | fields | known)


def declared_default(asked: BestQuery) -> Configuration | None:
    """The default of the default variant, else of the next one that the problem has; None where none fits."""
    usable = {variant.name for variant in asked.usable_variants}
    defaults = (v.space().default() for v in asked.kernel.variants_from_default if v.name in usable)
    return next((configuration for configuration in defaults if asked.is_member(configuration)), None)


def _first_feasible(asked: BestQuery) -> Configuration:
    """Any feasible configuration, found by enumerating the space: this takes longer than all the rest of an answer."""
    kernel = asked.kernel
    starts = kernel.space(asked.problem, asked.limits).defaults() if asked.usable_variants else []
    starts = [start for start in starts if start not in asked.wrong]
    if not starts:
        raise NoConfigurationError(f"No variant of {kernel.name} runs {asked.problem} on {asked.slug}.")
    return starts[0]
