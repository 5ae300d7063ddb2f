"""Tunes problems in this process, because the application asked for it; answers stay on this machine's disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from tilewright.kernels.errors import KernelError
from tilewright.kernels.problem import Problem, octaves
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.device import Device
from tilewright.tuner.errors import TunerError
from tilewright.tuner.runtime.choice import TargetDevice
from tilewright.tuner.runtime.launcher import place_of
from tilewright.tuner.runtime.runtime import Runtime

SEED = 0


def tune_now(
    runtime: Runtime,
    problems: Iterable[Problem],
    device_name: str,
    seconds: float,
    known: Mapping[Problem, Configuration],
) -> dict[Problem, str]:
    """Searches each problem for so many seconds; the reasons of those without a result.

    A search begins with what is best for the problems like it, of those that are known and those before it. A GPU is
    measured in a child process of its own, which needs PyCUDA. Raises TunerError where that cannot be.
    """
    try:
        from tilewright.tuner.devices.local import open_device  # noqa: PLC0415 - a light installation may lack its needs
    except ImportError as error:
        raise TunerError(f"tuning needs {error.name}: pip install 'tilewright[service]'") from error
    failures, best = dict[Problem, str](), dict(known)
    place = place_of(device_name)
    device = open_device(device_name)
    try:
        for problem in problems:
            try:
                best[problem] = _tune(runtime, problem, device, place, seconds, starts(problem, best))
            except (TunerError, KernelError) as error:
                failures[problem] = f"it could not be tuned: {error}"
    finally:
        device.close()
    return failures


def starts(problem: Problem, known: Mapping[Problem, Configuration]) -> list[Configuration]:
    """What is best for problems of the same kernel and dtype, the nearest shape first, then the likest options."""

    def unlike(other: Problem) -> tuple[float, int]:
        return octaves(problem.shape, other.shape), len(set(problem.option_items) ^ set(other.option_items))

    alike = [one for one in known if (one.kernel, one.dtype) == (problem.kernel, problem.dtype)]
    return list(dict.fromkeys(known[one] for one in sorted(alike, key=unlike)))


def _tune(
    runtime: Runtime,
    problem: Problem,
    device: Device,
    place: TargetDevice,
    seconds: float,
    begin_with: list[Configuration],
) -> Configuration:
    from tilewright.tuner.study import Knowledge  # noqa: PLC0415 - see above
    from tilewright.tuner.tune import Budget, tune  # noqa: PLC0415 - see above

    kernel = runtime.kernels.get(problem.kernel)
    bench = device.bench(kernel, problem, SEED)
    try:
        space = kernel.space(problem, device.model.limits)
        result = tune(bench, kernel, space, Budget(seconds=seconds), seed=SEED, knowledge=Knowledge(starts=begin_with))
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
    return configuration
