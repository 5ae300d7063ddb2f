"""Tunes problems in this process, because the application asked for it; answers stay on this machine's disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import zip_longest

from tilewright.kernels.errors import KernelError
from tilewright.kernels.problem import Problem, octaves
from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.compile.compilation import Compilation, arch_of
from tilewright.tuner.compile.compiler import default_compiler
from tilewright.tuner.devices.device import Device
from tilewright.tuner.errors import TunerError
from tilewright.tuner.runtime.choice import TargetDevice
from tilewright.tuner.runtime.launches.devices import place_of
from tilewright.tuner.runtime.runtime import Runtime

SEED = 0
LIKELY = 4
"""The best configurations of like problems that are tried first; each costs a trial."""


def tune_now(
    runtime: Runtime,
    problems: Iterable[Problem],
    device_name: str,
    seconds: float,
    known: Mapping[Problem, Configuration],
) -> dict[Problem, str]:
    """Searches each problem for so many seconds; the reasons of those without a result.

    A search begins with what is best for the problems like it, of those that are known and those before it, then with
    every variant's own start, and its seconds when these are compiled: a compiler takes longer for the fastest variants
    than a second. A GPU is measured in a child process of its own, which needs PyCUDA. Raises TunerError where that
    cannot be.
    """
    try:
        from tilewright.tuner.devices.local import open_device  # noqa: PLC0415 - a light installation may lack its needs
        from tilewright.tuner.loop import tune as _  # noqa: F401, PLC0415 - as above, what the sessions import
    except ImportError as error:
        raise TunerError(f"tuning needs {error.name}: pip install 'tilewright[service]'") from error
    failures = dict[Problem, str]()
    session = _Session(runtime, open_device(device_name), place_of(device_name), seconds, dict(known))
    ordered = list(problems)
    try:
        for one in ordered[:1]:
            session.compile_ahead(one)
        for problem, following in zip_longest(ordered, ordered[1:]):
            if following is not None:
                session.compile_ahead(following)
            try:
                session.tune(problem)
            except (TunerError, KernelError) as error:
                failures[problem] = f"it could not be tuned: {error}"
    finally:
        session.device.close()
    return failures


def starts(problem: Problem, known: Mapping[Problem, Configuration]) -> list[Configuration]:
    """The best of problems of the same kernel and dtype, the nearest shape first, then the likest options."""

    def unlike(other: Problem) -> tuple[float, int]:
        return octaves(problem.shape, other.shape), len(set(problem.option_items) ^ set(other.option_items))

    alike = [one for one in known if (one.kernel, one.dtype) == (problem.kernel, problem.dtype)]
    return list(dict.fromkeys(known[one] for one in sorted(alike, key=unlike)))


@dataclass(frozen=True)
class _Session:
    """A device to tune for, and the best configurations of problems so far."""

    runtime: Runtime
    device: Device
    place: TargetDevice
    seconds: float
    best: dict[Problem, Configuration]

    def compile_ahead(self, problem: Problem) -> None:
        """Compiles, in the background, the configurations that a search of this problem begins with."""
        from tilewright.tuner.devices.isolated.device import IsolatedDevice  # noqa: PLC0415 - see above

        pool = self.device.pool if isinstance(self.device, IsolatedDevice) else None
        if pool is None:
            return
        with contextlib.suppress(TunerError, KernelError):  # they show when it is tuned
            arch = arch_of(self.device.model.limits.compute_capability)
            kernel, compiler = self.runtime.kernels.get(problem.kernel), default_compiler()
            for one in self._first(problem, self._space(problem)):
                pool.submit(Compilation.of(kernel, problem, one, arch, compiler))

    def tune(self, problem: Problem) -> None:
        """Searches the problem; the answer is then on disk."""
        from tilewright.tuner.loop.study import Knowledge  # noqa: PLC0415 - see above
        from tilewright.tuner.loop.tune import Budget, tune  # noqa: PLC0415 - see above

        kernel, space = self.runtime.kernels.get(problem.kernel), self._space(problem)
        first = self._first(problem, space)
        bench = self.device.bench(kernel, problem, SEED)
        try:
            waiting = first if bench.compiles_ahead else []
            bench.compile_ahead(waiting)
            while waiting:
                ready = bench.ready(waiting, wait=True)
                waiting = [one for one in waiting if one not in ready]
            known = Knowledge(starts=first)
            result = tune(bench, kernel, space, Budget(seconds=self.seconds), seed=SEED, knowledge=known)
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
        self.runtime.learn(problem, self.place, answer)
        self.best[problem] = configuration

    def _space(self, problem: Problem) -> SearchSpace:
        return self.runtime.kernels.get(problem.kernel).space(problem, self.device.model.limits)

    def _first(self, problem: Problem, space: SearchSpace) -> list[Configuration]:
        """The default, the best of the likest problems, then the variants' own starts."""
        first = self.runtime.kernels.get(problem.kernel).first_configurations(space)
        likely = [one for one in starts(problem, self.best) if one in space][:LIKELY]
        return list(dict.fromkeys([*first[:1], *likely, *first[1:]]))
