"""Runs a script, in its folder, whose calls of `kernel_tuner.tune_kernel` each wait to be told what they may take.

    python benchmarks/adoption/limited_calls.py SCRIPT.py

A line of JSON on the standard output says that a call is ready: `{"values": …}`, of each parameter. A line on the
standard input lets it go: `seconds`, `strategy`, `fixed` (parameters that have one value here), `langs` (back ends,
the next where one measured nothing) and `arch`; `{"skip": true}` leaves it out, `null` ends the script. Then a line
has what was found, and the script goes on with what `kernels adopt` makes up, so that its later calls are those that
were adopted. Needs Kernel Tuner, and nothing of ours.

What of the call is not Kernel Tuner's search is left out (LEFT_OUT), and so is what keeps it from measuring:

- One configuration that fails (an image that the driver refuses, a wrong result) ended the whole call. It counts as
  one that failed.
- The back end `nvcuda` of Kernel Tuner 1.5.0 gives the check of errors a tuple, which that lets pass: a launch that
  failed had the shortest time. It gets the error.
- Headers of CUDA 13 want C++17, and nvcc 13 knows no architecture before 7.5.
- A strategy counts configurations that it has had before, and ends with seconds left where there are few. It begins
  anew, and what was measured stands, until the seconds are over or MOST_IN_VAIN searches in a row found nothing new.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import kernel_tuner
import numpy as np
from kernel_tuner import core, util
from kernel_tuner.backends import nvcuda

NAMES = ("kernel_name", "kernel_source", "problem_size", "arguments", "tune_params")
OBJECTIVES = ("metrics", "objective", "objective_higher_is_better", "objectives", "observers")
LEFT_OUT = (*OBJECTIVES, "cache", "log", "parallel", "parallel_runner", "simulation_mode")
OBSERVERS = {"ncu": "NCUObserver", "nvml": "NVMLObserver", "pmt": "PMTObserver", "tegra": "TegraObserver"}
MOST_TOLD = 40
"""How many configurations are told, the fastest first."""
MOST_IN_VAIN = 3


class Unused:
    """In place of an observer, which is left out and may need what is not there."""

    def __init__(self, *_given: Any, **_options: Any) -> None: ...


class Trials:
    """What became of each configuration while Kernel Tuner searches; one that fails ends nothing."""

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}
        self.times_ms: dict[str, float] = {}
        self.failures: Counter[str] = Counter()

    def __enter__(self) -> Self:
        device, trials, made = core.DeviceInterface, self, core.DeviceInterface.compile_and_benchmark

        def recorded(self: Any, source: Any, arguments: Any, params: Any, *others: Any) -> Any:
            key = json.dumps(params, default=_number)
            if key not in trials.results:
                trials.results[key] = trials.result(lambda: made(self, source, arguments, params, *others), key)
            return dict(trials.results[key])

        self._restore = lambda: setattr(device, "compile_and_benchmark", made)
        device.compile_and_benchmark = recorded
        return self

    def __exit__(self, *_error: object) -> None:
        self._restore()

    def result(self, measure: Callable[[], dict[str, Any]], key: str) -> dict[str, Any]:
        """What Kernel Tuner makes of a configuration."""
        try:
            result = measure()
        except Exception as error:  # noqa: BLE001 - whatever it raises is of this configuration
            self.failures[f"{type(error).__name__}: {_gist(str(error))}"] += 1
            times = dict.fromkeys(("compile_time", "verification_time", "benchmark_time"), 0)
            return {"__error__": util.RuntimeFailedConfig(), **times}
        if "__error__" in result:
            self.failures[repr(result["__error__"])] += 1
        else:
            self.times_ms[key] = float(result["time"])
        return result


class LimitedCalls:
    """Takes the place of `tune_kernel`."""

    def __init__(self, tune_kernel: Callable[..., Any], say: Callable[[Any], None]) -> None:
        self._tune_kernel, self._say = tune_kernel, say

    def __call__(self, *given: Any, **options: Any) -> Any:
        """What `kernels adopt` returns: the first value of each parameter, with times that are made up."""
        options |= dict(zip(NAMES, given, strict=False))
        values = {name: [*listed] for name, listed in options["tune_params"].items()}
        self._say({"values": values})
        told = json.loads(sys.stdin.readline() or "null")
        if told is None:
            raise SystemExit
        if "skip" not in told:
            answer: dict[str, Any] = {"left_out": [one for one in LEFT_OUT if options.pop(one, None) is not None]}
            options["tune_params"] = values | {name: [value] for name, value in told["fixed"].items()}
            options |= {"strategy": told["strategy"], "strategy_options": {"time_limit": told["seconds"]}}
            self._say(answer | self._found(options, told, values))
        result = _MadeUp({name: listed[0] for name, listed in values.items()}, time=1.0)
        return [result], {"best_config": result}

    def _found(self, options: dict[str, Any], told: Mapping[str, Any], values: Mapping[str, list[Any]]) -> Any:
        """What was found by the first back end that measured anything; else `failure`."""
        reasons = []
        is_host = str(options.get("lang")).upper() == "C"
        flags = [flag for flag in options.pop("compiler_options", None) or () if "-arch" not in flag]
        flags += [f"-arch=sm_{told['arch']}"] if is_host else _headers(flags)
        for lang in ["C"] if is_host else told["langs"]:
            trials, begun = Trials(), time.monotonic()
            with trials:
                failure = self._searches(options | {"lang": lang, "compiler_options": flags}, trials)
            told_of = {
                "lang": lang,
                "flags": flags,
                "seconds": time.monotonic() - begun,
                "measured": len(trials.times_ms),
                "failed": dict(trials.failures.most_common(5)),
            }
            if trials.times_ms:
                fastest = sorted(trials.times_ms.items(), key=lambda one: one[1])[:MOST_TOLD]
                return told_of | {"fastest": [_one(json.loads(key), time_ms, values) for key, time_ms in fastest]}
            reasons.append(f"{lang}: {failure or next(iter(told_of['failed']), 'nothing was tried')}")
        return told_of | {"failure": f"it measured nothing; {'; '.join(reasons)}"}

    def _searches(self, options: dict[str, Any], trials: Trials) -> str:
        """Searches until the seconds are over; what ended them too early, if anything did."""
        until, vain = time.monotonic() + options["strategy_options"]["time_limit"], 0
        while vain < MOST_IN_VAIN and (left_s := until - time.monotonic()) > 0:
            known = len(trials.results)
            try:
                self._tune_kernel(**options | {"strategy_options": {"time_limit": left_s}})
            except Exception as error:  # noqa: BLE001 - whatever Kernel Tuner raises is its answer
                if not known:
                    return f"{type(error).__name__}: {_gist(str(error))}"
                break  # too few seconds were left to begin in
            vain = 0 if len(trials.results) > known else vain + 1
        return ""


class _MadeUp(dict):  # type: ignore[type-arg]
    """A configuration with made-up measurements: any that is asked for is 1."""

    def __missing__(self, _name: str) -> float:
        return 1.0


def _one(best: Mapping[str, Any], time_ms: float, values: Mapping[str, list[Any]]) -> dict[str, Any]:
    plain = json.loads(json.dumps(values, default=_number))
    places = {name: plain[name].index(value) for name, value in best.items() if name in plain}
    return {"best": best, "places": places, "time_ms": time_ms}


def _headers(flags: list[str]) -> list[str]:
    """The flags that CUDA 13's own headers need: a standard of C++, and where CUB is."""
    home = next((os.environ[one] for one in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT") if one in os.environ), None)
    standard = [] if any("-std=" in flag for flag in flags) else ["--std=c++17"]
    return [*standard, *([f"-I{home}/include", f"-I{home}/include/cccl"] if home else [])]


def _gist(said: str) -> str:
    """The first line with an error, or the first."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["it said nothing"]
    return next((line for line in lines if "error" in line.lower()), lines[0])[:300]


def _check_tuples(check: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda error: check(error[0] if isinstance(error, tuple) else error)


def main(script: str) -> None:
    """What the script prints goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(answer: Any) -> None:
        answers.write(json.dumps(answer, default=_number) + "\n")

    path = Path(script).resolve()
    os.chdir(path.parent)
    sys.argv = [str(path)]
    sys.path.insert(0, str(path.parent))
    nvcuda.cuda_error_check = _check_tuples(nvcuda.cuda_error_check)
    for module, name in OBSERVERS.items():
        setattr(importlib.import_module(f"kernel_tuner.observers.{module}"), name, Unused)
    limited = LimitedCalls(kernel_tuner.tune_kernel, say)
    kernel_tuner.tune_kernel = kernel_tuner.interface.tune_kernel = limited
    runpy.run_path(str(path), run_name="__main__")


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


if __name__ == "__main__":
    main(sys.argv[1])
