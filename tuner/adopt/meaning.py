"""Finds a kernel's parameters that change its result: they belong to the problem, and are not tuned."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Kernel, Launch, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration, Values
from tilewright.tuner.arrays import random_arrays
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import TrialFailure, TunerError
from tilewright.tuner.loop.expected import expected_by

FEWEST_VALUES = 3
"""Results that are compared at least: of two that differ one may be a fault of the source; three that all differ are
three problems."""

BLOCKS_ALONG_AN_AXIS = 2
"""Blocks that are launched along an axis of the grid: what a parameter does to the result, it does in a few blocks."""

LIMIT_S = 120.0
"""The time for comparing what parameters mean, over all calls of a script."""

_SEED = 1


@dataclass(frozen=True)
class Meaning:
    """The parameters that change the result; `untold`: those that were not compared, and `why`."""

    changing: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    why: str = ""

    @property
    def notes(self) -> list[str]:
        """Notes for the kernel's user: parameters that change the result, and those of which that was not found out."""
        notes = []
        if self.changing:
            notes.append(f"{', '.join(self.changing)}: changes the result, so it is an axis of the problem now")
        if self.untold:
            notes.append(f"{', '.join(self.untold)}: may change the result, which was not found out ({self.why})")
        return notes


def candidates(record: Mapping[str, Any]) -> list[str]:
    """Parameters that may change the result without changing the launch, where the script says nothing of it.

    Only those of a declaration whose functions take none of them, so that it can read them from the problem.
    """
    if record["answer"] is not None or record["verify"] is not None or record["definitions"] or record["view"] != "c":
        return []
    launch = f"{record['grid']} {record['block']} {record['shared']}"
    text = "\n".join(one["text"] for one in record["sources"])
    return [
        name
        for name, values in record["parameters"].items()
        if len(values) >= FEWEST_VALUES and not re.search(rf"\bc\.{name}\b", launch) and re.search(rf"\b{name}\b", text)
    ]


def meaning(kernel: Kernel, names: Sequence[str], limit_s: float = LIMIT_S) -> Meaning:
    """Which parameters change what a few blocks compute on the CPU: default, first and last value, in pairs."""
    if not names:
        return Meaning()
    if limit_s <= 0:
        return Meaning((), tuple(names), f"comparing took over {LIMIT_S:g} s")
    until = time.monotonic() + limit_s
    [variant] = kernel.variants

    def launch(values: Values, problem: Problem) -> Launch:
        whole = variant.launch(values, problem)
        x, y, z = (min(BLOCKS_ALONG_AN_AXIS, size) for size in whole.grid)
        return replace(whole, grid=(x, y, z))

    whole_arrays = tuple(replace(one, written=None) if isinstance(one, Tensor) else one for one in kernel.arguments)
    part = replace(kernel, variants=(replace(variant, launch=launch),), arguments=whole_arrays, check=None)
    problem = part.problem(kernel.example_shape)
    changing: list[str] = []
    told = 0
    device = CpuDevice()
    try:
        for name in names:
            if time.monotonic() > until:
                return Meaning(tuple(changing), tuple(names[told:]), f"comparing took over {LIMIT_S:g} s")
            if all(_differ(device, part, problem, pair) for pair in _pairs(device, part, problem, name)):
                changing.append(name)
            told += 1
    except TunerError as error:
        return Meaning(tuple(changing), tuple(names[told:]), str(error).strip().splitlines()[0])
    finally:
        device.close()
    return Meaning(tuple(changing))


def _pairs(
    device: CpuDevice, kernel: Kernel, problem: Problem, name: str
) -> Iterator[tuple[Configuration, Configuration]]:
    """The pairs of three configurations that differ in this parameter only."""
    default = kernel.default_configuration(kernel.space(problem, device.model.limits))
    values = next(one.values for one in kernel.variants[0].parameters if one.name == name)
    own = default.values[name]
    three = [own, *[value for value in (values[0], values[-1], values[len(values) // 2]) if value != own][:2]]
    yield from combinations([Configuration.of(default.variant, {**default.values, name: one}) for one in three], 2)


def _differ(device: CpuDevice, kernel: Kernel, problem: Problem, pair: tuple[Configuration, Configuration]) -> bool:
    """Whether two configurations differ where both write; one that fails does not count as different.

    Their blocks need not cover the same elements: work per thread changes how many there are.
    """
    [variant] = kernel.variants
    parameters = tuple(replace(one, default=pair[0].values[one.name]) for one in variant.parameters)
    kernel = replace(kernel, variants=(replace(variant, parameters=parameters),))
    before = random_arrays(kernel, problem, _SEED)
    bench = device.bench(kernel, problem, _SEED)
    try:
        (first, first_again), (second, second_again) = (bench.results(one) for one in pair)
    except TrialFailure:
        return False
    finally:
        bench.close()
    compared = {}
    for name, results in second.items():
        written = _written(first[name], first_again[name], before.get(name))
        written &= _written(results, second_again[name], before.get(name))
        compared[name] = np.where(written, results, first[name])
    return not expected_by(kernel, problem, pair[0], first).compare(compared).is_right


def _written(results: NDArray[Any], again: NDArray[Any], before: NDArray[Any] | None) -> NDArray[np.bool_]:
    """The elements that both launches wrote: each left one value, and not what an input array held before."""
    written = (results == again) | ((results != results) & (again != again))  # noqa: PLR0124 - NaN is unequal to itself
    return np.asarray(written if before is None else written & (results != before), np.bool_)


def posed(record: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The record of the same kernel with these parameters turned into axes of its problem."""
    text_of = {name: f'p.shape["{name}"]' for name in names}

    def read(expression: str) -> str:
        for name, text in text_of.items():
            expression = re.sub(rf"\bc\.{name}\b", text, expression)
        return expression

    return {
        **record,
        "parameters": {name: values for name, values in record["parameters"].items() if name not in text_of},
        "posed": {name: record["parameters"][name] for name in names},
        "restrictions": [one | {"expression": read(one["expression"])} for one in record["restrictions"]],
    }
