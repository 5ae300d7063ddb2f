"""One problem on the CPU device: arrays in files, compiled configurations verified and sampled in own processes."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Arrays, Kernel, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.arrays import drawn_again, input_kinds, random_arrays, scalar_values
from tilewright.tuner.devices.cpu.build import HostBuilder
from tilewright.tuner.devices.cpu.check import CheckReport, check_program
from tilewright.tuner.devices.cpu.inspected import Case, InspectedProgram, Inspection
from tilewright.tuner.devices.cpu.library import LibraryCall, library_call
from tilewright.tuner.devices.cpu.memory import MOST_WARM_PROGRAMS, cases_kept, needed_bytes
from tilewright.tuner.devices.cpu.process import Conversation
from tilewright.tuner.devices.cpu.runner import Program, ProgramRunner
from tilewright.tuner.devices.cpu.scratch import PrivateFolder
from tilewright.tuner.devices.device import Bench
from tilewright.tuner.errors import OutOfMemoryError, TrialFailure, TunerError, first_error
from tilewright.tuner.line_kinds import SHARED, bound_width, shared_pair
from tilewright.tuner.loop.expected import Expected, expected_by, expected_of, untrusted
from tilewright.tuner.loop.verify import worse
from tilewright.tuner.outcome import ALL_KINDS, L2, Executable, KindsPart, Resources, Verification

_MIN_SAMPLE_S = 1e-3
"""Shorter kernels are repeated inside a sample: the clock costs 0.2 to 0.5 us a reading."""

_MAX_EVICTED_BYTES = 32 << 20
"""A walk over more takes longer than what is measured; where the last-level cache is larger, "cold" means out of L1 and
L2 only."""

_FINITE_BYTES = (0x7B, 0xC1)
"""What each byte of an output may be before the second launch: 1.3e36 in float32, or -12.08. Before the first it is
NaN, which fmaxf drops."""

_REPEATED_S = 0.3
"""CPU time for further launches of one that may win; each must leave what the second has left."""

_MOST_DRAWN_AGAIN = 6
"""The further inputs that a program is timed with before repeated launches count as too fast."""


class CpuBench(Bench):
    """Bench of `CpuDevice`. Arrays lie in files of a private folder, in memory where there is /dev/shm."""

    compiles_ahead = True

    def __init__(
        self,
        builder: HostBuilder,
        kernel: Kernel,
        problem: Problem,
        seed: int,
        *,
        memory_bytes: int,
        cache_bytes: int,
        trusted: Configuration | None = None,
    ) -> None:
        evicted_bytes = min(2 * cache_bytes, _MAX_EVICTED_BYTES)
        needed = needed_bytes(kernel, problem) + MOST_WARM_PROGRAMS * evicted_bytes
        if needed > memory_bytes:
            raise OutOfMemoryError(
                f"Tuning {problem} on the CPU device takes {needed / 1e9:.3g} GB (arrays, their copies in files and "
                f"processes, references in float64), and {memory_bytes / 1e9:.3g} GB are free. Choose a smaller shape, "
                "or give this machine or container more memory"
            )
        self.kernel, self.problem, self._trusted = kernel, problem, trusted
        self._builder = builder
        self._evicted_bytes = evicted_bytes
        self._warm: OrderedDict[Path | LibraryCall, Conversation] = OrderedDict()
        self._inspected: dict[Conversation, InspectedProgram] = {}
        self._names: dict[Conversation, str] = {}  # what the files of their outputs begin with
        self._processes_begun = itertools.count()
        self._ahead: dict[Configuration, Future[Program]] = {}
        # One core is left to what is being timed.
        self._compilers = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), "compile-ahead")
        self._scalars = scalar_values(kernel, problem)
        self._seed, self._kinds = seed, input_kinds(kernel, problem)
        self._turns = cycle(self._kinds)
        self._timed_kind = self._kinds[0]
        self._cases: dict[str, Case] = {}
        self._folder = PrivateFolder(kernel.memory_bytes(problem) * (2 + cases_kept(kernel, problem)))
        self.runner = ProgramRunner(kernel, problem, self._folder.path, evicted_bytes)
        self._sources = self._case(self._kinds[0]).sources

    @property
    def expected(self) -> Expected:
        """The expected outputs for the first kind of inputs."""
        return self._case(self._kinds[0]).expected

    def compile(self, configuration: Configuration) -> Program:
        """The program of this configuration."""
        ahead = self._ahead.pop(configuration, None)
        return self._compile(configuration, "fast") if ahead is None else ahead.result()

    def compile_ahead(self, configurations: Sequence[Configuration]) -> None:
        """Starts compiling these on the other cores; with one core, each compiles when it is asked for."""
        if (os.cpu_count() or 1) > 1:
            for configuration in configurations:
                self._ahead[configuration] = self._compilers.submit(self._compile, configuration, "fast")

    def verify(self, executable: Executable) -> Verification:
        """The worse of two launches: first threads by rank and guards behind arrays, then shuffled and guards ahead."""
        kind = next(kind for kind in self._turns if self._case(kind).counts(kind))
        return self._verify_with(kind, _program(executable))

    def verify_each_kind(self, executable: Executable, part: KindsPart = ALL_KINDS) -> tuple[Verification, ...] | None:
        """One verification for each kind of inputs; None for the library's call, whose result cannot be read."""
        if isinstance(executable, LibraryCall):
            return None
        first, *others = (kind for kind in part.of_all(self._kinds) if self._case(kind).counts(kind))
        repeated = self._verify_with(first, _program(executable), _REPEATED_S)
        return repeated, *(self._verify_with(kind, _program(executable)) for kind in others)

    def remarks(self, executable: Executable) -> tuple[Verification, ...]:
        """Findings with inputs that do not count: see `Expected.counts`."""
        kinds = (kind for kind in self._kinds if not self._case(kind).counts(kind))
        verifications = (self._verify_with(kind, _program(executable)) for kind in kinds)
        return tuple(verification for verification in verifications if not verification.is_right)

    def results(self, configuration: Configuration) -> tuple[Arrays, Arrays]:
        """Every output by name, of two launches; outputs hold other bytes before each, so what agrees was written."""
        case, program = self._case(self._kinds[0]), self._compile(configuration, "fast")
        read = {name: path for name, path in case.sources.items() if self._tensor(name).is_read(self.problem)}
        filled = dict(read)
        for tensor in self.kernel.outputs:
            if tensor.name not in read:
                filled[tensor.name] = self._folder.path / f"filled.{tensor.name}.bin"
                filled[tensor.name].write_bytes(bytes(_FINITE_BYTES[:1]) * tensor.size_bytes(self.problem))
        first, second = (self.runner.outputs(program, sources, case.scalars)[0] for sources in (read, filled))
        return first, second

    def sample(self, executable: Executable, l2: L2, count: int) -> list[float]:
        """CPU time of one thread, in ms; the process of an executable stays, warm, for the next call."""
        conversation = self._conversation(executable)
        evicted_bytes = self._evicted_bytes if l2 == "cold" else 0
        inspected = self._inspected.get(conversation)
        try:
            if inspected is not None:
                samples = inspected.sample(self._timed_kind, count, _MIN_SAMPLE_S, evicted_bytes)
                return [sample * 1e3 for sample in samples]
            answers = conversation.ask(
                f"{count} {_MIN_SAMPLE_S} {evicted_bytes}", count, self.runner.deadline_s(count + 2, executable)
            )
        except BaseException:
            self._forget(conversation)
            raise
        return [float(answer) * 1e3 for answer in answers]

    def check(self, configuration: Configuration, mode: str) -> CheckReport:
        """A sanitizer's findings: mode "address" for accesses out of bounds, "thread" for missing barriers.

        Raises NoCompilerError where this compiler has no such sanitizer.
        """
        program = self._compile(configuration, mode)
        command = self.runner.command(program, "verify 1 255 0", "checked", self._sources, self._scalars)
        source, deadline_s = self.kernel.source(configuration.variant), 10 * self.runner.deadline_s(2, program)
        return check_program(command, mode, source, deadline_s)

    def renew(self, turn: int) -> None:
        """Inputs that are drawn from another seed, in odd turns."""
        self._timed_kind = next(self._more_kinds()) if turn % 2 else self._kinds[0]

    def library(self, *, at_any_size: bool = False) -> LibraryCall | None:  # noqa: ARG002 - it is one
        """OpenBLAS of NumPy on one thread, for the kernels that it has."""
        return library_call(self.problem, self._scalars, self._sources)

    def library_name(self, *, at_any_size: bool = False) -> str | None:  # noqa: ARG002
        """The version of OpenBLAS and its routine; None where the library is not used."""
        call = self.library()
        return call.name if call else None

    def close(self) -> None:
        """Ends the sampling processes and removes the files."""
        self._compilers.shutdown(cancel_futures=True)
        while self._warm:
            self._end(self._warm.popitem()[1])
        self._folder.close()

    def _case(self, kind: str) -> Case:
        """The inputs of that kind in files, made when first asked for."""
        if kind not in self._cases:
            arrays = random_arrays(self.kernel, self.problem, self._seed, kind)
            scalars = scalar_values(self.kernel, self.problem, kind)
            sources = {name: self._stored(kind, name, array) for name, array in arrays.items()}
            pair = shared_pair(self.kernel, self.problem) if kind == SHARED else None
            if pair is not None:
                sources[pair[1].name] = Path(f"={pair[0].name}")
            if self._trusted is None:
                width = bound_width(self.kernel, self.problem, kind)
                expected = expected_of(self.kernel, self.problem, arrays, scalars).widened(width)
            else:
                expected = self._expected_by(self._trusted, sources, scalars)
            for tensor in self.kernel.outputs:
                poison = expected.poison(tensor)
                if poison is not None:
                    poisoned = tensor.layout(self.problem).placed(poison)
                    sources[tensor.name] = self._stored(kind, tensor.name, poisoned)
            self._cases[kind] = Case(sources, expected, scalars)
            while len(self._cases) > cases_kept(self.kernel, self.problem):
                self._forget_case(next(kind for kind in self._cases if kind != self._kinds[0]))
        return self._cases[kind]

    def _forget_case(self, kind: str) -> None:
        for path in self._cases.pop(kind).sources.values():
            if path.parent == self._folder.path:
                path.unlink(missing_ok=True)

    def _stored(self, kind: str, name: str, array: NDArray[Any]) -> Path:
        path = self._folder.path / f"{kind}.{name}.bin"
        self._tensor(name).layout(self.problem).memory_of(array).tofile(path)
        return path

    def _tensor(self, name: str) -> Tensor:
        (tensor,) = (tensor for tensor in self.kernel.tensors if tensor.name == name)
        return tensor

    def _expected_by(
        self, configuration: Configuration, sources: Mapping[str, Path], scalars: Mapping[str, float]
    ) -> Expected:
        """The configuration's outputs as expected values; raises OwnFunctionError where it fails or two runs differ."""
        try:
            first, second = self.runner.outputs(self._compile(configuration, "fast"), sources, scalars)
        except TrialFailure as failure:
            raise untrusted(
                self.kernel, configuration, f"ended as {failure.outcome}: {first_error(failure.log)}"
            ) from failure
        expected = expected_by(self.kernel, self.problem, configuration, first)
        again = expected.compare(second)
        if not again.is_right:
            raise untrusted(self.kernel, configuration, f"computed twice, differs from itself: {again.message()}")
        return expected

    def _verify_with(self, kind: str, program: Program, repeated_s: float = 0.0) -> Verification:
        case = self._case(kind)
        finite = _FINITE_BYTES[self._kinds.index(kind) % 2]
        first, second = self.runner.outputs(program, case.sources, case.scalars, finite, repeated_s)
        verification = case.expected.compare(first)
        if not all(np.array_equal(first[name], second[name]) for name in first):
            verification = worse(verification, case.expected.compare(second))
        return replace(verification, inputs=kind)

    def _compile(self, configuration: Configuration, mode: str) -> Program:
        path, compile_ms = self._builder.program(self.kernel, self.problem, configuration, mode)
        variant = self.kernel.variant(configuration.variant)
        shared_bytes = variant.shared_bytes(configuration.values, self.problem)
        launches = tuple(one for _, one in variant.launches("", configuration.values, self.problem))
        workspace_bytes = variant.workspace_bytes(configuration.values, self.problem)
        return Program(path, configuration, launches, Resources(shared_bytes=shared_bytes), compile_ms, workspace_bytes)

    def _conversation(self, executable: Executable) -> Conversation:
        key = executable if isinstance(executable, LibraryCall) else _program(executable).path
        # One that ended between two questions did not end by the kernel's doing (the thread that started it is gone).
        if key in self._warm and not self._warm[key].is_alive:
            self._end(self._warm.pop(key))
        if key not in self._warm:
            while len(self._warm) >= MOST_WARM_PROGRAMS:
                self._end(self._warm.popitem(last=False)[1])
            if isinstance(executable, LibraryCall):
                self._warm[key] = Conversation(executable.command, executable.environment)
            else:
                self._warm[key] = self._begun(_program(executable))
        self._warm.move_to_end(key)
        return self._warm[key]

    def _begun(self, program: Program) -> Conversation:
        """A started process of the program, for timing; Triton's interpreter is not watched there."""
        if self.kernel.is_triton:
            return self._conversing(program, "")
        name = f"timed{next(self._processes_begun)}"
        conversation = self._conversing(program, name)
        self._names[conversation] = name
        self._inspected[conversation] = InspectedProgram(
            conversation,
            Inspection(
                case_of=self._case,
                outputs=lambda number: self.runner.results(program, name, number, keep=True),
                first=self._first_kinds(),
                more=self._more_kinds,
                constants={tensor.name: tensor.symbol for tensor in self.kernel.constants},
                deadline_s=lambda launches: self.runner.deadline_s(launches, program),
            ),
        )
        return conversation

    def _conversing(self, program: Program, destination: str) -> Conversation:
        command = self.runner.command(program, "sample", destination, self._sources, self._scalars)
        return Conversation(command, None, self.runner.allowance(program))

    def _first_kinds(self) -> tuple[str, ...]:
        """The first inputs of a process for timing: those of another kind, then those that are timed."""
        others = (kind for kind in self._kinds[1:] if self._case(kind).counts(kind) and self._case(kind).can_be_loaded)
        return *islice(others, 1), self._kinds[0]

    def _more_kinds(self) -> Iterator[str]:
        """Inputs drawn like those that are timed, but different."""
        return (drawn_again(self._kinds[0], number) for number in range(1, _MOST_DRAWN_AGAIN + 1))

    def _end(self, conversation: Conversation) -> None:
        """Ends the process for timing, and deletes its files."""
        conversation.close()
        if self._inspected.pop(conversation, None) is not None:
            for path in self.runner.results_folder.glob(f"{self._names.pop(conversation)}.*"):
                path.unlink(missing_ok=True)

    def _forget(self, conversation: Conversation) -> None:
        self._end(conversation)
        for key in [k for k, kept in self._warm.items() if kept is conversation]:
            del self._warm[key]


def _program(executable: Executable) -> Program:
    if not isinstance(executable, Program):
        raise TunerError(f"not a program of the CPU device: {executable}")
    return executable
