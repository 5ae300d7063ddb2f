"""Replays recorded spaces through the searches: mean best-so-far as a fraction of the optimum. CPU only, no GPU.

    python benchmarks/replay_search.py RECORDING.json.gz … [--repeats 6] [--trials 200]

Recordings are Kernel Tuner caches, T4 files or our own (tuner/recordings.py).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewright.kernels.space import SearchSpace
from tilewright.tuner.outcome import Evaluation, Outcome, Timing
from tilewright.tuner.recordings import read_recording
from tilewright.tuner.replay import replay
from tilewright.tuner.search import SAMPLERS, make_searcher

MARKS = (10, 25, 50, 100, 200)


def run(space: SearchSpace, times: dict[str, float], sampler: str, seed: int, trials: int) -> tuple[list[float], float]:
    """Best time after each trial, and seconds that the proposals took."""
    searcher, best, series, proposing_s = make_searcher(sampler, space, [], seed), float("inf"), [], 0.0
    for _ in range(trials):
        begun = time.perf_counter()
        configuration = searcher.propose()
        proposing_s += time.perf_counter() - begun
        if configuration is None:
            break
        time_ms = times.get(str(configuration))
        if time_ms is None:
            evaluation = Evaluation(Outcome.LAUNCH_FAILED)
        else:
            evaluation = Evaluation(Outcome.MEASURED, warm=Timing(time_ms, 0.0, (time_ms,), "warm"))
            best = min(best, time_ms)
        searcher.tell(configuration, evaluation)
        series.append(best)
    return series, proposing_s


def report(path: Path, samplers: Sequence[str], repeats: int, trials: int) -> None:
    """Prints one table row per sampler."""
    recording = read_recording(path)
    device, kernel, problem = replay(recording)
    space = kernel.space(problem, device.model.limits)
    measured = {c: e for c, e in recording.entries.items() if e.outcome is Outcome.MEASURED}
    times = {str(c): float(np.median(next(iter(e.samples_ms.values())))) for c, e in measured.items()}
    optimum = min(times.values())
    for sampler in samplers:
        runs = [run(space, times, sampler, seed, trials) for seed in range(repeats)]
        cells = [np.mean([optimum / series[mark - 1] for series, _ in runs]) for mark in MARKS if mark <= trials]
        proposer_ms = 1e3 * sum(s for _, s in runs) / sum(len(series) for series, _ in runs)
        figures = " | ".join(f"{cell:.3f}" for cell in cells)
        print(f"| {recording.device_name}, {len(space)} | {sampler} | {figures} | {proposer_ms:.1f} |", flush=True)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--trials", type=int, default=200)
    chosen = parser.parse_args()
    marks = " | ".join(f"@{mark}" for mark in MARKS if mark <= chosen.trials)
    print(f"| recording, configurations | search | {marks} | ms a proposal |")
    print("|---|---|" + "---:|" * (1 + sum(mark <= chosen.trials for mark in MARKS)))
    for path in chosen.recordings:
        report(path, SAMPLERS, chosen.repeats, chosen.trials)


if __name__ == "__main__":
    main()
