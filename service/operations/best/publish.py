"""Makes a job's settled winner the best configuration of its study, in one transaction with what it replaces."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from tilewright.kernels.space import Configuration
from tilewright.service.operations.jobs.record_trial import storable
from tilewright.service.operations.registry import device_model_of
from tilewright.service.store import models
from tilewright.service.store.models import ClaimState
from tilewright.tuner.library.names import is_launched, version_of
from tilewright.tuner.loop.finals import Finalist
from tilewright.tuner.loop.statistics import ratio_interval
from tilewright.tuner.loop.study import TuneResult
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.roofline import roof_ratio


def publish_best(
    session: Session, job: models.TuningJob, study: models.Study, result: TuneResult
) -> models.BestConfiguration | None:
    """The new best row, or None where the standing one stays.

    Published is only what the finals settled, from a measured and verified trial. The best of the same environment
    that stands already gives way to a winner that is faster beyond the noise, and to any where its own source is no
    longer the newest, or where it was ranked in the other state of the L2 cache; and where it wins again, to a result
    that names a better call of the library's, which launchers make. Noise, and a job limited to some variants, do not
    displace the winner of all.
    """
    standing = _standing_best(session, study)
    if standing is not None:
        _retract_if_dropped(standing, result)
    settled = _publishable(session, study, result)
    if settled is None:
        return None
    result, trial = settled
    if standing is not None and standing.retracted_at is None and not _displaces(session, result, trial, standing):
        return None
    best_id = session.scalar(select(func.nextval("best_configurations_id_seq")))
    if standing is not None and standing.retracted_at is None:
        standing.superseded_by_id = best_id
    session.flush()  # the old row leaves the index of current ones before the new one enters
    best = models.BestConfiguration(
        id=best_id,
        problem_id=study.problem_id,
        device_model_id=study.device_model_id,
        environment_id=study.environment_id,
        trial_id=trial.id,
        job_id=job.id,
        **_figures(session, study, trial, result),
    )
    session.add(best)
    session.flush()
    return best


def job_result(result: TuneResult) -> dict[str, Any]:
    """A job's result as JSON; gains are times of the other over the best's, above 1 in favour of the best."""
    best, library = result.best, result.library
    return {
        "stopped_by": result.stopped_by,
        "best": _finalist(best) if best else None,
        "default_ms": result.default_ms,
        "slowest_ms": result.slowest_ms,
        "gain_over_default": _ratio(result.default_ms, best),
        "gain_over_slowest": _ratio(result.slowest_ms, best),
        "library": None
        if library is None
        else {
            "name": library.name,
            "time_ms": library.time_ms,
            "ci_ms": list(library.ci_ms),
            "faster": library.faster,
            "speedup": _ratio(library.time_ms, best),
            "bound_ratio": _finite(library.bound_ratio),
        },
        "library_failure": None if result.library_failure is None else storable(result.library_failure),
        "ties": _ties(result),
        "finalists": [_finalist(finalist) | {"ties": finalist.ties} for finalist in result.finalists],
        "dropped": [{"configuration": d.configuration.as_json(), "reason": storable(d.reason)} for d in result.dropped],
        "steadiness": None if result.steadiness is None else asdict(result.steadiness),
    }


def _standing_best(session: Session, study: models.Study) -> models.BestConfiguration | None:
    # Two jobs of one study may settle at once: the study's row makes them take turns.
    session.get_one(models.Study, study.id, with_for_update=True, populate_existing=True)
    table = models.BestConfiguration
    return session.scalars(
        select(table)
        .where(
            table.problem_id == study.problem_id,
            table.device_model_id == study.device_model_id,
            table.environment_id == study.environment_id,
            table.superseded_by_id.is_(None),
            table.retracted_at.is_(None),
        )
        .options(joinedload(table.trial).joinedload(models.Trial.kernel_variant))
        .execution_options(populate_existing=True)
    ).one_or_none()


def _retract_if_dropped(standing: models.BestConfiguration, result: TuneResult) -> None:
    configuration = Configuration.from_json(standing.trial.configuration)
    for dropped in result.dropped:
        if dropped.configuration == configuration:
            standing.retracted_at = func.now()
            standing.retracted_reason = storable(dropped.reason)


def _displaces(session: Session, result: TuneResult, trial: models.Trial, standing: models.BestConfiguration) -> bool:
    is_comparable = trial.ranking_l2 == standing.l2
    is_better = _is_faster(result, standing) or _names_better_call(result, standing)
    return not is_comparable or is_better or _is_outdated(session, standing)


def _is_faster(result: TuneResult, standing: models.BestConfiguration) -> bool:
    """Whether the result is faster beyond noise: round by round if both were in the finals, else by their intervals."""
    winner, configuration = result.best, Configuration.from_json(standing.trial.configuration)
    beside = next((finalist for finalist in result.finalists if finalist.configuration == configuration), None)
    if winner is None:
        return False
    if beside is None or beside.configuration == winner.configuration:
        return winner.ci_ms[1] < standing.ci_low_ms
    _, ratio = ratio_interval(winner.samples_ms, beside.samples_ms)
    return ratio.high < 1


def _names_better_call(result: TuneResult, standing: models.BestConfiguration) -> bool:
    """Whether the same configuration won, and launchers had better make this call of the library's.

    That is, where the standing row names none of this version, or a slower one beyond the noise.
    """
    winner, library = result.best, result.library
    if winner is None or library is None or not (library.faster and is_launched(library.name)):
        return False
    if winner.configuration != Configuration.from_json(standing.trial.configuration):
        return False
    name, time_ms = standing.library_name, standing.library_ms
    if name is None or time_ms is None or not (standing.library_faster and is_launched(name)):
        return True
    return version_of(name) != version_of(library.name) or library.ci_ms[1] < time_ms


def _is_outdated(session: Session, standing: models.BestConfiguration) -> bool:
    """Whether a newer source of the winning variant has been registered."""
    used, table = standing.trial.kernel_variant, models.KernelVariant
    newest = session.scalar(
        select(func.max(table.id)).where(table.kernel_id == used.kernel_id, table.name == used.name)
    )
    return newest != used.id


def _publishable(session: Session, study: models.Study, result: TuneResult) -> tuple[TuneResult, models.Trial] | None:
    """The result with its winner's trial; where that was retracted meanwhile, the next finalist is the winner."""
    if result.best is None:
        return None
    trial = _trial_of(session, study, result.best)
    if trial is None or not _is_retracted(session, study, trial):
        return None if trial is None else (result, trial)
    for finalist in result.finalists[1:]:
        trial = _trial_of(session, study, finalist)
        if trial is not None and not _is_retracted(session, study, trial):
            library = result.library
            if library is not None:
                library = replace(library, faster=library.faster or library.ci_ms[1] < finalist.ci_ms[0])
            return replace(result, best=finalist, library=library), trial
    return None


def _is_retracted(session: Session, study: models.Study, trial: models.Trial) -> bool:
    """Whether the trial was published and retracted, or a claim of its configuration confirmed."""
    best, claim = models.BestConfiguration, models.Claim
    was = select(best.id).where(best.trial_id == trial.id, best.retracted_at.is_not(None)).exists()
    source = select(models.KernelVariant.source_hash).where(models.KernelVariant.id == trial.kernel_variant_id)
    is_wrong = select(claim.id).where(
        claim.problem_id == study.problem_id,
        claim.device_model_id == study.device_model_id,
        claim.state == ClaimState.CONFIRMED,
        claim.configuration == trial.configuration,
        claim.source_hash == source.scalar_subquery(),
    )
    return bool(session.scalar(select(was | is_wrong.exists())))


def _trial_of(session: Session, study: models.Study, best: Finalist) -> models.Trial | None:
    """The newest measured trial of the winning configuration; only verified trials are measured."""
    table = models.Trial
    return session.scalars(
        select(table)
        .where(
            table.study_id == study.id,
            table.configuration == best.configuration.as_json(),
            table.outcome == Outcome.MEASURED,
        )
        .order_by(table.number.desc())
        .limit(1)
    ).one_or_none()


def _figures(session: Session, study: models.Study, trial: models.Trial, result: TuneResult) -> dict[str, Any]:
    best, library = result.best, result.library
    assert best is not None  # noqa: S101 - for the type checker: only winners come here
    return {
        "time_ms": best.time_ms,
        "ci_low_ms": best.ci_ms[0],
        "ci_high_ms": best.ci_ms[1],
        "l2": trial.ranking_l2,
        **rates(session, study, trial, best.time_ms),
        "default_ms": result.default_ms,
        "slowest_ms": result.slowest_ms,
        "library_name": library.name if library else None,
        "library_ms": library.time_ms if library else None,
        "library_faster": library.faster if library else None,
        "ties": _ties(result),
        "bound_ratio": trial.bound_ratio if best.bound_ratio is None else best.bound_ratio,
        "library_bound_ratio": _finite(library.bound_ratio) if library else None,
    }


def rates(session: Session, study: models.Study, trial: models.Trial, time_ms: float) -> dict[str, float | None]:
    """Rates of the measured trial's work done in that time; `roof_ratio` is None where the peaks are not known."""
    assert trial.time_ms is not None  # noqa: S101 - for the type checker: a winner was measured
    if trial.gflops is None or trial.gb_per_s is None:  # the kernel does not count one of them
        known = {"gflops": trial.gflops, "gb_per_s": trial.gb_per_s}
        scaled = {name: rate and rate * trial.time_ms / time_ms for name, rate in known.items()}
        return {**scaled, "roof_ratio": None}
    # Work is the same in the trial and in the finals; only the time differs.
    rate = trial.time_ms / time_ms
    gflops, gb_per_s = trial.gflops * rate, trial.gb_per_s * rate
    problem = session.get_one(models.Problem, study.problem_id)
    model = device_model_of(session.get_one(models.DeviceModel, study.device_model_id))
    ratio = roof_ratio(model, problem.dtype, gflops, gb_per_s, problem.options.get("accuracy"))
    return {"gflops": gflops, "gb_per_s": gb_per_s, "roof_ratio": ratio}


def _ties(result: TuneResult) -> int:
    return sum(finalist.ties for finalist in result.finalists)


def _finalist(finalist: Finalist) -> dict[str, Any]:
    return {
        "configuration": finalist.configuration.as_json(),
        "time_ms": finalist.time_ms,
        "ci_ms": list(finalist.ci_ms),
        "bound_ratio": _finite(finalist.bound_ratio),
    }


def _finite(ratio: float | None) -> float | None:
    """The ratio, or None where it is missing or infinite, which JSON cannot express."""
    return ratio if ratio is not None and math.isfinite(ratio) else None


def _ratio(other_ms: float | None, best: Finalist | None) -> float | None:
    return None if other_ms is None or best is None else other_ms / best.time_ms
