"""What a first day's answers are worth, from trials of unseen shapes, by the number of shapes tuned there before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from predictions.first_day import SHIPPED, record_sets
from predictions.rows import State, geometric_mean, problem_of_row, record_of

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.tuner.predict.predictor import Predictor
from tilewright.tuner.predict.shipped import limits_from

Times = Mapping[Configuration, float]


def summary(result: State) -> State:
    """For each set of records how good the choices of this result are."""
    kernel, limits = catalogue().get(result["kernel"]), limits_from(result["limits"])
    times = [_times(row) for row in result["rows"]]
    sets = {name: _as_answered(name, result["rows"], times) for name in (SHIPPED, "default")}
    sets = {name: judged for name, judged in sets.items() if judged["rows"]}
    for name, records in record_sets(result["records"]).items():
        rows = _rows(kernel, limits, records, result["rows"], times)
        sets[name] = {"records": len(records), **_totals(rows), "rows": rows}
    kept = ("written_at", "device_model", "environment", "kernel", "seed", "sizes", "tuned", "trials")
    commands = result.get("commands") or [result["command"]]
    trials = sum(len(row["tried"]) for row in result["records"])
    return {name: result[name] for name in kept} | {"commands": commands, "record_trials": trials, "sets": sets}


def _as_answered(name: str, unseen: Sequence[State], times: Sequence[Times]) -> State:
    """The same of choices as they were made in that run; some failed, or a search ended before their turn."""
    rows: list[State] = []
    for row, measured in zip(unseen, times, strict=True):
        if name in row["chosen"]:
            time_ms = measured.get(Configuration.from_json(row["chosen"][name]))
            best_ms, library_ms = min(measured.values()), row["timed"]["library_ms"] or row["library"]["time_ms"]
            made = {"shape": row["shape"], "measured": len(measured), "best_ms": best_ms, "library_ms": library_ms}
            use_library = row["expected"].get(name, {}).get("use_library", False)
            answer = {"time_ms": time_ms, "ratio": best_ms / time_ms, "use_library": use_library} if time_ms else None
            rows.append(made | ({"predicted": answer} if answer else {"not_measured": row["chosen"][name]}))
    return {**_totals(rows), "not_measured": sum("predicted" not in row for row in rows), "rows": rows}


def _times(row: State) -> Times:
    """Of each configuration that was measured at an unseen shape its time in ms; those timed in rounds count so."""
    times = {Configuration.from_json(configuration): time_ms for configuration, time_ms, _ in row["tried"]}
    return times | {Configuration.from_json(chosen): time_ms for chosen, time_ms in row["timed"]["configurations"]}


def _rows(
    kernel: Kernel, limits: Limits, records: Sequence[State], unseen: Sequence[State], times: Sequence[Times]
) -> list[State]:
    predictor = Predictor(kernel, limits, [record_of(kernel, row) for row in records if row["tried"]])
    rows = []
    for row, measured in zip(unseen, times, strict=True):
        problem = problem_of_row(kernel, row)
        free = predictor.predict(problem, kernel.space(problem, limits).__contains__)
        among = predictor.predict(problem, measured.__contains__)
        best_ms, library_ms = min(measured.values()), row["timed"]["library_ms"] or row["library"]["time_ms"]
        made: State = {"shape": row["shape"], "measured": len(measured), "best_ms": best_ms, "library_ms": library_ms}
        for name, one in (("predicted", free), ("among_measured", among)):
            if one is not None and one.configuration in measured:
                time_ms = measured[one.configuration]
                expected = {"expected_ms": one.time_ms, "library_expected_ms": one.library and one.library.time_ms}
                made[name] = {
                    "time_ms": time_ms,
                    "ratio": best_ms / time_ms,
                    **expected,
                    "use_library": one.is_library_faster,
                }
        rows.append(made)
    return rows


def _totals(rows: Sequence[State]) -> State:
    totals: State = {}
    for name in ("predicted", "among_measured"):
        chosen = [(row, row[name]) for row in rows if name in row]
        ratios = [one["ratio"] for _, one in chosen]
        slower = [one["use_library"] for row, one in chosen if one["time_ms"] > row["library_ms"]]
        totals[name] = {
            "shapes": len(ratios),
            "geometric_mean": round(geometric_mean(ratios), 3) if ratios else None,
            "minimum": round(min(ratios), 3) if ratios else None,
            "use_library": sum(one["use_library"] for _, one in chosen),
            "slower_than_library": len(slower),
            "slower_and_not_said": slower.count(False),
        }
    return totals
