"""Tunes problems in this process, because the application asked for it; answers stay on this machine's disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from tilewright.kernels.errors import KernelError
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.device import Device
from tilewright.tuner.errors import TunerError
from tilewright.tuner.runtime.choice import TargetDevice
from tilewright.tuner.runtime.launcher import place_of
from tilewright.tuner.runtime.runtime import Runtime

SEED = 0


def tune_now(runtime: Runtime, problems: Iterable[Problem], device_name: str, seconds: float) -> dict[Problem, str]:
    """Searches each problem for so many seconds; the reasons of those without a result.

    A GPU is measured in a child process of its own, which needs PyCUDA. Raises TunerError where that cannot be.
    """
    try:
        from tilewright.tuner.devices.local import open_device  # noqa: PLC0415 - a light installation may lack its needs
    except ImportError as error:
        raise TunerError(f"tuning needs {error.name}: pip install 'tilewright[service]'") from error
    failures: dict[Problem, str] = {}
    place = place_of(device_name)
    device = open_device(device_name)
    try:
        for problem in problems:
            try:
                _tune(runtime, problem, device, place, seconds)
            except (TunerError, KernelError) as error:
                failures[problem] = f"it could not be tuned: {error}"
    finally:
        device.close()
    return failures


def _tune(runtime: Runtime, problem: Problem, device: Device, place: TargetDevice, seconds: float) -> None:
    from tilewright.tuner.tune import Budget, tune  # noqa: PLC0415 - see above

    kernel = runtime.kernels.get(problem.kernel)
    bench = device.bench(kernel, problem, SEED)
    try:
        result = tune(bench, kernel, kernel.space(problem, device.model.limits), Budget(seconds=seconds), seed=SEED)
    finally:
        bench.close()
    if result.best is None:
        raise TunerError(f"no configuration of {problem} ran")
    configuration = result.best.configuration
    answer = {
        "variant": configuration.variant,
        "configuration": dict(configuration.values),
        "match": "exact",
        "time_ms": result.best.time_ms,
        "library": asdict(result.library) if result.library else None,
        "source_hash": kernel.source_hash(configuration.variant),
    }
    runtime.learn(problem, place, answer)
