"""Replays recorded spaces through our searches and Kernel Tuner's: how near the optimum, how soon. CPU only, no GPU.

    python benchmarks/search.py FOLDER_OR_RECORDING … [--repeats 100] [--others 20] …

Recordings are Kernel Tuner caches or T4 files; those in benchmarks/recordings are always among them. Kernel
Tuner's rows need the development dependency `kernel_tuner`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from documents.file import write as write_document
from searches.replay import KERNEL_TUNER, Run, recorded, search, search_kernel_tuner

from tilewright.tuner.recorded.recordings import UnreadableRecordingError
from tilewright.tuner.search.searcher import SAMPLERS

MARKS = (10, 25, 50, 100, 200)
SECONDS = (1, 2, 4)  # of a job
STRATEGIES = ("adaptive_tabu_greywolf", "hybrid_vndx", "genetic_algorithm", "diff_evo", "random_sample")
OWN_RECORDINGS = Path(__file__).parent / "recordings"
RESAMPLES = 2000  # of the repeats, for the intervals

# The same kernel on another device: alike, unlike, and one whose record covers a poor corner only.
PRIORS = (
    ("RTX_2080_Ti", "RTX_3060_laptop"),
    ("RTX_Titan", "RTX_3060_laptop"),
    ("RTX_2080_Ti", "A6000_hist"),
    ("convolution_A100_T4", "convolution_A4000_T4"),
    ("convolution_A4000_T4", "convolution_A100_T4"),
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One row to be made."""

    path: Path
    sampler: str
    prior: Path | None
    repeats: int
    trials: int

    def head(self) -> Row:
        """The head that identifies the row; --resume skips rows with the same head."""
        names = [_name(path) if path else None for path in (self.path, self.prior)]
        return {"space": names[0], "sampler": self.sampler, "prior": names[1], "repeats": self.repeats}


def row_of(task: Task) -> Row:
    """The row: `fraction_at` a mark is the mean of optimum over best so far, `ci_at` its 95 % interval.

    A median is None where half of the repeats never came so near within the trials.
    """
    on, prior = recorded(task.path), recorded(task.prior) if task.prior else None
    runs = [_run(on, task, prior, seed) for seed in range(task.repeats)]
    marks = [mark for mark in MARKS if mark <= task.trials]
    # A space that was exhausted earlier, and a strategy that gave up, keep what they had.
    series = np.array([(r.best_ms + [r.best_ms[-1]] * task.trials)[: task.trials] for r in runs])
    at = on.optimum_ms / series
    return task.head() | {
        "configurations": len(on.space),
        "fraction_at": {str(mark): round(float(at[:, mark - 1].mean()), 4) for mark in marks},
        "ci_at": {str(mark): interval(at[:, mark - 1]) for mark in marks},
        "median_to_95": median_to(at, 0.95),
        "median_to_99": median_to(at, 0.99),
        "proposer_ms": round(float(np.mean([run.proposer_ms for run in runs])), 2),
        "sd_at": {str(mark): round(float(at[:, mark - 1].std(ddof=min(1, len(at) - 1))), 4) for mark in marks},
    }


def _run(on: Any, task: Task, prior: Any, seed: int) -> Run:
    if task.sampler.startswith(KERNEL_TUNER):
        return search_kernel_tuner(on, task.sampler.removeprefix(KERNEL_TUNER), seed, task.trials)
    return search(on, task.sampler, seed, task.trials, prior)


def interval(fractions: np.ndarray) -> list[float]:
    """The 95 % interval of their mean, by resampling the repeats."""
    draws = np.random.default_rng(0).integers(len(fractions), size=(RESAMPLES, len(fractions)))
    return [round(float(q), 4) for q in np.quantile(fractions[draws].mean(axis=1), [0.025, 0.975])]


def median_to(at: np.ndarray, fraction: float) -> float | None:
    """The median over the repeats (rows) of the evaluations until this fraction of the optimum."""
    reached = at >= fraction
    counts = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, np.inf)
    median = float(np.median(counts))
    return median if np.isfinite(median) else None


def lead(ours: Row, others: Sequence[Row]) -> Row:
    """At each mark, ours less the best of the others by mean there, and the 95 % interval of the difference."""
    leads_by_space: Row = {}
    for mark, fraction in ours["fraction_at"].items():
        best = max(others, key=lambda row: row["fraction_at"][mark])
        by = fraction - best["fraction_at"][mark]
        spread = 1.96 * math.sqrt(sum(row["sd_at"][mark] ** 2 / row["repeats"] for row in (ours, best)))
        leads_by_space[mark] = {
            "over": best["sampler"],
            "by": round(by, 4),
            "ci": [round(by - spread, 4), round(by + spread, 4)],
        }
    return leads_by_space


def leads(rows: Sequence[Row]) -> list[Row]:
    """Our default against the best of Kernel Tuner on each space, and with each prior against itself without."""
    found = []
    for row in rows:
        here = [other for other in rows if other["space"] == row["space"] and other["prior"] is None]
        kernel_tuner = [other for other in here if other["sampler"].startswith(KERNEL_TUNER)]
        against = [other for other in here if other["sampler"] == SAMPLERS[0]] if row["prior"] else kernel_tuner
        if row["sampler"] == SAMPLERS[0] and against:
            found.append({"space": row["space"], "prior": row["prior"], "at": lead(row, against)})
    return found


def readable(paths: Sequence[Path]) -> tuple[dict[Path, int], list[str]]:
    """How many variants each recording has, and what is wrong with those that cannot be read."""
    variants, errors = dict[Path, int](), list[str]()
    for path in paths:
        try:
            variants[path] = len(recorded(path).space.spaces)
        except UnreadableRecordingError as error:
            errors.append(str(error))
    return variants, errors


def tasks(paths: Mapping[Path, int], repeats: int, others: int, trials: int) -> list[Task]:
    """Every row, the ones that the goals are about first; `paths` with their numbers of variants."""
    by_name = {_name(path): path for path in paths}
    strategies = [KERNEL_TUNER + s for s in STRATEGIES] if importlib.util.find_spec("kernel_tuner") else []
    rows_to_make = [Task(path, SAMPLERS[0], None, repeats, trials) for path in paths]
    single = [path for path, variants in paths.items() if variants == 1]  # Kernel Tuner knows no variants
    rows_to_make += [Task(path, strategy, None, repeats, trials) for path in single for strategy in strategies]
    rows_to_make += [
        Task(by_name[on], SAMPLERS[0], by_name[prior], repeats, trials)
        for on, prior in PRIORS
        if on in by_name and prior in by_name
    ]
    return rows_to_make + [Task(path, sampler, None, others, trials) for sampler in SAMPLERS[1:] for path in paths]


def _name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")


def write(out: Path, rows: Sequence[Row], trials: int) -> None:
    """The file, sorted, whole at every moment."""
    ordered = sorted(rows, key=lambda row: (row["space"], row["prior"] or "", row["sampler"]))
    made = {
        "command": "make bench-search",
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "trials": trials,
        "objective": "mean of the recorded samples",
        "proposer_ms": "CPU time an evaluation, BLAS on one thread",
        "rows": ordered,
        "leads": leads(ordered),
    }
    write_document(out, made)


def line(row: Row) -> str:
    """One row of the printed table."""
    fractions = " | ".join(f"{fraction:.3f}" for fraction in row["fraction_at"].values())
    name = row["sampler"] + (f", prior {row['prior']}" if row["prior"] else "")
    medians = " | ".join("-" if row[f"median_to_{n}"] is None else f"{row[f'median_to_{n}']:.0f}" for n in (95, 99))
    return f"| {row['space']} | {name} | {row['repeats']} | {fractions} | {medians} | {row['proposer_ms']:.1f} |"


def main() -> int:
    """Reads the command line, makes the rows that are missing in worker processes, writes the file after each.

    Returns 1 where a recording could not be read: it is named, and the others have their rows.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="*")
    parser.add_argument("--repeats", type=int, default=100, help="of our default and of Kernel Tuner's strategies")
    parser.add_argument("--others", type=int, default=20, help="repeats of our other samplers, which take longer")
    parser.add_argument("--spaces", nargs="*", help="only these spaces, by the names of their files")
    parser.add_argument("--samplers", nargs="*", help="only these, Kernel Tuner's as kernel_tuner:STRATEGY")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "search.json")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the file has")
    chosen = parser.parse_args()
    for path in chosen.recordings:
        if not path.exists():
            parser.error(f"{path}: no such folder or recording")
    given = [f for path in (*chosen.recordings, OWN_RECORDINGS) for f in (_inside(path) if path.is_dir() else [path])]
    paths = [path for path in dict.fromkeys(given) if path != OWN_RECORDINGS]
    rows: list[Row] = []
    if chosen.resume and chosen.out.exists():
        rows = json.loads(chosen.out.read_text(encoding="utf-8"))["rows"]
    variants, unread = readable(paths)
    for error in unread:
        print(f"left out: {error}", file=sys.stderr)
    chosen_tasks = tasks(variants, chosen.repeats, chosen.others, chosen.trials)
    chosen_tasks = [task for task in chosen_tasks if not chosen.samplers or task.sampler in chosen.samplers]
    chosen_tasks = [task for task in chosen_tasks if not chosen.spaces or _name(task.path) in chosen.spaces]
    heads = [{key: row[key] for key in ("space", "sampler", "prior", "repeats")} for row in rows]
    missing = [task for task in chosen_tasks if task.head() not in heads]
    print(f"{len(missing)} of {len(chosen_tasks)} rows to make", flush=True)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the workers share the cores; they read it as they import NumPy
    with ProcessPoolExecutor(chosen.processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(row_of, task) for task in missing]):
            row = done.result()
            rows = [row, *(old for old in rows if any(old[key] != row[key] for key in ("space", "sampler", "prior")))]
            print(line(row), flush=True)
            write(chosen.out, rows, chosen.trials)
    return 1 if unread else 0


def _inside(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz")))


if __name__ == "__main__":
    sys.exit(main())
