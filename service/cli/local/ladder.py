"""The measuring of `tilewright report`: the device held alone, the known configurations, the progress."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import OptionValue
from tilewright.kernels.space import Configuration
from tilewright.service.cli.connection import connect, embedded_server
from tilewright.service.cli.output import note, notes
from tilewright.service.device_lock import DeviceBusyError, host_lock
from tilewright.service.errors import ServiceError
from tilewright.service.operations.answers import Match
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.parse import parse_shape
from tilewright.service.settings import settings
from tilewright.tuner.compile.compiler import default_compiler
from tilewright.tuner.devices.device import DeviceModel
from tilewright.tuner.devices.local import DeviceEntry, DeviceSpec, find_device, list_devices
from tilewright.tuner.report.choices import KnownConfiguration, read_known
from tilewright.tuner.report.ladders import Ladder
from tilewright.tuner.report.measuring import LadderRun
from tilewright.tuner.report.own import ladder_of
from tilewright.tuner.report.rows import LadderReport
from tilewright.tuner.report.scales import Scale, scale_of

WAIT_S = 30.0
"""How long a report waits for the device, which another report or a job that ends soon may have."""

OnProgress = Callable[[float, str], None]


def measured(
    kernel: str,
    device: str | None,
    *,
    shape: str | None,
    known: Sequence[Path],
    quick: bool,
    seconds: float | None,
) -> LadderReport:
    """The report of that kernel; raises what is wrong with the arguments before anything runs."""
    declared = kernel_named(kernel)
    ladder, entry = ladder_of(declared), device_named(device)
    asked = None if shape is None else parse_shape(shape)
    scale = scale_of(ladder, entry.kind, quick=quick, shape=asked, seconds=seconds)
    scale.problem(declared, ladder.steps[-1].dtype, ladder.options)  # a wrong shape is refused before anything runs
    configurations = [one for path in known for one in read_known(path)]
    with alone_on(entry), _progress() as told:
        return _run(entry, declared, ladder, scale, configurations, told=told)


def device_named(name: str | None) -> DeviceEntry:
    """The device of that name; without a name the first of this machine, GPUs before the CPU."""
    entries = list_devices()
    return find_device(entries[0].name if name is None and entries else name or "cuda:0", entries)


def alone_on(entry: DeviceEntry) -> ExitStack:
    """Holds the device until it is closed; waits some seconds for its present holder."""
    take = partial(host_lock, entry.physical_uuid, "measuring", host_wide=entry.kind == "cuda")
    held = ExitStack()
    try:
        held.enter_context(take(wait_s=0))
    except DeviceBusyError:
        note(f"{entry.name} is in use; waiting up to {WAIT_S:g} s for it")
        held.enter_context(take(wait_s=WAIT_S))
    return held


def _run(
    entry: DeviceEntry,
    kernel: Kernel,
    ladder: Ladder,
    scale: Scale,
    given: Sequence[KnownConfiguration],
    *,
    told: OnProgress,
) -> LadderReport:
    """The report; the device is opened in this process, which is the only one to use it meanwhile."""
    device = DeviceSpec("cpu" if entry.kind == "cpu" else entry.uuid, default_compiler()).open()
    try:
        known = [*given, *_from_database(kernel, ladder, scale, device.model)]
        command = shlex.join(["tilewright", *sys.argv[1:]])
        own = None if kernel.name in catalogue().by_name else kernel
        run = LadderRun(device, ladder, scale, known, command=command, on_progress=told, own=own)
        return run.report()
    finally:
        device.close()


def _from_database(kernel: Kernel, ladder: Ladder, scale: Scale, model: DeviceModel) -> list[KnownConfiguration]:
    """The best known configurations of the table's problems; none if no database runs: it is not started for this."""
    server = embedded_server()
    if not settings().url and server is not None and not server.running():
        return []
    accuracies = next((option.values for option in kernel.options if option.name == "accuracy"), ())
    asked: list[tuple[str, dict[str, OptionValue]]] = [(dtype, {}) for dtype in kernel.dtypes]
    asked += [("float32", {"accuracy": word}) for word in accuracies[1:]]
    found = []
    try:
        with connect() as connection:
            for dtype, extra in asked:
                problem = scale.problem(kernel, dtype, {**ladder.options, **extra})
                answer = connection.best(kernel.name, model.slug, problem.stated_shape, dtype, dict(problem.options))
                if answer.match is Match.EXACT:
                    best = Configuration.of(answer.variant, answer.configuration)
                    found.append(
                        KnownConfiguration(
                            kernel.name, problem.stated_shape, dtype, problem.options, best, "the database"
                        )
                    )
    except ServiceError as error:  # a device model that no worker has registered, a database that is away
        note(f"measuring without known results: {error}")
    return found


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """Shows the progress: a bar on a terminal, lines elsewhere."""
    if not notes.is_terminal:
        yield lambda share, what: note(f"{share:4.0%} {what}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    with Progress(*columns, console=notes) as bar:
        task = bar.add_task("report", total=1.0, said="")
        yield lambda share, what: bar.update(task, completed=share, said=what)
