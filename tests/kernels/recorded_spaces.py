"""What every variant's space says of fixed problems and configurations, as tests/data/spaces.json records it.

starts.json has more problems and devices: which variants take them, and where their searches start.

    PYTHONPATH=tests:tests/kernels:benchmarks python -m recorded_spaces

writes the record anew, after a change of a space that was meant: what is stored was measured in the space before.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.enumeration.configuration import Values
from tilewright.kernels.kernel import Kernel, Variant
from tilewright.kernels.problem import Limits, Problem

RECORD = Path(__file__).parents[1] / "data" / "spaces.json"
STARTS = RECORD.with_name("starts.json")
CONFIGURATIONS, PROBLEMS, ATTEMPTS, STARTED = 60, 6, 3000, 64
"""Random ones a variant and problem; problems that a variant admits; problems drawn until it does; problems with starts
a kernel."""

DEVICES = {
    "hopper": Limits(
        compute_capability=(9, 0),
        multiprocessors=132,
        memory_bytes=140 << 30,
        max_shared_bytes=227 << 10,
        shared_bytes_per_multiprocessor=228 << 10,
    ),
    "ampere": Limits(
        compute_capability=(8, 6),
        multiprocessors=46,
        memory_bytes=8 << 30,
        max_shared_bytes=99 << 10,
        max_threads_per_multiprocessor=1536,
        max_blocks_per_multiprocessor=16,
    ),
}


OTHER_DEVICES = DEVICES | {
    "turing": Limits(
        compute_capability=(7, 5),
        multiprocessors=40,
        memory_bytes=15 << 30,
        max_shared_bytes=64 << 10,
        max_threads_per_multiprocessor=1024,
        max_blocks_per_multiprocessor=16,
    ),
    "blackwell": Limits(
        compute_capability=(12, 0),
        multiprocessors=170,
        memory_bytes=32 << 30,
        max_shared_bytes=99 << 10,
        shared_bytes_per_multiprocessor=100 << 10,
        max_threads_per_multiprocessor=1536,
        max_blocks_per_multiprocessor=24,
    ),
}


def started(kernel: Kernel, posed: dict[str, Any]) -> dict[str, str]:
    """A sum over the problem's sizes and layouts, and one over the variants that a device takes it with, and starts."""
    problem = kernel.problem(posed["shape"], posed["dtype"], posed["options"])
    found = {"problem": problem_said(kernel, problem)}
    for device, limits in OTHER_DEVICES.items():
        usable = [one for one in kernel.variants if one.runs_on(limits) and one.admits(problem, limits)]
        found[device] = checksum([(one.name, told(one.space().start_for, problem, limits)) for one in usable])
    return found


def said(kernel: Kernel, posed: dict[str, Any]) -> dict[str, Any]:
    """A sum over the problem's sizes and layouts, and of each device's variants what the space says."""
    problem = kernel.problem(posed["shape"], posed["dtype"], posed["options"])
    found: dict[str, Any] = {"problem": problem_said(kernel, problem)}
    for device, limits in DEVICES.items():
        admitted = [one for one in kernel.variants if one.runs_on(limits) and one.admits(problem, limits)]
        found[device] = {one.name: space_said(kernel, one, problem, limits) for one in admitted}
    return found


def problem_said(kernel: Kernel, problem: Problem) -> str:
    """A sum over its sizes and layouts."""
    sizes = [kernel.estimated_flops(problem), kernel.estimated_bytes(problem), kernel.memory_bytes(problem)]
    layouts = [(tensor.name, tensor.layout(problem), tensor.dtype_for(problem)) for tensor in kernel.tensors]
    return checksum([problem.canonical, sizes, layouts])


def space_said(kernel: Kernel, variant: Variant, problem: Problem, limits: Limits) -> str:
    """How many configurations are feasible; a sum over every constraint's verdict, the start and all launches.

    Those of configurations that are not feasible too: of random ones of a large space hardly any is.
    """
    space, feasible, seen = variant.space(), 0, list[object]()
    for values in configurations(variant):
        held = [told(constraint.holds, values, problem, limits) for constraint in space.constraints]
        feasible += held.count(True) == len(held)
        seen += [held, told(launched, kernel, variant, values, problem)]
        seen.append(told(variant.is_sound_at_launch, values, problem, limits))
        seen.append(told(variant.is_batch_invariant, values, problem))
    return f"{feasible} {checksum([seen, variant.takes_size(problem), space.start_for(problem, limits)])}"


def told(asked: Callable[..., Any], *arguments: object) -> object:
    """What it returns; its error's name where values that another constraint leaves out have no answer."""
    try:
        return asked(*arguments)
    except (ArithmeticError, LookupError, ValueError) as error:
        return type(error).__name__


def checksum(seen: object) -> str:
    """Of its text."""
    return f"{zlib.crc32(repr(seen).encode()):08x}"


def launched(kernel: Kernel, variant: Variant, values: Values, problem: Problem) -> tuple[Any, ...]:
    """Everything that a launch of the configuration takes from the declaration."""
    return (
        variant.launches(kernel.entry, values, problem),
        variant.packing_launches(kernel.entry, values, problem),
        variant.shared_bytes(values, problem),
        variant.workspace_bytes(values, problem),
        variant.kept_bytes(problem),
        variant.tensor_maps(values, problem),
    )


def configurations(variant: Variant) -> Iterator[Values]:
    """The defaults, and random values of every parameter, the same each time."""
    generator = random.Random(variant.name)
    yield Values({one.name: one.default for one in variant.parameters})
    for _ in range(CONFIGURATIONS):
        yield Values({one.name: generator.choice(one.values) for one in variant.parameters})


def main() -> None:
    """Writes the record: of problems drawn anew, so that it follows axes and options that are new."""
    from fuzz.cases import random_problem  # noqa: PLC0415 - only here: the test has the problems from the record

    rows = []
    for kernel in catalogue().kernels():
        drawn = dict[str, Problem]()
        for variant in kernel.variants:
            generator, admitted, tried = random.Random(f"{kernel.name} {variant.name}"), 0, 0
            while admitted < PROBLEMS and (tried := tried + 1) < ATTEMPTS:
                problem = random_problem(kernel, generator)
                if problem is not None and variant.admits(problem, DEVICES["hopper"]):
                    drawn[problem.canonical], admitted = problem, admitted + 1
        for problem in drawn.values():
            posed = {"shape": dict(problem.shape), "dtype": problem.dtype, "options": dict(problem.options)}
            rows.append({"kernel": kernel.name, **posed, "said": said(kernel, posed)})
    _write(RECORD, rows)
    generator, rows = random.Random("starts"), []
    for kernel in catalogue().kernels():
        drawn = {p.canonical: p for p in (random_problem(kernel, generator) for _ in range(STARTED)) if p is not None}
        for problem in drawn.values():
            posed = {"shape": dict(problem.shape), "dtype": problem.dtype, "options": dict(problem.options)}
            rows.append({"kernel": kernel.name, **posed, "said": started(kernel, posed)})
    _write(STARTS, rows)


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
