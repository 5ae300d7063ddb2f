"""A launch of a product as what `rows.cu` takes: three matrices by their strides, and the bound of each component."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tilewright.kernels.dtypes import ITEM_BYTES, LARGEST, SMALLEST_NORMAL, UNIT_ROUNDOFF, real_macros, rounding_of
from tilewright.kernels.kernel import Kernel, Scalar
from tilewright.kernels.problem import Problem
from tilewright.kernels.reference import admitted_roundoff
from tilewright.kernels.sources.source import resolved
from tilewright.tuner.loop.verify import C_DEFAULT, bound_factor, underflow

ROWS = 16
"""The rows that are judged: the first, the last and those evenly between."""

COLUMNS = {2: 64, 4: 32, 8: 32}
STEP = {2: 64, 4: 64, 8: 32}
"""Columns of a block of `check_rows`, and terms of a step, by the bytes of an element."""

_COUNTERS_BYTES = 16
_BLOCKS_PER_MULTIPROCESSOR = 2
_MOST_TERMS = 4096
"""Terms of one block: what tensor cores cut off grows with the length of a chain."""

_OWN_BOUNDS = {"float32": 0.5, "float64": 0.5, "bfloat16": 1.0, "float16": 1.0}
"""What the check's own sums may be off, in bounds: chains of an eighth of the terms in float32, tensor cores in half
types. They are granted on top of what verification grants."""

_ACTIVATIONS = ("none", "relu", "sigmoid", "tanh", "gelu", "silu")
"""Activations in the order of rows.cu."""

CHECKED_ON_STREAM = frozenset({"gemm", "linear", "gemv"})
"""Kernels that are one product. No others are checked on a GPU."""

CHECKED_AT_LAUNCH = frozenset({("gemm", "m"), ("linear", "m")})
"""Of those the axes whose size may come with the launch: the rows of a task, which nothing else depends on."""


class Task(ctypes.Structure):
    """The structure `Task` of rows.cu."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("a", "b", "c", "bias")),
        *((n, ctypes.c_int64) for n in ("a_row", "a_term", "b_term", "b_column", "c_row", "c_column")),
        *((name, ctypes.c_int64) for name in ("rows", "columns", "terms", "slice")),
        *((name, ctypes.c_double) for name in ("alpha", "beta", "factor", "root", "unit", "least")),
        *((name, ctypes.c_double) for name in ("bounds", "underflow", "out_unit", "out_least", "out_overflow")),
        ("sum_overflow", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("activation", "reads_c")),
        *((name, ctypes.c_uint64) for name in ("kept", "sums", "counters", "slices_done", "verdict")),
    )


class ProductTask:
    """The task of one problem without addresses and numbers, which come with each launch.

    `slices`: into how many parts the sum is divided, so that there are blocks for all multiprocessors.
    """

    def __init__(self, kernel: Kernel, problem: Problem, multiprocessors: int) -> None:
        self._kernel, self._problem = kernel, problem
        self._places = {tensor.name: place for place, tensor in enumerate(kernel.tensors)}
        scalars = [one.name for one in kernel.arguments if isinstance(one, Scalar)]
        self._scalars = {name: place for place, name in enumerate(scalars)}
        self._offsets: dict[str, int] = {}
        self.task = Task()
        self._lay_out()
        self._bound()
        step = STEP[problem.item_bytes]
        tiles = -(-self.task.columns // COLUMNS[problem.item_bytes])
        steps = -(-self.task.terms // step)
        wanted = max(1, _BLOCKS_PER_MULTIPROCESSOR * multiprocessors // tiles, -(-steps * step // _MOST_TERMS))
        each = -(-steps // min(wanted, steps, 65535))
        self.task.slice, self.slices, self.tiles = each * step, -(-steps // each), int(tiles)
        self.reads_output = bool(self.task.reads_c)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the rows of an output that is read, as they were before the launch; a multiple of 16."""
        output = self._kernel.output
        size = ROWS * self.task.columns * ITEM_BYTES[output.dtype_for(self._problem)] if self.reads_output else 0
        return -(-size // 16) * 16

    @property
    def sums_bytes(self) -> int:
        """Bytes of the sums of all slices."""
        acc_bytes = max(4, self._problem.item_bytes)
        return int(2 * acc_bytes * ROWS * self.task.columns * self.slices)

    @property
    def counters_bytes(self) -> int:
        """Bytes of the counts that are 0 before and after a check; a multiple of 16."""
        return _COUNTERS_BYTES + -(-4 * self.tiles // 16) * 16

    def of_memory(self, task: Task, device: int, verdict: int) -> None:
        """Fills in the addresses of the check's own memory: on the device, and of the verdict on the host."""
        task.counters, task.verdict, task.slices_done = device, verdict, device + _COUNTERS_BYTES
        task.sums = device + self.counters_bytes
        task.kept = task.sums + self.sums_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of the check's own memory on the device."""
        return self.counters_bytes + self.sums_bytes + self.kept_bytes

    def of_launch(self, addresses: Sequence[int], scalars: Sequence[float], rows: int | None = None) -> Task:
        """A new task with these arrays and numbers, each in the declared order: launches may overlap.

        `rows`: how many this launch has, where that is not the problem's; nothing else may depend on it.
        """
        task = Task.from_buffer_copy(self.task)
        task.rows = task.rows if rows is None else rows
        for member, name in self._names.items():
            item_bytes = ITEM_BYTES[self._kernel.tensors[self._places[name]].dtype_for(self._problem)]
            setattr(task, member, addresses[self._places[name]] + item_bytes * self._offsets.get(member, 0))
        task.alpha = scalars[self._scalars["alpha"]] if "alpha" in self._scalars else 1.0
        task.beta = scalars[self._scalars["beta"]] if self.reads_output else 0.0
        return task

    def _lay_out(self) -> None:
        """Fills in sizes and strides; in a batch the last matrix is checked."""
        problem, task, shape = self._problem, self.task, self._problem.shape
        if self._kernel.name == "gemv":
            self._names = {"a": "x", "b": "A", "c": "y"}
            task.rows, task.columns, task.terms = 1, shape["m"], shape["n"]
            task.a_row, task.a_term, task.c_row, task.c_column = 0, 1, 0, 1
            across, along = self._strides("A")
            is_turned = bool(problem.options["trans_a"])
            task.b_column, task.b_term = (along, across) if is_turned else (across, along)
            task.reads_c = int(not problem.options["beta_zero"])
            return
        task.rows, task.columns, task.terms = shape["m"], shape["n"], shape["k"]
        if self._kernel.name == "linear":
            self._names = {"a": "X", "b": "W", "c": "Y", "bias": "b"}
            (task.a_row, task.a_term), (task.b_column, task.b_term) = self._strides("X"), self._strides("W")
            task.c_row, task.c_column = self._strides("Y")
            return
        self._names = {"a": "A", "b": "B", "c": "C"}
        of_a, of_b = self._strides("A"), self._strides("B")
        task.a_row, task.a_term = of_a[::-1] if problem.options["trans_a"] else of_a
        task.b_term, task.b_column = of_b[::-1] if problem.options["trans_b"] else of_b
        task.c_row, task.c_column = self._strides("C")
        task.reads_c = int(not problem.options["beta_zero"])
        for member, name in self._names.items():
            layout = self._kernel.tensors[self._places[name]].layout(problem)
            if len(layout.shape) == len(("batch", "rows", "columns")):
                self._offsets[member] = (layout.shape[0] - 1) * layout.strides[0]

    def _strides(self, name: str) -> tuple[int, int]:
        layout = self._kernel.tensors[self._places[name]].layout(self._problem)
        return layout.strides[-2], layout.strides[-1]

    def _bound(self) -> None:
        """The bound of verification for these sums."""
        problem, task, output = self._problem, self.task, self._kernel.output.dtype_for(self._problem)
        product = self._kernel.product
        terms = product.terms(problem) if product else int(task.terms)
        admitted = admitted_roundoff(problem)
        rounding = rounding_of(output, terms)
        task.factor, task.root = bound_factor(terms, admitted, output), math.sqrt(terms)
        task.unit, task.least = admitted or UNIT_ROUNDOFF[problem.sum_dtype], SMALLEST_NORMAL[problem.sum_dtype]
        task.bounds, task.underflow = C_DEFAULT + _OWN_BOUNDS[problem.dtype], underflow(output)
        task.out_unit, task.out_least = rounding.unit_roundoff, rounding.smallest_normal
        task.out_overflow, task.sum_overflow = rounding.overflow, LARGEST[problem.sum_dtype] / 2
        task.activation = _ACTIVATIONS.index(str(problem.options.get("activation", "none")))


def definitions(kernel: Kernel, problem: Problem) -> dict[str, str]:
    """The macros of rows.cu: the factors' type, and the output's if it differs."""
    is_wide = problem.is_half and kernel.output.dtype_for(problem) == "float32"
    return real_macros(problem.dtype) | ({"OUTPUT_FLOAT32": "1"} if is_wide else {})


@cache
def source() -> str:
    """The source of the check, with its headers in it."""
    return resolved(Path(__file__).with_name("rows.cu"))
