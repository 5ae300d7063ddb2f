"""Runs a script, in its folder, whose calls of `kernel_tuner.tune_kernel` each wait to be told what they may take.

    python benchmarks/adoption/limited_calls.py SCRIPT.py

A line of JSON on the standard output says that a call is ready: `{"names": …}`, the parameters. A line on the standard
input lets it go: `seconds`, `strategy`, `fixed` (parameters that have one value here), and `lang` where it is not to be
the script's; `null` ends the script. Then a line has what was found. Needs Kernel Tuner, and nothing of ours.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kernel_tuner
import numpy as np


class LimitedCalls:
    """Takes the place of `tune_kernel`."""

    def __init__(self, tune_kernel: Callable[..., Any], say: Callable[[Any], None]) -> None:
        self._tune_kernel, self._say = tune_kernel, say

    def __call__(self, *given: Any, **options: Any) -> Any:
        """What Kernel Tuner returns."""
        names = ("kernel_name", "kernel_source", "problem_size", "arguments", "tune_params")
        options |= dict(zip(names, given, strict=False))
        values = {name: [*listed] for name, listed in options["tune_params"].items()}
        self._say({"names": [*values]})
        told = json.loads(sys.stdin.readline() or "null")
        if told is None:
            raise SystemExit
        options["tune_params"] = values | {name: [value] for name, value in told["fixed"].items()}
        options |= {"strategy": told["strategy"], "strategy_options": {"time_limit": told["seconds"]}}
        options |= {"lang": told["lang"]} if told["lang"] else {}
        begun = time.monotonic()
        try:
            results, environment = self._tune_kernel(**options)
        except Exception as error:  # whatever Kernel Tuner raises is its answer
            self._say({"failure": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - begun})
            raise
        seconds = time.monotonic() - begun
        measured = [one for one in results if isinstance(one.get("time"), int | float)]
        best = min(measured, key=lambda one: one["time"], default=None)
        answer: dict[str, Any] = {"seconds": seconds, "evaluated": len(results), "measured": len(measured)}
        if best is None:
            answer["failure"] = f"none of {len(results)} configurations was measured"
        else:
            answer["best"] = {name: best[name] for name in values}
            answer["places"] = {name: listed.index(best[name]) for name, listed in values.items()}
            answer["time_ms"] = best["time"]
        self._say(answer)
        return results, environment


def main(script: str) -> None:
    """What the script prints goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(answer: Any) -> None:
        answers.write(json.dumps(answer, default=_number) + "\n")

    path = Path(script).resolve()
    os.chdir(path.parent)
    sys.argv = [str(path)]
    kernel_tuner.tune_kernel = LimitedCalls(kernel_tuner.tune_kernel, say)
    runpy.run_path(str(path), run_name="__main__")


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(type(value).__name__)


if __name__ == "__main__":
    main(sys.argv[1])
