"""One problem on the CPU device: arrays in files, compiled configurations verified and sampled in own processes."""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Kernel, Launch, Reference, Scalar, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.arrays import input_kinds, random_arrays, scalar_values
from tilewright.tuner.devices.cpu.build import HostBuilder
from tilewright.tuner.devices.cpu.check import CheckReport, check_program
from tilewright.tuner.devices.cpu.library import LibraryCall, library_call
from tilewright.tuner.devices.cpu.process import Conversation, output_of
from tilewright.tuner.devices.cpu.scratch import PrivateFolder
from tilewright.tuner.devices.device import Bench
from tilewright.tuner.errors import OutOfMemoryError, TunerError
from tilewright.tuner.outcome import L2, Executable, Resources, Verification
from tilewright.tuner.verify import compare, worse

_MIN_SAMPLE_S = 1e-3
"""Shorter kernels are repeated inside a sample: the clock costs 0.2 to 0.5 us a reading."""

_MAX_EVICTED_BYTES = 32 << 20
"""A walk over more takes longer than what is measured; where the last-level cache is larger, "cold" means out of L1 and
L2 only."""

_MAX_WARM_PROGRAMS = 6
"""Sampling processes that stay loaded: those that the finals time in turn (four finalists, the default, the library).
Each holds a copy of the arrays."""

_WIDE_BYTES = 8
"""Of a number in a reference, which is in float64 whatever the kernel computes in."""

_SLOWEST_GFLOPS = 0.1
"""The deadline of a launch grows with the problem: a kernel slower than this is given up."""


@dataclass(frozen=True)
class Program:
    """A compiled configuration on disk."""

    path: Path
    launch: Launch
    resources: Resources
    compile_ms: float
    workspace_bytes: int = 0


@dataclass(frozen=True)
class Case:
    """Inputs of one kind, in files by name, and their reference."""

    sources: dict[str, Path]
    reference: Reference


class CpuBench(Bench):
    """Bench of `CpuDevice`. Arrays lie in files of a private folder, in memory where there is /dev/shm."""

    compiles_ahead = True

    def __init__(
        self, builder: HostBuilder, kernel: Kernel, problem: Problem, seed: int, *, memory_bytes: int, cache_bytes: int
    ) -> None:
        evicted_bytes = min(2 * cache_bytes, _MAX_EVICTED_BYTES)
        needed = needed_bytes(kernel, problem) + _MAX_WARM_PROGRAMS * evicted_bytes
        if needed > memory_bytes:
            raise OutOfMemoryError(
                f"Tuning {problem} on the CPU device takes {needed / 1e9:.3g} GB (arrays, their copies in files and "
                f"processes, references in float64), and {memory_bytes / 1e9:.3g} GB are free. Choose a smaller shape, "
                "or give this machine or container more memory"
            )
        self.run_timeout_s = 10.0
        self.kernel, self.problem = kernel, problem
        self._builder = builder
        self._evicted_bytes = evicted_bytes
        self._warm: OrderedDict[Path | LibraryCall, Conversation] = OrderedDict()
        self._ahead: dict[Configuration, Future[Program]] = {}
        # One core is left to what is being timed.
        self._compilers = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), "compile-ahead")
        self._scalars = scalar_values(kernel, problem)
        self._seed, self._kinds = seed, input_kinds(kernel, problem)
        self._turns = cycle(self._kinds)
        self._cases: dict[str, Case] = {}
        self._folder = PrivateFolder(kernel.memory_bytes(problem) * (1 + len(self._kinds)))
        self._sources = self._case(self._kinds[0]).sources

    def compile(self, configuration: Configuration) -> Program:
        """The program of this configuration."""
        ahead = self._ahead.pop(configuration, None)
        return self._compile(configuration, "fast") if ahead is None else ahead.result()

    def compile_ahead(self, configurations: Sequence[Configuration]) -> None:
        """Starts compiling these on the other cores; a machine with one core compiles when asked."""
        if (os.cpu_count() or 1) > 1:
            for configuration in configurations:
                self._ahead[configuration] = self._compilers.submit(self._compile, configuration, "fast")

    def verify(self, executable: Executable) -> Verification:
        """The worse of two launches: threads by rank and arrays before a guard page, then shuffled and behind one."""
        return self._verify_with(next(self._turns), _program(executable))

    def verify_each_kind(self, executable: Executable) -> tuple[Verification, ...] | None:
        """One for each kind of inputs; the library's call writes its result nowhere that could be read."""
        if isinstance(executable, LibraryCall):
            return None
        return tuple(self._verify_with(kind, _program(executable)) for kind in self._kinds)

    def sample(self, executable: Executable, l2: L2, count: int) -> list[float]:
        """CPU time of one thread, in ms; the process of an executable stays, warm, for the next call."""
        conversation = self._conversation(executable)
        evicted_bytes = self._evicted_bytes if l2 == "cold" else 0
        try:
            answers = conversation.ask(f"{count} {_MIN_SAMPLE_S} {evicted_bytes}", count, self._deadline_s(count + 2))
        except BaseException:
            self._forget(conversation)
            raise
        return [float(answer) * 1e3 for answer in answers]

    def check(self, configuration: Configuration, mode: str) -> CheckReport:
        """A sanitizer's findings: mode "address" for accesses out of bounds, "thread" for missing barriers.

        Raises NoCompilerError where this compiler has no such sanitizer.
        """
        program = self._compile(configuration, mode)
        source = self.kernel.source(configuration.variant)
        return check_program(self._command(program, "verify", "checked"), mode, source, 10 * self._deadline_s(2))

    def library(self) -> LibraryCall | None:
        """OpenBLAS of NumPy on one thread, for the kernels that it has."""
        return library_call(self.problem, self._scalars, self._sources)

    def library_name(self) -> str | None:
        """OpenBLAS's version and routine."""
        call = self.library()
        return call.name if call else None

    def close(self) -> None:
        """Ends the sampling processes and removes the files."""
        self._compilers.shutdown(cancel_futures=True)
        while self._warm:
            self._warm.popitem()[1].close()
        self._folder.close()

    def _case(self, kind: str) -> Case:
        """The inputs of that kind in files, made when first asked for."""
        if kind not in self._cases:
            arrays = random_arrays(self.kernel, self.problem, self._seed, kind)
            sources = {name: self._folder.path / f"{kind}.{name}.bin" for name in arrays}
            for name, array in arrays.items():
                array.tofile(sources[name])
            self._cases[kind] = Case(sources, self.kernel.reference(self.problem, arrays, self._scalars))
        return self._cases[kind]

    def _verify_with(self, kind: str, program: Program) -> Verification:
        case, dtype = self._case(kind), self.problem.dtype
        output_of(self._command(program, "verify", "out", case.sources), self._deadline_s(2))
        first, second = (self._output(f"out.{i}", case.reference.value.shape) for i in (0, 1))
        verification = compare(first, case.reference, dtype)
        if not np.array_equal(first, second):
            verification = worse(verification, compare(second, case.reference, dtype))
        return replace(verification, inputs=kind)

    def _compile(self, configuration: Configuration, mode: str) -> Program:
        path, compile_ms = self._builder.program(self.kernel, self.problem, configuration, mode)
        variant = self.kernel.variant(configuration.variant)
        shared_bytes = variant.shared_bytes(configuration.values, self.problem)
        launch = variant.launch(configuration.values, self.problem)
        workspace_bytes = variant.workspace_bytes(configuration.values, self.problem)
        return Program(path, launch, Resources(shared_bytes=shared_bytes), compile_ms, workspace_bytes)

    def _command(
        self, program: Program, task: str, destination: str = "", sources: Mapping[str, Path] | None = None
    ) -> list[str]:
        launch = program.launch
        words = [str(program.path), task, *map(str, (*launch.grid, *launch.block, launch.shared_bytes))]
        for argument in self.kernel.arguments:
            if isinstance(argument, Scalar):
                words += ["scalar", repr(self._scalars[argument.name])]
            else:
                words += ["array", argument.name, *self._array_words(argument, destination, sources or self._sources)]
        if program.workspace_bytes:
            words += ["workspace", str(program.workspace_bytes)]
        return words

    def _array_words(self, tensor: Tensor, destination: str, sources: Mapping[str, Path]) -> tuple[str, str, str, str]:
        count = int(np.prod(tensor.shape(self.problem)))
        access = "const" if tensor.role == "input" else "mutable"
        source = str(sources.get(tensor.name, ""))
        is_result = destination and tensor is self.kernel.output
        target = str(self._folder.path / destination) if is_result else ""
        return str(count * self.problem.item_bytes), access, source, target

    def _conversation(self, executable: Executable) -> Conversation:
        key = executable if isinstance(executable, LibraryCall) else _program(executable).path
        # One that ended between two questions did not end by the kernel's doing (the thread that started it is gone).
        if key in self._warm and not self._warm[key].is_alive:
            self._warm.pop(key).close()
        if key not in self._warm:
            while len(self._warm) >= _MAX_WARM_PROGRAMS:
                self._warm.popitem(last=False)[1].close()
            if isinstance(executable, LibraryCall):
                self._warm[key] = Conversation(executable.command, executable.environment)
            else:
                self._warm[key] = Conversation(self._command(_program(executable), "sample"))
        self._warm.move_to_end(key)
        return self._warm[key]

    def _forget(self, conversation: Conversation) -> None:
        conversation.close()
        for key in [k for k, kept in self._warm.items() if kept is conversation]:
            del self._warm[key]

    def _deadline_s(self, launches: int) -> float:
        slowest_s = self.kernel.flops(self.problem) / (_SLOWEST_GFLOPS * 1e9)
        return self.run_timeout_s + launches * slowest_s

    def _output(self, name: str, shape: tuple[int, ...]) -> NDArray[np.floating]:
        path = self._folder.path / name
        out = np.fromfile(path, dtype=self.problem.dtype).reshape(shape)
        path.unlink()
        return out


def needed_bytes(kernel: Kernel, problem: Problem) -> int:
    """Memory that a bench of the problem takes at its fullest, in all its processes and its files in memory.

    Each kind of inputs has files and a reference (values and magnitudes), each process a copy of the arrays. The last
    reference to be made has, beside its inputs, those and its results in float64, and their absolute values.
    """
    inputs = sum(math.prod(t.shape(problem)) for t in kernel.tensors if t.is_read(problem))
    outputs = math.prod(kernel.output.shape(problem))
    kinds = len(input_kinds(kernel, problem))
    files = (kinds * inputs + 2 * outputs) * problem.item_bytes
    references = kinds * outputs * 2 * _WIDE_BYTES
    processes = (_MAX_WARM_PROGRAMS + 1) * kernel.memory_bytes(problem)  # one more verifies
    making = inputs * problem.item_bytes + (inputs + outputs) * 2 * _WIDE_BYTES
    return files + references + processes + making


def _program(executable: Executable) -> Program:
    if not isinstance(executable, Program):
        raise TunerError(f"not a program of the CPU device: {executable}")
    return executable
