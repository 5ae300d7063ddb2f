"""Recorded trials as a device, so that a search can be tried, and tested, without a GPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.kernels.kernel import Kernel, Launch, Option, Reference, Tensor, Variant
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration, Constraint, Parameter, Predicate
from tilewright.tuner.devices.device import Bench, Device, DeviceModel, Environment
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.outcome import L2, Executable, Outcome, Resources, Verification
from tilewright.tuner.recorded.recordings import Entry, Recording

_ROOMY = Limits(compute_capability=(9, 0), multiprocessors=1, memory_bytes=1 << 40)
"""Limits that exclude nothing: what was recorded did run."""

_LATE = frozenset({Outcome.LAUNCH_FAILED, Outcome.TIMED_OUT, Outcome.DEVICE_LOST, Outcome.INTERRUPTED})


def replay_kernel(recording: Recording) -> Kernel:
    """A kernel whose search space is the recording. Its FLOPs and bytes are 0: nobody recorded them."""
    variants = tuple(_variant(recording, name, parameters) for name, parameters in recording.parameters.items())
    return Kernel(
        name=recording.kernel,
        doc=f"Recorded on {recording.device_name}.",
        folder=Path(),
        axes=tuple(recording.shape),
        dtypes=(recording.dtype,),
        options=tuple(Option(name, (value,), value) for name, value in recording.options.items()),
        arguments=(Tensor("out", "output", lambda _problem: (1,)),),
        variants=variants,
        flops=lambda _problem: 0,
        bytes_moved=lambda _problem: 0,
        reference=lambda _problem, _arrays, _scalars: Reference(np.zeros(1), np.zeros(1), 1),
        default_variant=variants[0].name,
        example_shape=recording.shape,
    )


def _variant(recording: Recording, name: str, parameters: tuple[Parameter, ...]) -> Variant:
    names = [p.name for p in parameters]
    recorded = {
        tuple(configuration.values[n] for n in names)
        for configuration in recording.entries
        if configuration.variant == name
    }
    is_recorded: Predicate = lambda c, _problem, _limits: tuple(c[n] for n in names) in recorded  # noqa: E731
    return Variant(
        name=name,
        source="",
        launch=lambda _values, _problem: Launch((1, 1, 1), (1, 1, 1)),
        parameters=parameters,
        constraints=(Constraint("was recorded", is_recorded),),
    )


@dataclass
class ReplayExecutable:
    """A recorded configuration, and how many samples of each L2 state were taken so far."""

    entry: Entry
    resources: Resources
    compile_ms: float
    taken: Counter[str]


class ReplayBench(Bench):
    """A bench that answers with the record: the same samples in the same order, from the start after the last.

    Where one L2 state was not recorded, the other answers for it. `drawn_ms` sums up the times handed out.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.drawn_ms = 0.0
        self.compiled: list[Configuration] = []

    def compile(self, configuration: Configuration) -> ReplayExecutable:
        """The recorded configuration; raises the failure it was recorded with."""
        self.compiled.append(configuration)
        entry = self._recording.entries[configuration]
        if entry.outcome in {Outcome.COMPILE_FAILED, Outcome.CONSTRAINT_VIOLATED}:
            raise TrialFailure(entry.outcome, entry.log)
        return ReplayExecutable(entry, Resources(), entry.compile_ms, Counter())

    def verify(self, executable: Executable) -> Verification:
        """Right or wrong as recorded."""
        entry = _replayed(executable).entry
        if entry.outcome in _LATE:
            raise TrialFailure(entry.outcome, entry.log)
        if entry.outcome is Outcome.WRONG_RESULT:
            return Verification(bound_ratio=float("inf"), wrong=1)
        return Verification(bound_ratio=0.0, wrong=0)

    def sample(self, executable: Executable, l2: L2, count: int) -> list[float]:
        """The next recorded samples."""
        replayed = _replayed(executable)
        recorded = replayed.entry.samples_ms.get(l2) or next(iter(replayed.entry.samples_ms.values()), ())
        if not recorded:
            raise TrialFailure(Outcome.LAUNCH_FAILED, "no times were recorded")
        start = replayed.taken[l2]
        replayed.taken[l2] += count
        samples = [recorded[i % len(recorded)] for i in range(start, start + count)]
        self.drawn_ms += sum(samples)
        return samples

    def close(self) -> None:
        """Does nothing: a recording holds no device."""


class ReplayDevice:
    """The device that a recording stands for; it can run no other kernel than `replay_kernel` of it."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        slug = "replay:" + "-".join(recording.device_name.lower().split())
        self.uuid = slug
        self.model = DeviceModel(
            slug=slug,
            name=f"{recording.device_name} (recorded)",
            kind="cuda",
            limits=_ROOMY,
            l2_bytes=0,
            datasheet_gflops={},
            datasheet_gb_per_s=None,
        )
        self.environment = Environment(
            driver="recorded",
            toolkit="recorded",
            compiler="recorded",
            compiler_version="",
            runtime="replay",
            clocks="unknown",
        )

    def bench(self, kernel: Kernel, problem: Problem, seed: int) -> ReplayBench:  # noqa: ARG002 - nothing is random
        """A bench over the recording; raises ValueError for another kernel or problem."""
        if kernel.name != self._recording.kernel or problem.stated_shape != dict(self._recording.shape):
            raise ValueError(
                f"the recording is of {self._recording.kernel} {dict(self._recording.shape)}, not of {problem}"
            )
        return ReplayBench(self._recording)

    def close(self) -> None:
        """Does nothing: a recording holds no device."""


def _replayed(executable: Executable) -> ReplayExecutable:
    if not isinstance(executable, ReplayExecutable):
        raise TypeError(f"not an executable of this bench: {executable!r}")
    return executable


def replay(recording: Recording) -> tuple[Device, Kernel, Problem]:
    """The device, its kernel and the recorded problem."""
    kernel = replay_kernel(recording)
    return ReplayDevice(recording), kernel, kernel.problem(recording.shape, recording.dtype, recording.options)
