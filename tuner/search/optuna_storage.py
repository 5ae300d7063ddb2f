"""A study's trials as an Optuna storage, for Optuna's own dashboard and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial


def write_storage(document: Mapping[str, Any], path: Path, name: str) -> int:
    """Writes trials to a new SQLite file as the study `name`, its values times in ms to be minimised; how many.

    `document` is a T4 document of one study. A failed trial has no value; its user attribute `outcome` says T4's word
    for what happened. The file appears when it is complete.
    """
    rows = document["results"]
    partial = path.with_name(f".{path.name}.new")
    partial.unlink(missing_ok=True)
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{partial}")
        study = optuna.create_study(storage=storage, study_name=name, direction="minimize")
        choices = _choices([row["configuration"] for row in rows])
        study.add_trials([_trial(row, choices) for row in rows])
        storage.engine.dispose()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return len(rows)


def _choices(configurations: Sequence[Mapping[str, Any]]) -> dict[str, CategoricalDistribution]:
    """Every parameter with the values that were tried."""
    tried: dict[str, dict[Any, None]] = {}
    for configuration in configurations:
        for name, value in configuration.items():
            tried.setdefault(name, {})[value] = None
    return {name: CategoricalDistribution(sorted(values)) for name, values in tried.items()}


def _trial(row: Mapping[str, Any], choices: Mapping[str, CategoricalDistribution]) -> FrozenTrial:
    times_ms = [m["value"] for m in row["measurements"] if m["name"] == "time"]
    measured = row["invalidity"] == "correct" and bool(times_ms)
    trial = create_trial(
        state=TrialState.COMPLETE if measured else TrialState.FAIL,
        value=times_ms[0] if measured else None,
        params=dict(row["configuration"]),
        distributions={parameter: choices[parameter] for parameter in row["configuration"]},
        user_attrs={"outcome": row["invalidity"]},
    )
    if row.get("timestamp"):
        moment = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=None)  # Optuna keeps naive ones
        trial.datetime_start = trial.datetime_complete = moment
    return trial
