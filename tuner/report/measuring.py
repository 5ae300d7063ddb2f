"""A ladder measured on one device: configurations chosen, steps timed in turn, sizes swept, bytes counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.device import Bench, Device
from tilewright.tuner.errors import NoCompilerError, OutOfMemoryError
from tilewright.tuner.report import facts
from tilewright.tuner.report.choices import SEED, Choice, Known, at_size, choose, step_space
from tilewright.tuner.report.host_steps import HostSteps
from tilewright.tuner.report.ladders import Ladder, Step
from tilewright.tuner.report.moves import moves
from tilewright.tuner.report.rows import Moves, Report, StepRow, SweepRow, Work
from tilewright.tuner.report.scales import Scale
from tilewright.tuner.report.traffic import Counted, Watched, counted, predicted_bytes, tile_of
from tilewright.tuner.report.turns import Measured, times

HOST = ("loop", "blas")
OnProgress = Callable[[float, str], None]


@dataclass
class LadderRun:
    """One report in the making. `on_progress(share, what)` hears of every part; nothing is written anywhere."""

    device: Device
    ladder: Ladder
    scale: Scale
    known: Sequence[Known] = ()
    counters: bool = True
    command: str = ""
    on_progress: OnProgress = lambda _share, _what: None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kernel: Kernel = catalogue().get(self.ladder.kernel)
        self.host = HostSteps(self.kernel, self.scale.host_s)
        dtypes = {step.dtype for step in self.ladder.steps if step.place == "device"}
        steps = [step for step in self.ladder.steps if step.place != "library"]
        self._done, self._parts = 0.0, len(steps) + len(dtypes) + len(self.scale.sizes) + 2.0  # counters and writing
        self._deadline = time.monotonic() + self.scale.total_s
        self._choices: dict[str, Choice] = {}
        self._found: dict[str, Measured] = {}
        self._moves: dict[str, Moves | None] = {}

    def report(self) -> Report:
        """The whole report; raises TunerError where the device cannot go on."""
        try:
            for dtype in dict.fromkeys(step.dtype for step in self.ladder.steps if step.place not in HOST):
                self._at_table(dtype)
            sweep = self._sweep()
            self._host_steps(sweep)
            found = self._counted()
        finally:
            self.host.close()
        if found.missing:
            self.notes.append(f"Bytes were not counted: {found.missing}.")
        self._tell(self._parts, "writing")
        model = self.device.model
        return Report(
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
            steps=tuple(self._row(step, found) for step in self.ladder.steps),
            sweep=tuple(sweep),
            compared=self.ladder.compared,
            notes=tuple(self.notes),
        )

    def _tell(self, done: float, what: str) -> None:
        self._done = max(self._done, done)
        self.on_progress(min(1.0, self._done / self._parts), what)

    def _problem(self, dtype: str) -> Problem:
        return self.scale.problem(self.kernel, dtype, self.ladder.options)

    def _device_steps(self, dtype: str) -> list[Step]:
        return [step for step in self.ladder.steps if step.place == "device" and step.dtype == dtype]

    def _at_table(self, dtype: str) -> None:
        """Chooses and times all device steps of a dtype, and the library, on one bench."""
        problem = self._problem(dtype)
        bench = self.device.bench(self.kernel, problem, SEED)
        try:
            for step in self._device_steps(dtype):
                self._tell(self._done + 1, f"{step.title}: a configuration")
                self._choose(bench, step, problem)
            contestants = {step.key: self._choices[step.key].configuration for step in self._chosen(dtype)}
            self._tell(self._done + 1, f"{dtype}: rounds in turn")
            with_library = dtype == "float32"
            self._found |= times(bench, contestants, self.kernel.ranking_l2, self.scale.rounds, library=with_library)
            if with_library:
                self.notes.append(f"The library: {bench.library_name() or 'none for this problem'}.")
        finally:
            bench.close()
        self._moves[dtype] = moves(self.device, self.kernel, problem)

    def _chosen(self, dtype: str) -> list[Step]:
        return [step for step in self._device_steps(dtype) if step.key in self._choices]

    def _choose(self, bench: Bench, step: Step, problem: Problem) -> None:
        space = step_space(self.kernel, step, problem, self.device.model)
        if not len(space):
            needs = sorted({need for name in step.variants for need in self.kernel.variant(name).requires})
            here = f"needs {', '.join(needs)}, which this device has not" if needs else "does not serve this shape here"
            self._found[step.key] = Measured(left_out=here)
            return
        choice = choose(bench, self.kernel, step, space, self.scale, self.known)
        if choice is None:
            self._found[step.key] = Measured(left_out="no configuration of it was right and could be timed")
        else:
            self._choices[step.key] = choice

    def _sweep(self) -> list[SweepRow]:
        rows: list[SweepRow] = []
        for size in self.scale.sizes:
            if time.monotonic() > self._deadline:
                self.notes.append(f"Sizes from {size} on were left out: the report's time was up.")
                break
            self._tell(self._done + 1, f"size {size}")
            problem = self.scale.swept_problem(self.kernel, size, self.ladder.options)
            try:
                rows += self._at_size(size, problem)
            except OutOfMemoryError as error:
                self.notes.append(f"Sizes from {size} on were left out: {error}.")
                break
        return rows

    def _at_size(self, size: int, problem: Problem) -> list[SweepRow]:
        work = self._work(problem)
        rows = [
            SweepRow(size, step.key, work, found.time, found.bound_ratio)
            for step in self.ladder.steps
            if step.place in HOST and (found := self._on_host(step, problem)).time is not None
        ]
        bench = self.device.bench(self.kernel, problem, SEED)
        try:
            configurations = self._at_this_size(bench, problem)
            by_step = times(bench, configurations, self.kernel.ranking_l2, self.scale.sweep_rounds, library=True)
        finally:
            bench.close()
        moved = moves(self.device, self.kernel, problem)
        for key, found in by_step.items():
            if found.time is not None:
                text = str(configurations.get(key, ""))
                rows.append(SweepRow(size, key, work, found.time, found.bound_ratio, text, moved))
        return rows

    def _at_this_size(self, bench: Bench, problem: Problem) -> dict[str, Configuration]:
        found = {}
        for step in self._chosen("float32"):
            if step.sweeps:
                space = step_space(self.kernel, step, problem, self.device.model)
                chosen = self._choices[step.key].configuration
                l2, draws = self.kernel.ranking_l2, self.scale.draws
                mine = at_size(bench, step, space, chosen, l2=l2, draws=draws, known=self.known)
                if mine is not None:
                    found[step.key] = mine
        return found

    def _on_host(self, step: Step, problem: Problem) -> Measured:
        if not self.host.allows(step.place, problem):
            return Measured(left_out=f"would take longer than {self.scale.host_s:g} s a call")
        try:
            return Measured(*self.host.time(step.place, problem, SEED))
        except NoCompilerError as error:
            return Measured(left_out=" ".join(str(error).split()))

    def _host_steps(self, sweep: Sequence[SweepRow]) -> None:
        """At the table's problem, or else at the largest of the sweep that they were quick enough for."""
        for step in self.ladder.steps:
            if step.place not in HOST:
                continue
            self._tell(self._done + 1, step.title)
            found = self._on_host(step, self._problem(step.dtype))
            last = max((row for row in sweep if row.key == step.key), key=lambda row: row.size, default=None)
            if found.time is None and last is not None:
                problem = self.scale.swept_problem(self.kernel, last.size, self.ladder.options)
                found = Measured(last.time, last.bound_ratio, problem=problem)
            self._found[step.key] = found

    def _counted(self) -> Counted:
        if self.device.model.kind != "cuda":
            return Counted({}, missing="the CPU device has no counters")
        if not self.counters:
            return Counted({}, missing="counters were not asked for")
        self._tell(self._done + 1, "bytes, by ncu")
        watched = [
            Watched(
                self._problem(dtype),
                list(dict.fromkeys(self._choices[step.key].configuration for step in self._chosen(dtype))),
                library=dtype == "float32",
            )
            for dtype in ("float64", "float32")  # the library's launches come last
            if self._chosen(dtype)
        ]
        return counted(self.device.uuid, watched)

    def _row(self, step: Step, found: Counted) -> StepRow:
        measured = self._found.get(step.key, Measured(left_out="there is none here"))
        problem = measured.problem or self._problem(step.dtype)
        row = StepRow(
            key=step.key,
            title=step.title,
            place=step.place,
            dtype=step.dtype,
            shape=dict(problem.shape),
            work=self._work(problem),
            reason=step.reason,
            time=measured.time,
            left_out=measured.left_out,
            bound_ratio=measured.bound_ratio,
            peak_gflops=facts.peak_gflops(self.device.model, step),
        )
        if step.place in HOST:
            return row
        row = replace(row, moves=self._moves.get(step.dtype))
        choice = self._choices.get(step.key)
        if choice is None:
            return replace(row, traffic=found.library if step.place == "library" else None)
        configuration = choice.configuration
        tile = tile_of(configuration) if self.kernel.name != "gemv" else None
        return replace(
            row,
            configuration=str(configuration),
            chosen=choice.chosen,
            tile=tile,
            predicted_bytes=predicted_bytes(problem, tile) if tile else None,
            traffic=found.steps.get((step.dtype, configuration)),
        )

    def _work(self, problem: Problem) -> Work:
        return Work(self.kernel.flops(problem), self.kernel.bytes_moved(problem))
