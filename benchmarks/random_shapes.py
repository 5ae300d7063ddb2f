"""Every variant, layout and dtype at random shapes and at edges, and many random configurations of each variant.

    python benchmarks/random_shapes.py [--shapes 40] [--configurations 500] [--kernel gemm] [--variant wpt] [--seed 1]

Each configuration must compile, launch, give the right result and write nothing else; it is compared on the device. The
constraints are on trial as much as the sources: what the space holds must run. Every shape and edge is met with one
random configuration of each variant in every layout and dtype, which for gemm is more than 500 a variant already; more
are drawn where that is less. Half of gemm's problems have a batch, or matrices whose rows and matrices lie apart.
A line says every half minute what was checked so far, and a kernel's table follows its last check. Exit status 1 when
anything failed, or when fewer configurations of a variant were found than asked for. `--shapes 0` leaves the shapes out
and draws random configurations only.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gpu_check import draw, verdict
from random_problems.convolutions import edge_convolutions, is_quick, random_convolution
from random_problems.quantised import edge_layers, random_layer
from random_problems.sizes import EDGES, random_size
from random_problems.views import random_views

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel, Variant
from tilewright.kernels.problem import Limits, OptionValue, Problem
from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.devices.device import Bench, Device
from tilewright.tuner.devices.local import open_device

KERNELS = ("gemm", "gemv", "conv2d")
AHEAD = 12
"""Benches open at a time, so that compilers are busy while another problem is checked."""

PROGRESS_S = 30.0

Task = tuple[Problem, list[Configuration]]


@dataclass
class Tally:
    """What was checked, by variant and dtype, a line for each failure, and when the progress was last printed."""

    checked: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    begun_s: float = field(default_factory=time.monotonic)
    printed_s: float = field(default_factory=time.monotonic)

    def of(self, variant: str) -> int:
        """How many configurations of the variant were checked."""
        return sum(count for (name, _), count in self.checked.items() if name == variant)

    def title(self, kernel: str) -> str:
        """How many were checked and failed, and how long that took."""
        wall_s = time.monotonic() - self.begun_s
        return f"{kernel}: {self.checked.total()} checked, {len(self.failures)} failed, {wall_s:.0f} s"

    def print_progress(self, kernel: Kernel) -> None:
        """Prints the counts so far, unless it did so less than PROGRESS_S ago."""
        if time.monotonic() - self.printed_s >= PROGRESS_S:
            self.printed_s = time.monotonic()
            counts = ", ".join(f"{variant.name} {self.of(variant.name)}" for variant in kernel.variants)
            print(f"{self.title(kernel.name)} so far: {counts}", flush=True)


OWN_SHAPES: dict[str, tuple[Callable[[random.Random], dict[str, int]], Callable[[], list[dict[str, int]]]]] = {
    "conv2d": (random_convolution, edge_convolutions),
    "linear_quantized": (random_layer, edge_layers),
}
"""Of kernels whose axes hang together: a random shape, and the edges."""


def random_shape(kernel: Kernel, generator: random.Random) -> dict[str, int]:
    """A size for every axis."""
    if kernel.name in OWN_SHAPES:
        return OWN_SHAPES[kernel.name][0](generator)
    return {axis: random_size(generator) for axis in kernel.axes}


def shapes(kernel: Kernel, count: int, generator: random.Random) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """`count` random shapes, and every edge."""
    spread = [random_shape(kernel, generator) for _ in range(count)]
    if kernel.name in OWN_SHAPES:
        return spread, OWN_SHAPES[kernel.name][1]()
    combined = itertools.product(EDGES, repeat=len(kernel.axes))
    return spread, [dict(zip(kernel.axes, sizes, strict=True)) for sizes in combined]


def layouts(kernel: Kernel) -> list[dict[str, OptionValue]]:
    """Every combination of the options that say how arrays are stored."""
    flags = [option for option in kernel.options if option.name.startswith("trans_")]
    return [
        {option.name: value for option, value in zip(flags, values, strict=True)}
        for values in itertools.product(*(option.values for option in flags))
    ]


def problems(
    kernel: Kernel, some_shapes: Iterable[dict[str, int]], dtypes: Sequence[str], generator: random.Random
) -> Iterator[list[Problem]]:
    """Each shape in every layout and dtype: the problems that differ in the other options only, in random order."""
    others = [option for option in kernel.options if not option.name.startswith("trans_")]
    words = [
        dict(zip((o.name for o in others), v, strict=True)) for v in itertools.product(*(o.values for o in others))
    ]
    for shape in some_shapes:
        for dtype in dtypes:
            for layout in layouts(kernel):
                alike, views = [], random_views(kernel, shape, layout, generator)
                for options in words:
                    with contextlib.suppress(InvalidProblemError):  # not every option is for every dtype
                        alike.append(kernel.problem({**shape, **views}, dtype, layout | options))
                if kernel.name == "conv2d":
                    alike = [problem for problem in alike if is_quick(problem)]
                yield generator.sample(alike, len(alike))


def drawn(
    variant: Variant, problem: Problem, limits: Limits, each: int, generator: random.Random
) -> Sequence[Configuration]:
    """`each` random feasible configurations, by trying; where that finds none, of all that there are."""
    configurations = draw(variant.space(), problem, limits, each, generator)
    if configurations:
        return configurations
    feasible = SearchSpace((variant.space(),), problem, limits).feasible
    return generator.sample(feasible, min(each, len(feasible)))


def tasks(
    kernel: Kernel,
    alike: Sequence[Problem],
    limits: Limits,
    each: int,
    generator: random.Random,
    only: Sequence[str] | None = None,
) -> Iterator[Task]:
    """`each` configurations of each variant that serves one of these problems: at the first that it serves."""
    left = [variant.name for variant in kernel.variants if only is None or variant.name in only]
    for problem in alike:
        chosen = []
        for variant in kernel.usable_variants(problem, limits, left) if left else ():
            chosen += drawn(variant, problem, limits, each, generator)
            left.remove(variant.name)
        if chosen:
            yield problem, chosen


def work(kernel: Kernel, limits: Limits, count: int, least: int, generator: random.Random) -> Iterator[Task]:
    """Tasks that bring every variant to all shapes: one configuration at an edge, as many elsewhere as are wanting."""
    spread, edges = shapes(kernel, count, generator)
    met = len(kernel.dtypes) * len(layouts(kernel))
    share = max(1, -(-(least - len(edges) * met) // max(1, count * met)))
    for some_shapes, each in ((spread, share), (edges if count else [], 1)):
        for alike in problems(kernel, some_shapes, kernel.dtypes, generator):
            yield from tasks(kernel, alike, limits, each, generator)


def top_up(kernel: Kernel, limits: Limits, tally: Tally, least: int, generator: random.Random) -> Iterator[Task]:
    """More random problems for the variants that are short of `wanted`, until none is or hope is gone."""
    short = {variant.name: least - tally.of(variant.name) for variant in kernel.variants}
    for _ in range(4 * least):
        missing = [name for name, count in short.items() if count > 0]
        if not missing:
            return
        shape = random_shape(kernel, generator)
        alike = generator.choice(list(problems(kernel, [shape], kernel.dtypes, generator)))
        for problem, chosen in tasks(kernel, alike, limits, 8, generator, missing):
            for configuration in chosen:
                short[configuration.variant] -= 1
            yield problem, chosen


def check(device: Device, kernel: Kernel, tasks: Iterable[Task], tally: Tally) -> None:
    """Runs every configuration and adds it to the tally; several problems are set up ahead of the one that runs."""
    waiting: deque[tuple[Bench, Task]] = deque()
    for number, (problem, configurations) in enumerate(tasks):
        bench = device.bench(kernel, problem, number)
        bench.compile_ahead(configurations)
        waiting.append((bench, (problem, configurations)))
        if len(waiting) == AHEAD:
            run(*waiting.popleft(), tally)
            tally.print_progress(kernel)
    for bench, task in waiting:
        run(bench, task, tally)


def run(bench: Bench, task: Task, tally: Tally) -> None:
    """The verdict on each configuration of one problem; failures are printed as they come."""
    problem, configurations = task
    for configuration in configurations:
        key = (configuration.variant, problem.dtype)
        tally.checked[key] += 1
        message = verdict(bench, configuration)
        if message:
            tally.failed[key] += 1
            tally.failures.append(f"{problem} {dict(problem.options)} | {configuration} | {message}")
            print(tally.failures[-1], flush=True)
    bench.close()


def main() -> int:
    """Checks and prints; 1 where something failed or was not found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=40)
    parser.add_argument("--configurations", type=int, default=500, help="of each variant")
    parser.add_argument("--kernel", action="append", help=f"instead of {', '.join(KERNELS)}; may be repeated")
    parser.add_argument("--variant", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)
    device = open_device("cuda:0")
    limits, failed = device.model.limits, 0
    for name in arguments.kernel or KERNELS:
        kernel, tally = narrowed(catalogue().get(name), arguments.variant), Tally()
        check(device, kernel, work(kernel, limits, arguments.shapes, arguments.configurations, generator), tally)
        check(device, kernel, top_up(kernel, limits, tally, arguments.configurations, generator), tally)
        print("\n".join(summary(kernel, tally, arguments.configurations)), flush=True)
        failed += len(tally.failures) + sum(tally.of(v.name) < arguments.configurations for v in kernel.variants)
    device.close()
    return int(failed > 0)


def narrowed(kernel: Kernel, names: Sequence[str]) -> Kernel:
    """The kernel with the variants of these names only; with all of them where none is named."""
    return replace(kernel, variants=tuple(v for v in kernel.variants if not names or v.name in names))


def summary(kernel: Kernel, tally: Tally, least: int) -> list[str]:
    """A line for each variant and dtype."""
    lines = [tally.title(kernel.name)]
    for variant in kernel.variants:
        short = "" if tally.of(variant.name) >= least else f"  FEWER THAN {least}"
        for dtype in kernel.dtypes:
            key = (variant.name, dtype)
            lines.append(
                f"  {variant.name:<12} {dtype:<8} {tally.checked[key]:>6} checked {tally.failed[key]:>4} failed{short}"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
