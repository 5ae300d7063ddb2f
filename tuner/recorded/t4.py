"""Writing trials as T4, the interchange format of Kernel Tuner and others, schema 1.0.0."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.outcome import Evaluation, Outcome

INVALIDITY = {
    Outcome.MEASURED: "correct",
    Outcome.CONSTRAINT_VIOLATED: "constraints",
    Outcome.COMPILE_FAILED: "compile",
    Outcome.LAUNCH_FAILED: "runtime",
    Outcome.DEVICE_LOST: "runtime",
    Outcome.WRONG_RESULT: "correctness",
    Outcome.TIMED_OUT: "timeout",
}
"""T4's word for each outcome."""


def write_t4(
    path: Path, problem: Problem, device_name: str, evaluated: Iterable[tuple[Configuration, Evaluation]]
) -> None:
    """Writes trials as T4, gzipped where the name ends so; `read_recording` gives their ranking samples back.

    T4 knows no variants: the variant is one more entry of the configuration, and what was tuned stands in `metadata`.
    """
    metadata = {"timeunit": "milliseconds", "device_name": device_name, "problem": problem.as_json()}
    rows = [_row(configuration, evaluation) for configuration, evaluation in evaluated]
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        json.dump({"schema_version": "1.0.0", "metadata": metadata, "results": rows}, file, allow_nan=False)


def _row(configuration: Configuration, evaluation: Evaluation) -> dict[str, Any]:
    times: dict[str, Any] = {"compilation": evaluation.compile_ms or 0.0}
    measured: float | str = evaluation.outcome.value
    if evaluation.ranking is not None:
        times["runtimes"], measured = list(evaluation.ranking.samples_ms), evaluation.ranking.time_ms
    return {
        "configuration": configuration.as_json(),
        "times": times,
        "invalidity": INVALIDITY[evaluation.outcome],
        "correctness": int(evaluation.outcome is Outcome.MEASURED),
        "measurements": [{"name": "time", "value": measured, "unit": "milliseconds"}],
        "objectives": ["time"],
    }
