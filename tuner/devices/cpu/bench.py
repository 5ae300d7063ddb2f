"""One problem on the CPU device: arrays in files, compiled configurations verified and sampled in own processes."""

from __future__ import annotations

import itertools
import math
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.dtypes import ITEM_BYTES
from tilewright.kernels.kernel import Arrays, Kernel, Launch, Scalar, Tensor, Texture
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.arrays import drawn_again, input_kinds, random_arrays, scalar_values
from tilewright.tuner.devices.cpu.build import HostBuilder
from tilewright.tuner.devices.cpu.check import CheckReport, check_program
from tilewright.tuner.devices.cpu.compile import blocks_may_meet
from tilewright.tuner.devices.cpu.inspected import Case, InspectedProgram, Inspection
from tilewright.tuner.devices.cpu.library import LibraryCall, library_call
from tilewright.tuner.devices.cpu.process import Allowance, Conversation, output_of
from tilewright.tuner.devices.cpu.scratch import PrivateFolder
from tilewright.tuner.devices.device import Bench
from tilewright.tuner.errors import OutOfMemoryError, TrialFailure, TunerError, first_error
from tilewright.tuner.line_kinds import SHARED, bound_width, shared_pair
from tilewright.tuner.loop.expected import Expected, expected_by, expected_of, untrusted
from tilewright.tuner.loop.verify import worse
from tilewright.tuner.outcome import L2, Executable, Outcome, Resources, Verification
from tilewright.tuner.triton.interpreter import command_of

_MIN_SAMPLE_S = 1e-3
"""Shorter kernels are repeated inside a sample: the clock costs 0.2 to 0.5 us a reading."""

_MAX_EVICTED_BYTES = 32 << 20
"""A walk over more takes longer than what is measured; where the last-level cache is larger, "cold" means out of L1 and
L2 only."""

_MAX_WARM_PROGRAMS = 6
"""Sampling processes that stay loaded: those that the finals time in turn (four finalists, the default, the library).
Each holds a copy of the arrays."""

_WIDE_BYTES = 8
"""Bytes of a number in a reference, which is in float64 whatever the kernel computes in."""

_WORK_OF_A_PROCESS = 1e8
"""Operations, or bytes where those are more, that are worth a process beside the first: 20 to 200 ms of CPU time, while
starting one and sharing the arrays with it takes some ms."""

_FINITE_BYTES = (0x7B, 0xC1)
"""What each byte of an output may be before the second launch: 1.3e36 in float32, or -12.08. Before the first it is
NaN, which fmaxf drops."""

_REPEATED_S = 0.3
"""CPU time for further launches of one that may win; each must leave what the second has left."""

_MOST_DRAWN_AGAIN = 6
"""With so many further inputs a program is timed before repeated launches count as too fast."""

_SPARE_BYTES, _SPARE_FILE_BYTES = 2 << 30, 1 << 20
"""Memory beside the arrays: stacks of a block's threads, and of Triton's interpreter its modules."""

_CASES_KEPT_BYTES, _LEAST_CASES_KEPT = 1 << 28, 8
"""Inputs and references of kinds that stay: all, where they are small, else so many of the latest."""

_SLOWEST_GFLOPS = 0.1
"""The deadline of a launch grows with the problem: a kernel slower than this is given up."""

_SLOWEST_INTERPRETED_S = 0.2
"""What a program of a Triton kernel's grid is granted beside that: some ten to a hundred operations of NumPy."""


@dataclass(frozen=True)
class Program:
    """A compiled configuration on disk."""

    path: Path
    configuration: Configuration
    launches: tuple[Launch, ...]
    resources: Resources
    compile_ms: float
    workspace_bytes: int = 0


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
        needed = needed_bytes(kernel, problem) + _MAX_WARM_PROGRAMS * evicted_bytes
        if needed > memory_bytes:
            raise OutOfMemoryError(
                f"Tuning {problem} on the CPU device takes {needed / 1e9:.3g} GB (arrays, their copies in files and "
                f"processes, references in float64), and {memory_bytes / 1e9:.3g} GB are free. Choose a smaller shape, "
                "or give this machine or container more memory"
            )
        self.run_timeout_s = 10.0
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
        self._folder = PrivateFolder(kernel.memory_bytes(problem) * (2 + _cases_kept(kernel, problem)))
        self._results_folder = self._folder.path / "results"
        self._results_folder.mkdir()
        self._sources = self._case(self._kinds[0]).sources

    @property
    def expected(self) -> Expected:
        """What outputs must be for the first kind of inputs."""
        return self._case(self._kinds[0]).expected

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
        kind = next(kind for kind in self._turns if self._case(kind).counts(kind))
        return self._verify_with(kind, _program(executable))

    def verify_each_kind(self, executable: Executable) -> tuple[Verification, ...] | None:
        """One for each kind of inputs; the library's call writes its result nowhere that could be read."""
        if isinstance(executable, LibraryCall):
            return None
        first, *others = (kind for kind in self._kinds if self._case(kind).counts(kind))
        repeated = self._verify_with(first, _program(executable), _REPEATED_S)
        return repeated, *(self._verify_with(kind, _program(executable)) for kind in others)

    def remarks(self, executable: Executable) -> tuple[Verification, ...]:
        """What is wrong with inputs that do not count: see `Expected.counts`."""
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
        first, second = (self._outputs(program, sources, case.scalars)[0] for sources in (read, filled))
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
                f"{count} {_MIN_SAMPLE_S} {evicted_bytes}", count, self._deadline_s(count + 2, executable)
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
        source = self.kernel.source(configuration.variant)
        return check_program(
            self._command(program, "verify 1 255 0", "checked"), mode, source, 10 * self._deadline_s(2, program)
        )

    def renew(self, turn: int) -> None:
        """Inputs that are drawn from another seed, in odd turns."""
        self._timed_kind = next(self._more_kinds()) if turn % 2 else self._kinds[0]

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
            while len(self._cases) > _cases_kept(self.kernel, self.problem):
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
        """What that configuration computes; raises OwnFunctionError where it fails, or does not agree with itself."""
        try:
            first, second = self._outputs(self._compile(configuration, "fast"), sources, scalars)
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
        first, second = self._outputs(program, case.sources, case.scalars, finite, repeated_s)
        verification = case.expected.compare(first)
        if not all(np.array_equal(first[name], second[name]) for name in first):
            verification = worse(verification, case.expected.compare(second))
        return replace(verification, inputs=kind)

    def _outputs(
        self,
        program: Program,
        sources: Mapping[str, Path],
        scalars: Mapping[str, float],
        finite: int = 0xFF,
        repeated_s: float = 0.0,
    ) -> tuple[Arrays, Arrays]:
        """Every output by name, of two launches; before the second their bytes may be `finite`, which is no NaN."""
        task = f"verify {self._processes(program)} {finite} {repeated_s}"
        command = self._command(program, task, "out", sources, scalars)
        output_of(command, self._deadline_s(3, program) + repeated_s, self._allowance(program))
        return self._results(program, "out", 0), self._results(program, "out", 1)

    def _results(self, program: Program, destination: str, number: int, *, keep: bool = False) -> Arrays:
        """Every output of a process by name, as far as the program writes it: from the files with that number."""
        names = {tensor.name: f"{destination}.{tensor.name}.{number}" for tensor in self.kernel.outputs}
        outputs = {tensor.name: self._output(tensor, names[tensor.name], keep=keep) for tensor in self.kernel.outputs}
        return self.kernel.written_by(program.configuration, self.problem, outputs)

    def _allowance(self, program: Program) -> Allowance:
        """What a program's process may take: its arrays some times over, and as much as the interpreter has."""
        memory_bytes = 4 * self.kernel.memory_bytes(self.problem) + program.workspace_bytes * 2 + self._evicted_bytes
        most = max(tensor.size_bytes(self.problem) for tensor in self.kernel.outputs)
        return Allowance(
            memory_bytes=memory_bytes + _SPARE_BYTES,
            file_bytes=most + _SPARE_FILE_BYTES,
            reads=(program.path, self._folder.path),
            writes=(self._results_folder,),
        )

    def _processes(self, program: Program) -> int:
        """How many processes share the blocks of a launch that is not timed."""
        work = max(self.kernel.estimated_flops(self.problem), self.kernel.estimated_bytes(self.problem))
        most = min(work // _WORK_OF_A_PROCESS, _blocks(program.launches), len(os.sched_getaffinity(0)))
        if (
            most < 2
            or self.kernel.is_triton
            or program.workspace_bytes
            or blocks_may_meet(self.kernel.source(program.configuration.variant))
        ):
            return 1
        return int(most)

    def _compile(self, configuration: Configuration, mode: str) -> Program:
        path, compile_ms = self._builder.program(self.kernel, self.problem, configuration, mode)
        variant = self.kernel.variant(configuration.variant)
        shared_bytes = variant.shared_bytes(configuration.values, self.problem)
        launches = tuple(one for _, one in variant.launches("", configuration.values, self.problem))
        workspace_bytes = variant.workspace_bytes(configuration.values, self.problem)
        return Program(path, configuration, launches, Resources(shared_bytes=shared_bytes), compile_ms, workspace_bytes)

    def _command(
        self,
        program: Program,
        task: str,
        destination: str = "",
        sources: Mapping[str, Path] | None = None,
        scalars: Mapping[str, float] | None = None,
    ) -> list[str]:
        words = [*command_of(program.path), *task.split()]
        for launch in program.launches:
            words += map(str, (*launch.grid, *launch.block, launch.shared_bytes))
        sources = self._sources if sources is None else sources
        for tensor in self.kernel.constants:
            words += ["constant", tensor.symbol, str(tensor.size_bytes(self.problem)), str(sources[tensor.name])]
        for argument in self.kernel.passed(self.problem):
            if isinstance(argument, Scalar):
                words += ["scalar", repr((scalars or self._scalars)[argument.name])]
            elif argument.texture is not None:
                words += ["texture", argument.name, *self._texture_words(argument, argument.texture, sources)]
            else:
                words += ["array", argument.name, *self._array_words(argument, destination, sources)]
        if program.workspace_bytes:
            words += ["workspace", str(program.workspace_bytes)]
        return words

    def _array_words(self, tensor: Tensor, destination: str, sources: Mapping[str, Path]) -> tuple[str, str, str, str]:
        access = "const" if tensor.role == "input" else "finite" if self._takes_finite(tensor) else "mutable"
        source = str(sources.get(tensor.name, ""))
        is_result = destination and tensor.role != "input"
        target = str(self._results_folder / f"{destination}.{tensor.name}") if is_result else ""
        return str(tensor.size_bytes(self.problem)), access, source, target

    def _takes_finite(self, tensor: Tensor) -> bool:
        """Whether all of an output is written, and known, so that what it held before must not matter."""
        return self.kernel.reference is not None and self.kernel.check is None and tensor.layout(self.problem).is_dense

    def _texture_words(self, tensor: Tensor, texture: Texture, sources: Mapping[str, Path]) -> list[str]:
        dtype, texels = tensor.dtype_for(self.problem), tensor.texels(self.problem)
        rank = 0 if texture.memory == "linear" else len(texels)
        numbers = ITEM_BYTES[dtype], texture.channels
        words = [str(tensor.size_bytes(self.problem)), str(sources[tensor.name]), dtype[0], *map(str, numbers)]
        words += [texture.filter, texture.address, str(int(texture.normalized)), str(rank)]
        return words + [str(size) for size in (*texels, 1, 1)[:3]]

    def _conversation(self, executable: Executable) -> Conversation:
        key = executable if isinstance(executable, LibraryCall) else _program(executable).path
        # One that ended between two questions did not end by the kernel's doing (the thread that started it is gone).
        if key in self._warm and not self._warm[key].is_alive:
            self._end(self._warm.pop(key))
        if key not in self._warm:
            while len(self._warm) >= _MAX_WARM_PROGRAMS:
                self._end(self._warm.popitem(last=False)[1])
            if isinstance(executable, LibraryCall):
                self._warm[key] = Conversation(executable.command, executable.environment)
            else:
                self._warm[key] = self._begun(_program(executable))
        self._warm.move_to_end(key)
        return self._warm[key]

    def _begun(self, program: Program) -> Conversation:
        """A process of the program that is timed; Triton's interpreter is not looked at there."""
        if self.kernel.is_triton:
            return Conversation(self._command(program, "sample"), None, self._allowance(program))
        name = f"timed{next(self._processes_begun)}"
        conversation = Conversation(self._command(program, "sample", name), None, self._allowance(program))
        self._names[conversation] = name
        self._inspected[conversation] = InspectedProgram(
            conversation,
            Inspection(
                case_of=self._case,
                outputs=lambda number: self._results(program, name, number, keep=True),
                first=self._first_kinds(),
                more=self._more_kinds,
                constants={tensor.name: tensor.symbol for tensor in self.kernel.constants},
                deadline_s=lambda launches: self._deadline_s(launches, program),
            ),
        )
        return conversation

    def _first_kinds(self) -> tuple[str, ...]:
        """What a process that is timed computes with first: inputs of another kind, and then those that are timed."""
        others = (kind for kind in self._kinds[1:] if self._case(kind).counts(kind) and self._case(kind).can_be_loaded)
        return *islice(others, 1), self._kinds[0]

    def _more_kinds(self) -> Iterator[str]:
        """Inputs drawn like those that are timed, and not the same."""
        return (drawn_again(self._kinds[0], number) for number in range(1, _MOST_DRAWN_AGAIN + 1))

    def _end(self, conversation: Conversation) -> None:
        """Ends a process that is timed; its files go."""
        conversation.close()
        if self._inspected.pop(conversation, None) is not None:
            for path in self._results_folder.glob(f"{self._names.pop(conversation)}.*"):
                path.unlink(missing_ok=True)

    def _forget(self, conversation: Conversation) -> None:
        self._end(conversation)
        for key in [k for k, kept in self._warm.items() if kept is conversation]:
            del self._warm[key]

    def _deadline_s(self, launches: int, executable: Executable) -> float:
        slowest_s = self.kernel.estimated_flops(self.problem) / (_SLOWEST_GFLOPS * 1e9)
        if self.kernel.is_triton and isinstance(executable, Program):
            slowest_s += _SLOWEST_INTERPRETED_S * _blocks(executable.launches)
        return self.run_timeout_s + launches * slowest_s

    def _output(self, tensor: Tensor, name: str, *, keep: bool) -> NDArray[Any]:
        path, layout = self._results_folder / name, tensor.layout(self.problem)
        memory = np.fromfile(path, dtype=tensor.dtype_for(self.problem))
        if not keep:
            path.unlink()
        written = layout.gaps_written(memory)
        if written:
            trespass = f"out of bounds: {written} elements between the rows of {tensor.name} were written"
            raise TrialFailure(Outcome.WRONG_RESULT, trespass)
        return layout.view(memory)


def needed_bytes(kernel: Kernel, problem: Problem) -> int:
    """Memory that a bench of the problem takes at its fullest, in all its processes and its files in memory.

    Each kind of inputs has files and a reference (values and magnitudes), each process a copy of the arrays. The last
    reference to be made has, beside its inputs, those and its results in float64, and their absolute values.
    """
    tensors = kernel.tensors
    inputs = sum(t.size_bytes(problem) for t in tensors if t.is_read(problem))
    wide_inputs = sum(t.layout(problem).elements for t in tensors if t.is_read(problem)) * _WIDE_BYTES
    wide_outputs = sum(t.layout(problem).elements for t in kernel.outputs) * _WIDE_BYTES
    kinds = _cases_kept(kernel, problem)
    files = kinds * inputs + 2 * sum(t.size_bytes(problem) for t in kernel.outputs)
    references = kinds * wide_outputs * 2
    processes = (_MAX_WARM_PROGRAMS + 1) * kernel.memory_bytes(problem)  # one more verifies
    making = inputs + (wide_inputs + wide_outputs) * 2
    return files + references + processes + making


def _cases_kept(kernel: Kernel, problem: Problem) -> int:
    """How many kinds of inputs stay in files, with their references."""
    inputs = sum(t.size_bytes(problem) for t in kernel.tensors if t.is_read(problem))
    outputs = sum(t.layout(problem).elements for t in kernel.outputs) * _WIDE_BYTES * 2
    most = max(_LEAST_CASES_KEPT, _CASES_KEPT_BYTES // max(1, inputs + outputs))
    return min(len(input_kinds(kernel, problem)), most)


def _blocks(launches: Sequence[Launch]) -> int:
    """Blocks of the largest launch."""
    return max(math.prod(launch.grid) for launch in launches)


def _program(executable: Executable) -> Program:
    if not isinstance(executable, Program):
        raise TunerError(f"not a program of the CPU device: {executable}")
    return executable
