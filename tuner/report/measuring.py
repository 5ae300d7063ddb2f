"""A ladder measured on one device: configurations chosen, steps timed in turn, sizes swept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.device import Bench, Device
from tilewright.tuner.errors import NoCompilerError, OutOfMemoryError
from tilewright.tuner.report import facts
from tilewright.tuner.report.choices import SEED, KnownConfiguration, StepChoice, at_size, choose, step_space
from tilewright.tuner.report.facts import moves
from tilewright.tuner.report.host_steps import HostSteps
from tilewright.tuner.report.ladders import Ladder, Step
from tilewright.tuner.report.rows import LadderReport, Moves, StepRow, SweepRow, Work
from tilewright.tuner.report.scales import Scale
from tilewright.tuner.report.tables import shape_text
from tilewright.tuner.report.traffic import predicted_bytes, tile_of
from tilewright.tuner.report.turns import Measured, times

HOST = ("loop", "blas")
TILED = ("gemm", "linear")
OnProgress = Callable[[float, str], None]


class Kind(NamedTuple):
    """Steps measured on one bench: the problem's dtype, and what is added to its sizes."""

    dtype: str = "float32"
    beyond: int = 0


PLAIN = Kind()


def _kind(step: Step) -> Kind:
    return Kind(step.dtype, step.beyond)


@dataclass
class LadderRun:
    """One report in the making. `on_progress(share, what)` hears of every part; nothing is written anywhere.

    `own`: the kernel, if it was declared in a folder of the user; otherwise the package's kernel of the ladder's name.
    """

    device: Device
    ladder: Ladder
    scale: Scale
    known: Sequence[KnownConfiguration] = ()
    command: str = ""
    on_progress: OnProgress = lambda _share, _what: None
    own: Kernel | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kernel: Kernel = self.own or catalogue().get(self.ladder.kernel)
        self.host = HostSteps(self.kernel, self.scale.host_s)
        self._kinds = tuple(dict.fromkeys(_kind(step) for step in self.ladder.steps if step.place not in HOST))
        self._plain = self._kinds[0]  # which the library is compared in
        steps = [step for step in self.ladder.steps if step.place != "library"]
        swept = len(self.scale.sizes) + len(self.scale.rectangles)
        self._done, self._parts = 0.0, len(steps) + len(self._kinds) + swept + 1.0  # writing
        self._deadline = time.monotonic() + self.scale.total_s
        self._unsearched = sum(step.place == "device" and step.is_searched for step in steps)
        self._choices: dict[str, StepChoice] = {}
        self._found: dict[str, Measured] = {}
        self._moves: dict[Kind, Moves | None] = {}

    def report(self) -> LadderReport:
        """The whole report; raises TunerError where the device cannot go on."""
        try:
            for kind in self._kinds:
                self._at_table(kind)
            sweep = self._sweep(
                [(size, self.scale.swept_shape(size), f"Sizes from {size}") for size in self.scale.sizes]
            )
            shapes = [(0, shape, f"The shapes from {shape_text(shape)}") for shape in self.scale.rectangles]
            rectangles = self._sweep(shapes)
            self._host_steps(sweep)
        finally:
            self.host.close()
        self._tell(self._parts, "writing")
        model = self.device.model
        return LadderReport(
            kernel=self.kernel.name,
            formula=self.ladder.formula,
            kind=model.kind,
            device=model.name,
            l2=self.kernel.ranking_l2,
            unit=self.ladder.unit,
            swept=self.scale.swept,
            facts=facts.facts(self.device, self.command),
            bandwidth=facts.bandwidth(self.device),
            peaks=dict(model.datasheet_gflops),
            steps=tuple(self._row(step) for step in self.ladder.steps),
            sweep=tuple(sweep),
            compared=self.ladder.compared,
            notes=tuple(self.notes),
            rectangles=tuple(rectangles),
        )

    def _tell(self, done: float, what: str) -> None:
        self._done = max(self._done, done)
        self.on_progress(min(1.0, self._done / self._parts), what)

    def _problem(self, kind: Kind, shape: Mapping[str, int] | None = None) -> Problem:
        """The problem of these steps at a shape, the table's where none is named."""
        grown = {axis: size + kind.beyond for axis, size in (shape or self.scale.shape).items()}
        return self.kernel.problem(grown, kind.dtype, self.ladder.options)

    def _device_steps(self, kind: Kind) -> list[Step]:
        return [step for step in self.ladder.steps if step.place == "device" and _kind(step) == kind]

    def _at_table(self, kind: Kind) -> None:
        """Chooses and times all device steps of a kind, and the library, on one bench."""
        problem = self._problem(kind)
        bench = self.device.bench(self.kernel, problem, SEED)
        try:
            for step in self._device_steps(kind):
                self._tell(self._done + 1, f"{step.title}: a configuration")
                self._choose(bench, step, problem)
            contestants = {step.key: self._choices[step.key].configuration for step in self._chosen(kind)}
            self._tell(self._done + 1, f"{kind.dtype}: rounds in turn")
            with_library = kind == self._plain
            self._found |= times(bench, contestants, self.kernel.ranking_l2, self.scale.rounds, library=with_library)
            if with_library:
                self.notes.append(f"The library: {bench.library_name() or 'none for this problem'}.")
        finally:
            bench.close()
        self._moves[kind] = moves(bench.memory, self.kernel, problem)

    def _chosen(self, kind: Kind) -> list[Step]:
        return [step for step in self._device_steps(kind) if step.key in self._choices]

    def _choose(self, bench: Bench, step: Step, problem: Problem) -> None:
        self._unsearched -= step.is_searched
        space = step_space(self.kernel, step, problem, self.device.model)
        if not len(space):
            needs = sorted({need for name in step.variants for need in self.kernel.variant(name).requires})
            here = f"needs {', '.join(needs)}, which this device has not" if needs else "does not serve this shape here"
            self._found[step.key] = Measured(left_out=here)
            return
        # Half of the time is the sweep's; of the rest every step may take as much as those that are still to come.
        left_s = self._deadline - self.scale.total_s / 2 - time.monotonic()
        longest_s = left_s / (self._unsearched + 1)
        choice = choose(bench, self.kernel, step, space, self.scale, self.known, longest_s=longest_s)
        if choice is None:
            self._found[step.key] = Measured(left_out="no configuration of it was right and could be timed")
        else:
            self._choices[step.key] = choice

    def _sweep(self, shapes: Sequence[tuple[int, Mapping[str, int], str]]) -> list[SweepRow]:
        """Every step that sweeps at each shape; with a size 0 the rows hold the shape."""
        rows: list[SweepRow] = []
        for size, shape, named in shapes:
            if time.monotonic() > self._deadline:
                self.notes.append(f"{named} on were left out: the report's time was up.")
                break
            self._tell(self._done + 1, f"size {size or shape_text(shape)}")
            try:
                rows += self._host_rows(size, shape)
                for kind in self._kinds:
                    rows += self._device_rows(size, shape, kind)
            except OutOfMemoryError as error:
                self.notes.append(f"{named} on were left out: {error}.")
                break
        return rows

    def _host_rows(self, size: int, shape: Mapping[str, int]) -> list[SweepRow]:
        problem = self._problem(PLAIN, shape)
        rectangle = None if size else problem.stated_shape
        return [
            SweepRow(size, step.key, self._work(problem), found.time, found.bound_ratio, shape=rectangle)
            for step in self.ladder.steps
            if step.place in HOST and (found := self._on_host(step, problem)).time is not None
        ]

    def _device_rows(self, size: int, shape: Mapping[str, int], kind: Kind) -> list[SweepRow]:
        problem = self._problem(kind, shape)
        if not any(step.sweeps for step in self._chosen(kind)) and kind != self._plain:
            return []
        bench = self.device.bench(self.kernel, problem, SEED)
        try:
            configurations = self._at_this_size(bench, problem, kind)
            l2, rounds = self.kernel.ranking_l2, self.scale.sweep_rounds
            by_step = times(bench, configurations, l2, rounds, library=kind == self._plain)
        finally:
            bench.close()
        moved = moves(bench.memory, self.kernel, problem)
        at, rectangle = (size + kind.beyond, None) if size else (0, problem.stated_shape)
        return [
            SweepRow(
                at,
                key,
                self._work(problem),
                found.time,
                found.bound_ratio,
                str(configurations.get(key, "")),
                moved,
                rectangle,
            )
            for key, found in by_step.items()
            if found.time is not None
        ]

    def _at_this_size(self, bench: Bench, problem: Problem, kind: Kind) -> dict[str, Configuration]:
        configurations = {}
        for step in self._chosen(kind):
            if step.sweeps:
                space = step_space(self.kernel, step, problem, self.device.model)
                chosen = self._choices[step.key].configuration
                l2, draws = self.kernel.ranking_l2, self.scale.draws
                mine = at_size(bench, step, space, chosen, l2=l2, draws=draws, known=self.known)
                if mine is not None:
                    configurations[step.key] = mine
        return configurations

    def _on_host(self, step: Step, problem: Problem) -> Measured:
        if not self.host.allows(step.place, problem):
            return Measured(left_out=f"would take longer than {self.scale.host_s:g} s a call")
        try:
            return Measured(*self.host.time(step.place, problem, SEED))
        except NoCompilerError as error:
            return Measured(left_out=" ".join(str(error).split()))

    def _host_steps(self, sweep: Sequence[SweepRow]) -> None:
        """Adds the host's times at the table's problem, or at the largest size of the sweep that was quick enough."""
        for step in self.ladder.steps:
            if step.place not in HOST:
                continue
            self._tell(self._done + 1, step.title)
            measured = self._on_host(step, self._problem(PLAIN))
            last = max((row for row in sweep if row.key == step.key), key=lambda row: row.size, default=None)
            if measured.time is None and last is not None:
                problem = self._problem(PLAIN, self.scale.swept_shape(last.size))
                measured = Measured(last.time, last.bound_ratio, problem=problem)
            self._found[step.key] = measured

    def _row(self, step: Step) -> StepRow:
        measured = self._found.get(step.key, Measured(left_out="there is none here"))
        problem = measured.problem or self._problem(_kind(step))
        row = StepRow(
            key=step.key,
            title=step.title,
            place=step.place,
            dtype=step.dtype,
            shape=problem.stated_shape,
            work=self._work(problem),
            reason=step.reason,
            time=measured.time,
            left_out=measured.left_out,
            bound_ratio=measured.bound_ratio,
            than=step.than,
            peak_gflops=facts.peak_gflops(self.device.model, step),
        )
        if step.place in HOST:
            return row
        row = replace(row, moves=self._moves.get(_kind(step)))
        choice = self._choices.get(step.key)
        if choice is None:
            return row
        configuration = choice.configuration
        tile = tile_of(configuration) if self.kernel.name in TILED else None
        return replace(
            row,
            configuration=str(configuration),
            chosen=choice.chosen,
            is_short=choice.is_short,
            tile=tile,
            predicted_bytes=predicted_bytes(problem, tile) if tile else None,
        )

    def _work(self, problem: Problem) -> Work:
        return Work(self.kernel.flops(problem) or 0, self.kernel.estimated_bytes(problem))
