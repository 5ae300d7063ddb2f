"""Runs programs of the CPU device: the words of the command, the files, and limits of memory and time."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.dtypes import ITEM_BYTES
from tilewright.kernels.kernel import Arrays, Kernel, Launch, Scalar, Tensor, Texture
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cpu.compile import blocks_may_meet
from tilewright.tuner.devices.cpu.process import Allowance, output_of
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.outcome import Executable, Outcome, Resources
from tilewright.tuner.triton.interpreter import command_of

_WORK_OF_A_PROCESS = 1e8
"""Operations, or bytes where those are more, that are worth a process beside the first: 20 to 200 ms of CPU time, while
starting one and sharing the arrays with it takes some ms."""

_SPARE_BYTES, _SPARE_FILE_BYTES = 2 << 30, 1 << 20
"""Memory beside the arrays: stacks of a block's threads, and of Triton's interpreter its modules."""

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


class ProgramRunner:
    """Runs programs of one problem. Arrays come from files in `folder`, results go to its subfolder `results`."""

    def __init__(self, kernel: Kernel, problem: Problem, folder: Path, evicted_bytes: int) -> None:
        self.kernel, self.problem = kernel, problem
        self.run_timeout_s = 10.0
        self.folder, self.results_folder = folder, folder / "results"
        self.results_folder.mkdir()
        self._evicted_bytes = evicted_bytes

    def outputs(
        self,
        program: Program,
        sources: Mapping[str, Path],
        scalars: Mapping[str, float],
        finite: int = 0xFF,
        repeated_s: float = 0.0,
    ) -> tuple[Arrays, Arrays]:
        """Every output by name, from two launches; before the second, outputs may hold finite numbers (`finite`)."""
        task = f"verify {self.processes(program)} {finite} {repeated_s}"
        command = self.command(program, task, "out", sources, scalars)
        output_of(command, self.deadline_s(3, program) + repeated_s, self.allowance(program))
        return self.results(program, "out", 0), self.results(program, "out", 1)

    def results(self, program: Program, destination: str, number: int, *, keep: bool = False) -> Arrays:
        """Every output by name, read from the files with that number as far as the program writes them."""
        names = {tensor.name: f"{destination}.{tensor.name}.{number}" for tensor in self.kernel.outputs}
        outputs = {tensor.name: self._output(tensor, names[tensor.name], keep=keep) for tensor in self.kernel.outputs}
        return self.kernel.written_by(program.configuration, self.problem, outputs)

    def allowance(self, program: Program) -> Allowance:
        """Memory and files of a program's process: several times its arrays, and what the interpreter needs."""
        memory_bytes = 4 * self.kernel.memory_bytes(self.problem) + program.workspace_bytes * 2 + self._evicted_bytes
        most = max(tensor.size_bytes(self.problem) for tensor in self.kernel.outputs)
        return Allowance(
            memory_bytes=memory_bytes + _SPARE_BYTES,
            file_bytes=most + _SPARE_FILE_BYTES,
            reads=(program.path, self.folder),
            writes=(self.results_folder,),
        )

    def processes(self, program: Program) -> int:
        """The number of processes that share the blocks of a launch that is not timed."""
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

    def command(
        self,
        program: Program,
        task: str,
        destination: str,
        sources: Mapping[str, Path],
        scalars: Mapping[str, float],
    ) -> list[str]:
        """The words that start the program for that task; outputs go to files called `destination`, if it is given."""
        words = [*command_of(program.path), *task.split()]
        for launch in program.launches:
            words += map(str, (*launch.grid, *launch.block, launch.shared_bytes))
        for tensor in self.kernel.constants:
            words += ["constant", tensor.symbol, str(tensor.size_bytes(self.problem)), str(sources[tensor.name])]
        for argument in self.kernel.passed(self.problem):
            if isinstance(argument, Scalar):
                words += ["scalar", repr(scalars[argument.name])]
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
        target = str(self.results_folder / f"{destination}.{tensor.name}") if is_result else ""
        return str(tensor.size_bytes(self.problem)), access, source, target

    def _takes_finite(self, tensor: Tensor) -> bool:
        """Whether an output is known and wholly written, so that its earlier contents must not matter."""
        return self.kernel.reference is not None and self.kernel.check is None and tensor.layout(self.problem).is_dense

    def _texture_words(self, tensor: Tensor, texture: Texture, sources: Mapping[str, Path]) -> list[str]:
        dtype, texels = tensor.dtype_for(self.problem), tensor.texels(self.problem)
        rank = 0 if texture.memory == "linear" else len(texels)
        numbers = ITEM_BYTES[dtype], texture.channels
        words = [str(tensor.size_bytes(self.problem)), str(sources[tensor.name]), dtype[0], *map(str, numbers)]
        words += [texture.filter, texture.address, str(int(texture.normalized)), str(rank)]
        return words + [str(size) for size in (*texels, 1, 1)[:3]]

    def deadline_s(self, launches: int, executable: Executable) -> float:
        """Seconds that so many launches may take."""
        slowest_s = self.kernel.estimated_flops(self.problem) / (_SLOWEST_GFLOPS * 1e9)
        if self.kernel.is_triton and isinstance(executable, Program):
            slowest_s += _SLOWEST_INTERPRETED_S * _blocks(executable.launches)
        return self.run_timeout_s + launches * slowest_s

    def _output(self, tensor: Tensor, name: str, *, keep: bool) -> NDArray[Any]:
        path, layout = self.results_folder / name, tensor.layout(self.problem)
        memory = np.fromfile(path, dtype=tensor.dtype_for(self.problem))
        if not keep:
            path.unlink()
        written = layout.gaps_written(memory)
        if written:
            trespass = f"out of bounds: {written} elements between the rows of {tensor.name} were written"
            raise TrialFailure(Outcome.WRONG_RESULT, trespass)
        return layout.view(memory)


def _blocks(launches: Sequence[Launch]) -> int:
    """Blocks of the largest launch."""
    return max(math.prod(launch.grid) for launch in launches)
