"""From a stored row, or from nothing but the declaration, to the answer about the asked problem."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernels.kernel import Kernel, Variant
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.service.errors import NoConfigurationError
from tilewright.service.operations.answers import BestAnswer, LaunchAnswer, Match, ProblemAnswer
from tilewright.service.operations.best_rows import BestRow
from tilewright.service.operations.catalog import compiler_flags
from tilewright.service.operations.registry import environment_answer
from tilewright.service.operations.results import gain, library_answer, split_configuration


@dataclass(frozen=True)
class Asked:
    """The question: a problem on a device model with these limits."""

    kernel: Kernel
    problem: Problem
    slug: str
    limits: Limits

    def is_member(self, configuration: Configuration) -> bool:
        """Whether the configuration is in the problem's space, checked without enumerating it."""
        variant = next((v for v in self.usable_variants() if v.name == configuration.variant), None)
        if variant is None or {p.name for p in variant.parameters} != set(configuration.values):
            return False
        if any(configuration.values[p.name] not in p.values for p in variant.parameters):
            return False
        return variant.space().violated(configuration.values, self.problem, self.limits) is None

    def usable_variants(self) -> list[Variant]:
        """The variants that the model and the problem admit."""
        return self.kernel.usable_variants(self.problem, self.limits)

    def launch(self, configuration: Configuration) -> LaunchAnswer:
        """The geometry for the asked problem."""
        launch = self.kernel.variant(configuration.variant).launch(configuration.values, self.problem)
        return LaunchAnswer(grid=launch.grid, block=launch.block, shared_bytes=launch.shared_bytes)

    def problem_answer(self) -> ProblemAnswer:
        """The problem as asked, options filled in."""
        return _problem_answer(self.problem)


def _problem_answer(problem: Problem) -> ProblemAnswer:
    return ProblemAnswer(
        kernel=problem.kernel, shape=dict(problem.shape), dtype=problem.dtype, options=dict(problem.options)
    )


def stored_answer(asked: Asked, row: BestRow, match: Match) -> BestAnswer | None:
    """The answer that this row gives, or None where its configuration does not fit the asked problem."""
    best, kernel = row.best, asked.kernel
    variant, values = split_configuration(best.trial.configuration)
    configuration = Configuration.of(variant, values)
    if not asked.is_member(configuration):
        return None
    tuned = None
    if match is not Match.EXACT:
        shape = {axis: best.problem.shape[axis] for axis in kernel.axes}
        tuned = _problem_answer(kernel.problem(shape, best.problem.dtype, best.problem.options))
    return BestAnswer(
        match=match,
        problem=asked.problem_answer(),
        tuned_problem=tuned,
        device_model=best.device_model.slug,
        variant=variant,
        configuration=values,
        launch=asked.launch(configuration),
        flags=compiler_flags(kernel, asked.problem, configuration),
        time_ms=best.time_ms,
        ci_ms=(best.ci_low_ms, best.ci_high_ms),
        l2=best.l2,
        gflops=best.gflops,
        gb_per_s=best.gb_per_s,
        roof_ratio=best.roof_ratio,
        gain_over_default=gain(best.default_ms, best),
        gain_over_slowest=gain(best.slowest_ms, best),
        expected_loss=0.0 if match is Match.EXACT else None,
        library=library_answer(best),
        environment=environment_answer(best.environment),
        verified_at=best.verified_at,
        bound_ratio=best.bound_ratio,
        ties=best.ties,
        stale=row.moved_on or row.source_hash != kernel.source_hash(variant),
        improvable=any(v.name not in row.tried_variants for v in asked.usable_variants()),
        source_hash=row.source_hash,
        study_id=best.trial.study_id,
        trial_number=best.trial.number,
    )


def default_answer(asked: Asked) -> BestAnswer:
    """The kernel's default configuration, never measured here; raises NoConfigurationError where nothing runs."""
    configuration = _default(asked)
    return BestAnswer(
        match=Match.DEFAULT,
        roof_ratio=None,
        gain_over_default=None,
        problem=asked.problem_answer(),
        tuned_problem=None,
        device_model=asked.slug,
        variant=configuration.variant,
        configuration=dict(configuration.items),
        launch=asked.launch(configuration),
        flags=compiler_flags(asked.kernel, asked.problem, configuration),
        time_ms=None,
        expected_loss=None,
        library=None,
        environment=None,
        verified_at=None,
        improvable=True,
        source_hash=asked.kernel.source_hash(configuration.variant),
    )


def _default(asked: Asked) -> Configuration:
    """The first of: the default variant's default, another variant's default, anything feasible at all.

    Spaces are enumerated only when no default fits, because that takes much longer than the rest of an answer.
    """
    kernel = asked.kernel
    usable = sorted(asked.usable_variants(), key=lambda v: v.name != kernel.default_variant)
    for variant in usable:
        configuration = variant.space().default()
        if asked.is_member(configuration):
            return configuration
    starts = kernel.space(asked.problem, asked.limits).defaults() if usable else []
    if not starts:
        raise NoConfigurationError(f"No variant of {kernel.name} runs {asked.problem} on {asked.slug}.")
    return starts[0]
