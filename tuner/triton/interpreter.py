"""One configuration of a Triton kernel on the CPU, by Triton's interpreter, in a process of its own.

It is called as the host programs of CUDA sources are (`tuner/devices/cpu/host/runner.cpp` describes the words), with
the file of an `InterpretedProgram` ahead of them. An operation of a program takes tenths of a millisecond: it tells
what is right, and nothing about a GPU's time.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import math
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.kernels.triton import TYPES, function_of, signature
from tilewright.tuner.triton.module import constexprs, loaded, words_of

SUFFIX = ".triton.json"
_PAGE = mmap.PAGESIZE
_POISON = 0xFF  # of all bytes it makes a NaN
_NO_ACCESS = 0  # PROT_NONE
_FAULT = 70
_DTYPES = {name: dtype for dtype, name in TYPES.items()}
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


@dataclass(frozen=True)
class InterpretedProgram:
    """Everything that an evaluation needs beside its arrays and numbers."""

    source: str
    file_name: str
    entry: str
    definitions: dict[str, str]
    types: tuple[str, ...]

    @classmethod
    def of(cls, kernel: Kernel, problem: Problem, configuration: Configuration) -> InterpretedProgram:
        """The program of one configuration."""
        variant = kernel.variant(configuration.variant)
        types = tuple(kind.partition(":")[0] for kind in signature(kernel.arguments, problem))
        definitions = kernel.definitions(problem, configuration)
        return cls(kernel.source(variant.name), f"{kernel.name}/{variant.source}", kernel.entry, definitions, types)

    def text(self) -> str:
        """The program's description as the child's `main` reads it."""
        return json.dumps(asdict(self), sort_keys=True)


def command_of(program: Path) -> list[str]:
    """The command that starts a program of the CPU device: itself, or this module with it."""
    if not program.name.endswith(SUFFIX):
        return [str(program)]
    return [sys.executable, "-P", "-m", __spec__.name, str(program)]


class _OutOfBoundsError(Exception):
    pass


@dataclass
class _Array:
    """An array between two inaccessible pages, at the end of its own pages or at their start."""

    name: str
    size: int
    writable: bool
    source: str
    destination: str
    _memory: mmap.mmap = field(init=False, repr=False)
    _first: int = 0

    def place(self, *, at_end: bool) -> int:
        """Fills the array anew; the address of its first element."""
        pages = -(-self.size // _PAGE) * _PAGE
        self._memory = mmap.mmap(-1, pages + 2 * _PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._first = _PAGE + (pages - self.size if at_end else 0)
        self._memory[_PAGE : _PAGE + pages] = bytes([_POISON]) * pages
        if self.source:
            self._memory[self._first : self._first + self.size] = Path(self.source).read_bytes()
        for page in (start, start + _PAGE + pages):
            _protect(page, _PAGE, _NO_ACCESS)
        if not self.writable:
            _protect(start + _PAGE, pages, mmap.PROT_READ)
        return start + self._first

    def check(self) -> None:
        """Raises _OutOfBoundsError where anything beside it in its own pages was written."""
        before, after = self._memory[_PAGE : self._first], self._memory[self._first + self.size : -_PAGE]
        for place, beside in (("before its start", before), ("past its end", after)):
            if beside.count(_POISON) != len(beside):
                raise _OutOfBoundsError(f"out of bounds: {self.name} was written {place}")

    def save(self, suffix: str) -> None:
        """Writes it to its file, if it has one."""
        if self.destination:
            Path(self.destination + suffix).write_bytes(self._memory[self._first : self._first + self.size])


def _protect(address: int, size: int, access: int) -> None:
    if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), access):
        raise OSError(ctypes.get_errno(), "mprotect")


def _arguments(words: Iterator[str], types: Sequence[str]) -> list[_Array | float]:
    arguments: list[_Array | float] = []
    for kind in types:
        if kind == "1":  # a constant of the compiled code, which is not passed
            arguments.append(1)
        elif next(words) == "scalar":
            text = next(words)
            arguments.append(float(text) if kind.startswith(("fp", "bf")) else int(text))
        else:
            name, size, access, source, destination = (next(words) for _ in range(5))
            arguments.append(_Array(name, int(size), access != "const", source, destination))
    return arguments


class _Launches:
    """Launches of the program on arrays that are placed anew each time."""

    def __init__(self, program: InterpretedProgram, grid: tuple[int, ...], arguments: list[_Array | float]) -> None:
        import triton.language as tl  # noqa: PLC0415 - after TRITON_INTERPRET is set
        from triton.runtime.interpreter import TensorHandle  # noqa: PLC0415

        self._tl, self._handle = tl, TensorHandle
        self._program, self._grid = program, grid
        self.arrays = [argument for argument in arguments if isinstance(argument, _Array)]
        self._arguments = arguments
        module = loaded(program.source, program.file_name)
        function = getattr(module, program.entry)
        while hasattr(function, "configs") or hasattr(function, "values"):  # autotune, heuristics
            function = function.fn
        read = function_of(program.source, program.entry)
        if read is None:
            raise ValueError(f"{program.entry} is not a function under @triton.jit")
        self._names = [name for name in read.passed if name not in program.definitions]
        self._constexprs = constexprs([*read.constexprs, *read.passed], program.definitions, module)
        self._function = function

    def placed(self, *, at_end: bool) -> Callable[[], None]:
        """A function for one launch, on arrays that are placed and filled now."""
        values = [self._value(a, kind, at_end) for a, kind in zip(self._arguments, self._program.types, strict=True)]
        passed = dict(zip(self._names, values, strict=True))

        def launch() -> None:
            self._function[self._grid](**passed, **self._constexprs)

        return launch

    def _value(self, argument: _Array | float, kind: str, at_end: bool) -> Any:
        if kind == "1":
            return 1
        type_ = self._tl.str_to_ty(kind, None)
        if isinstance(argument, _Array):
            data = np.array([argument.place(at_end=at_end)], np.uint64)
        else:
            data = np.array([argument], _DTYPES[kind])
        return self._tl.tensor(self._handle(data, type_), type_)


def _verify(launches: _Launches) -> None:
    """Launches twice, as the CPU's host programs do: with arrays at the end of their pages, and at the start."""
    for number, at_end in enumerate((True, False)):
        launch = launches.placed(at_end=at_end)
        launch()
        for array in launches.arrays:
            array.check()
            array.save(f".{number}")


def _answer_samples(launches: _Launches) -> None:
    launch = launches.placed(at_end=False)
    launch()
    for line in sys.stdin:
        count, min_s, evicted_bytes = int(line.split()[0]), float(line.split()[1]), int(line.split()[2])
        one = _timed(launch, 1)
        repeats = 1 if evicted_bytes else max(1, math.ceil(min_s / one))
        for _ in range(count):
            if evicted_bytes:
                np.zeros(evicted_bytes // 8)[::8] += 1
            print(f"{_timed(launch, repeats):.12f}", flush=True)  # noqa: T201 - the protocol


def _timed(launch: Callable[[], None], repeats: int) -> float:
    start = time.thread_time()
    for _ in range(repeats):
        launch()
    return (time.thread_time() - start) / repeats


def main(words: Sequence[str]) -> int:
    """The exit status: 70 where the kernel failed, 64 where the call makes no sense."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    os.environ["TRITON_INTERPRET"] = "1"
    faulthandler.enable()  # an access out of bounds tells the line of the source
    program = InterpretedProgram(**json.loads(Path(words[0]).read_text(encoding="utf-8")))
    rest = iter(words[1:])
    task = next(rest)
    if task == "verify":
        for _ in range(3):  # processes: one interprets; what outputs hold before; time for further launches
            next(rest)
    grid = tuple(int(next(rest)) for _ in range(6))[:3]
    next(rest)  # shared memory, of which a program has none here
    try:
        launches = _Launches(program, grid, _arguments(rest, program.types))
        (_verify if task == "verify" else _answer_samples)(launches)
    except _OutOfBoundsError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return _FAULT
    except Exception as error:  # noqa: BLE001 - somebody's code
        print(words_of(error, program.file_name), file=sys.stderr)  # noqa: T201
        return _FAULT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
