"""Where configurations come from, in order: pinned, a bundle, the cache on disk, the service, the kernel's default."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tilewright.kernels.catalogue import Catalogue, catalogue
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.folders import folders_of
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import OptionValue, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime.answers import AnswerCache
from tilewright.tuner.runtime.bundle import Bundle
from tilewright.tuner.runtime.choice import Choice, TargetDevice, default_choice, is_admitted
from tilewright.tuner.runtime.errors import LaunchError, ServiceWarning, UntunedWarning, warn
from tilewright.tuner.runtime.forks import ForkSafeLock
from tilewright.tuner.runtime.launcher import Launcher, resolved
from tilewright.tuner.runtime.local_service import local_address
from tilewright.tuner.runtime.service import Service

T = TypeVar("T")

SERVICE_LIMIT_S = 2.0


class Runtime:
    """Launchers, and the sources that they get their configurations from.

    `bundle` is what `tilewright bundle` wrote; with `public_key` it must be signed by that key and, without
    `allow_older_bundle`, be no older than what was used here before, and its cubins are loaded instead of compiling.
    `url` and `key` name a service: it is asked, for at most `service_limit_s`, where there is no bundle.
    `report_misses` lets it know in the background what was not tuned. `pinned` goes before everything.
    """

    def __init__(
        self,
        *,
        bundle: Path | str | None = None,
        public_key: Path | str | None = None,
        allow_older_bundle: bool = False,
        url: str | None = None,
        key: str | None = None,
        service_limit_s: float = SERVICE_LIMIT_S,
        report_misses: bool = False,
        pinned: Mapping[Problem, Configuration] | None = None,
        answers: AnswerCache | None = None,
        kernels: Catalogue | None = None,
    ) -> None:
        self._catalogue = kernels or catalogue()
        key_file = Path(public_key) if public_key else None
        self._bundle = Bundle.open(Path(bundle), key_file, allow_older=allow_older_bundle) if bundle else None
        self._answers = answers or AnswerCache()
        self._service = Service(url, key, service_limit_s, self._answered) if url else None
        self._report_misses = report_misses
        self._pinned = dict(pinned or {})
        self._choices: dict[tuple[Problem, str], Choice] = {}
        self._looking: dict[tuple[Problem, str], ForkSafeLock] = {}
        self._launchers: dict[Any, Launcher] = {}
        self._lock = ForkSafeLock()

    def best(
        self, kernel: str, *, dtype: str = "float32", device: str | None = None, **named: int | OptionValue
    ) -> Launcher:
        """The launcher of a problem, axes and options by name; the same object for the same question.

        With a `device` ("cpu", "cuda", "cuda:1") its configuration is chosen at once, else with the first launch.
        Raises InvalidProblemError, UnknownNameError, WrongDeviceError.
        """
        question = kernel, dtype, device, tuple(sorted(named.items()))
        launcher = self._launchers.get(question)
        if launcher is None:
            declared = self._catalogue.get(kernel)
            problem = _problem(declared, dtype, named)
            launcher = Launcher(declared, problem, resolved(device) if device else None, self)
            if device and 0 not in problem.shape.values():
                launcher.choice()
            launcher = self._launchers.setdefault(question, launcher)
        return launcher

    def choose(self, kernel: Kernel, problem: Problem, place: TargetDevice) -> Choice:
        """The configuration for a problem on a device model; looked for once, and warned of once."""
        key = problem, place.slug
        with self._lock:
            looking = self._looking.setdefault(
                key, ForkSafeLock()
            )  # for one problem nobody waits until another is found
        with looking:
            if key not in self._choices:
                self._choices[key] = self._chosen(kernel, problem, place)
            return self._choices[key]

    def loaded(self, kernel: Kernel, problem: Problem, place: TargetDevice, load: Callable[[Choice], T]) -> T:
        """What `load` makes of the chosen configuration, or of the kernel's default where that raises LaunchError.

        A prediction was compiled by nobody, and what was measured by another version of the compiler. From then on the
        default is the choice, with one warning. What the application pinned is not replaced.
        """
        choice = self.choose(kernel, problem, place)
        try:
            return load(choice)
        except LaunchError as error:
            default = default_choice(kernel, problem, place)
            if choice.origin == "pinned" or choice.configuration == default.configuration:
                raise
            made = load(default)
            warn(
                f"{error}\nThe default configuration of {_words(kernel, problem)} is used. "
                f"Tune it: {_tune_command(kernel, problem, place)}",
                UntunedWarning,
            )
        with self._lock:
            self._choices[problem, place.slug] = default
        return made

    def _chosen(self, kernel: Kernel, problem: Problem, place: TargetDevice) -> Choice:
        if problem in self._pinned:
            return _pinned(kernel, problem, place, self._pinned[problem])
        choice = self._bundle.find(kernel, problem, place) if self._bundle else None
        choice = choice or self._answers.get(kernel, problem, place)
        if choice is None and self._service and self._bundle is None:
            choice = self._asked(kernel, problem, place) or self._answers.get(kernel, problem, place, even_old=True)
        elif choice is None and self._service and self._report_misses:
            self._service.report(problem, place)
        is_known = choice is not None and choice.match != "default"
        choice = choice or default_choice(kernel, problem, place)  # raises where there is none, before one is promised
        if not is_known:
            warn(
                f"no result for {_words(kernel, problem)} on {place.slug}: the kernel's default configuration is used. "
                f"Tune it: {_tune_command(kernel, problem, place)}",
                UntunedWarning,
            )
        return choice

    def _asked(self, kernel: Kernel, problem: Problem, place: TargetDevice) -> Choice | None:
        answer = self._service.ask(problem, place) if self._service else None
        if answer is None:
            return None
        try:
            choice = Choice.from_facts(answer, "service")
        except (TypeError, ValueError) as error:
            warn(f"{problem}: the service's answer cannot be used ({error})", ServiceWarning)
            return None
        return choice if is_admitted(kernel, problem, place.limits, choice.configuration) else None

    def _answered(self, problem: Problem, place: TargetDevice, answer: Mapping[str, Any]) -> None:
        if answer.get("match") != "default":
            self._answers.put(problem, place, answer)


def best(kernel: str, *, dtype: str = "float32", device: str | None = None, **named: int | OptionValue) -> Launcher:
    """`Runtime.best` of this process's runtime, which the environment's settings describe."""
    return default_runtime().best(kernel, dtype=dtype, device=device, **named)


@cache
def default_runtime() -> Runtime:
    """Made when first asked for; raises BrokenBundleError, ServiceAddressError, LaunchError for a wrong setting."""
    setting = os.environ.get
    try:
        folders = folders_of(setting("TILEWRIGHT_KERNEL_FOLDERS") or "")
    except ValueError as error:
        raise LaunchError(f"TILEWRIGHT_KERNEL_FOLDERS: {error}") from error
    return Runtime(
        bundle=setting("TILEWRIGHT_BUNDLE") or None,
        public_key=setting("TILEWRIGHT_BUNDLE_KEY") or None,
        allow_older_bundle=_is_on("TILEWRIGHT_ALLOW_OLDER_BUNDLE"),
        url=setting("TILEWRIGHT_URL") or local_address(),
        key=setting("TILEWRIGHT_KEY") or None,
        report_misses=_is_on("TILEWRIGHT_REPORT_MISSES"),
        kernels=Catalogue.load(folders) if folders else None,
    )


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in {"1", "true", "yes", "on"}


def _problem(kernel: Kernel, dtype: str, named: Mapping[str, Any]) -> Problem:
    """The problem; an axis of 0 is one as long as the output has no element then."""
    shape = {name: value for name, value in named.items() if name in kernel.axes}
    options = {name: value for name, value in named.items() if name not in kernel.axes}
    empty = [axis for axis, size in shape.items() if size == 0 and type(size) is int]
    problem = kernel.problem(shape | dict.fromkeys(empty, 1), dtype, options)
    if not empty:
        return problem
    problem = replace(problem, axes=tuple((axis, shape[axis]) for axis, _ in problem.axes))
    if 0 not in kernel.output.shape(problem):
        raise InvalidProblemError(
            f"shape.{empty[0]}", "of an empty sum there is nothing to launch; fill the output with 0", f"{empty[0]}=1"
        )
    return problem


def _given_options(kernel: Kernel, problem: Problem) -> list[str]:
    """The options that are not at their defaults, as `name=value`."""
    values = {option.name: problem.options[option.name] for option in kernel.options}
    given = ((option.name, values[option.name]) for option in kernel.options if values[option.name] != option.default)
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in given]


def _words(kernel: Kernel, problem: Problem) -> str:
    return " ".join([str(problem), *_given_options(kernel, problem)])


def _tune_command(kernel: Kernel, problem: Problem, place: TargetDevice) -> str:
    """The command line that tunes it, whole."""
    words = ["tilewright tune", kernel.name, "--shape", ",".join(f"{axis}={size}" for axis, size in problem.axes)]
    words += [] if problem.dtype == "float32" else ["--dtype", problem.dtype]
    words += [word for option in _given_options(kernel, problem) for word in ("--option", option)]
    return " ".join([*words, "--device-model", shlex.quote(place.slug)])


def _pinned(kernel: Kernel, problem: Problem, place: TargetDevice, configuration: Configuration) -> Choice:
    if not is_admitted(kernel, problem, place.limits, configuration):
        raise LaunchError(f"pinned: {configuration} is not in the search space of {problem} on {place.slug}")
    return Choice(configuration, "pinned")
