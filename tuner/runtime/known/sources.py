"""The sources of configurations, in order: pinned, bundle, cache on disk, service, shipped records, default."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tilewright.kernels.catalogue import Catalogue, catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.any_size.families import Families
from tilewright.tuner.runtime.any_size.ranges import Ranges
from tilewright.tuner.runtime.any_size.table_sources import TableSources
from tilewright.tuner.runtime.any_size.tables import TableFolder
from tilewright.tuner.runtime.bundles.bundle import Bundle
from tilewright.tuner.runtime.choice import NAMED, Choice, TargetDevice, default_choice, is_admitted
from tilewright.tuner.runtime.errors import LaunchError, ServiceWarning, UntunedError, UntunedWarning, warn
from tilewright.tuner.runtime.first_use.first_use import UNVERIFIED, CheckedUse, Finding, FirstUse, FirstUses
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.known.pinned import Pinned
from tilewright.tuner.runtime.known.predictions import Predict, Predictions
from tilewright.tuner.runtime.known.service import SeenTimes, Service
from tilewright.tuner.runtime.launches.devices import place_of
from tilewright.tuner.runtime.launches.gpu import driver_words
from tilewright.tuner.runtime.memory.room import NoRoomError, limit_bytes
from tilewright.tuner.runtime.words import family_words, problem_words, tune_command
from tilewright.tuner.turns.contest import Contests, Verdict

T = TypeVar("T")

SERVICE_LIMIT_S = 2.0


class Known(NamedTuple):
    """The findings on one device model: for problems of one size, and for families."""

    choices: Mapping[Problem, Choice]
    ranges: Mapping[Family, Ranges]


class Sources:
    """A runtime's sources of configurations, and what was chosen so far. `Runtime` says what the arguments mean."""

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
        only_tuned: bool = False,
        shipped_records: bool = True,
        check_first_use: bool | None = None,
        any_size_operators: bool = False,
        pinned: Mapping[Problem, Configuration] | None = None,
        answers: AnswerCache | None = None,
        kernels: Catalogue | None = None,
    ) -> None:
        self.kernels = kernels or catalogue()
        key_file = Path(public_key) if public_key else None
        self._bundle = Bundle.open(Path(bundle), key_file, allow_older=allow_older_bundle) if bundle else None
        self._answers = answers or AnswerCache()
        self._service = Service(url, key, service_limit_s, self._answered) if url else None
        self._report_misses, self._only_tuned = report_misses, only_tuned
        self._pinned = Pinned(pinned or {})
        self.tables = TableFolder(self._answers.folder.parent / "tables")
        self._uses = FirstUses(self.withdrawn, is_on=check_first_use)
        # Apart from the service's answers: a prediction of our own must not keep it from being asked.
        limit = limit_bytes()  # what is predicted within one is not for programs without
        folder = self._answers.folder / ("shipped" if limit is None else f"shipped-{limit}")
        self._predictions = Predictions(folder if shipped_records else None, self._uses)
        self.contests = Contests()
        self._choices: dict[tuple[Problem, str], Choice] = {}
        self._looking: dict[tuple[Problem, str], ForkSafeLock] = {}
        self._any_size_operators = any_size_operators
        served = TableFolder(self._answers.folder / "tables")
        tables = TableSources(self._bundle, self.tables, served, self._service)
        self.families = Families(
            self._known_for_all,
            tables.ranges,
            self.first_use,
            self._warn_untuned,
            self.predict_ahead,
            only_tuned=only_tuned,
        )
        self._lock = ForkSafeLock()
        self._forget(())

    @property
    def has_named(self) -> bool:
        """Whether a bundle, a lock or the application names configurations: these run from the first call on."""
        return self._bundle is not None or bool(self._pinned) or self.families.has_pinned

    def is_known(self, kernel: Kernel, problem: Problem, place: TargetDevice) -> bool:
        """Whether `choose` asks no service and predicts nothing, which takes up to seconds."""
        if (problem, place.slug) in self._choices or problem in self._pinned or self._known(kernel, problem, place):
            return True
        is_asked = self._service is not None and self._bundle is None
        return not is_asked and self._predictions.kept(kernel, problem, place) is not None

    def look_for(self, kernel: Kernel, problem: Problem, place: TargetDevice) -> None:
        """Finds what `choose` then returns, and leaves the interpreter to other threads; raises as `choose`."""
        from tilewright.tuner.runtime.known.prediction_process import PREDICTIONS  # noqa: PLC0415 - seldom needed

        self.choose(kernel, problem, place, predict=PREDICTIONS.answer)

    def choose(
        self, kernel: Kernel, problem: Problem, place: TargetDevice, *, predict: Predict | None = None
    ) -> Choice:
        """The configuration for a problem on a device model; looked for once, and warned of once."""
        key = problem, place.slug
        with self._lock:
            # One lock a problem: nobody waits until another problem's is found.
            looking = self._looking.setdefault(key, ForkSafeLock())
        with looking:
            choice = self._choices.get(key)
            if choice is None or self._uses.is_withdrawn(kernel, problem, place, choice):
                choice = self._choices[key] = self._chosen(kernel, problem, place, predict)
            return choice

    def predicted(
        self, kernel: Kernel, problem: Problem, place: TargetDevice, predict: Predict | None = None
    ) -> Choice | None:
        """The prediction of shipped records; None where they have none."""
        return self._predictions.of(kernel, problem, place, predict)

    def predict_ahead(self, kernel: Kernel, problems: Sequence[Problem], place: TargetDevice) -> None:
        """Keeps what shipped records predict of these problems, several at once where there are cores for that."""
        wanted = dict.fromkeys([*problems, *(_in_fp32(kernel, one) for one in problems)])
        self._predictions.make(kernel, wanted, place)

    def first_use(self, kernel: Kernel, problem: Problem, place: TargetDevice, choice: Choice) -> FirstUse | None:
        """The check of that choice at its first launch; None where none is needed."""
        return self._uses.of(kernel, problem, place, choice)

    def takes_turns(self, choice: Choice, /, *, is_beside: bool) -> bool:
        """Whether first calls decide between it and a library's call: nobody measured both here or named it.

        `is_beside`: the records hold it against that call.
        """
        is_open = choice.match in UNVERIFIED or (choice.is_measured and not is_beside)
        return self._uses.is_on and is_open and choice.origin not in NAMED

    @property
    def checks_first_use(self) -> bool:
        """Whether first uses are checked, by the setting."""
        return self._uses.is_on

    def first_uses(self) -> list[CheckedUse]:
        """Every configuration in use that was not verified at its shape, and what its check said."""
        return self._uses.listed()

    def withdrawn(self, use: FirstUse, finding: Finding) -> None:
        """Replaces a configuration that was found wrong: another one serves the problem from now on.

        It is called once for each configuration. The service is told of it by a claim, which a worker verifies.
        """
        with self._lock:
            self._choices.pop((use.problem, use.place.slug), None)
        if self._service:
            driver = _driver(use.place)
            self._service.claim(use.kernel, use.problem, use.place, driver, use.choice.configuration, str(finding))

    def claim_times(self, kernel: Kernel, problem: Problem, device: str, choice: Choice, verdict: Verdict) -> None:
        """Tells the service, if there is one, the times of the first calls; it measures for itself."""
        if self._service is None or verdict.ours is None or verdict.library is None or choice.is_measured:
            return
        expected_ms, place = choice.time_ms or 1.0, place_of(device)
        times = SeenTimes(verdict.ours * expected_ms, verdict.library * expected_ms, verdict.calls)
        self._service.claim(kernel, problem, place, _driver(place), choice.configuration, str(times), times=times)

    def pin(
        self,
        configurations: Mapping[Problem, Configuration],
        matches: Mapping[Problem, str] | None = None,
        calls: Mapping[Problem, str] | None = None,
    ) -> None:
        """Puts these configurations before every source from now on, for launchers that are asked for later.

        `matches`: of those that were not verified at their shape how they match it, so that they are checked at their
        first use, and other sources are asked where they are wrong. `calls`: the library's, launched in their place.
        """
        with self._lock:
            self._pinned.add(configurations, matches or {}, calls or {})
            self._forget(configurations)

    def known(self, slug: str) -> Known:
        """All findings on a device model so far, without named configurations."""
        choices = {problem: one for (problem, where), one in list(self._choices.items()) if where == slug}
        ranges = {one.family: one.ranges for one in self.families.in_use(slug)}
        return Known({problem: one for problem, one in choices.items() if one.origin not in NAMED}, ranges)

    def adopt(self, known: Known, slug: str) -> None:
        """Takes over another process's findings, for launchers that are asked for later."""
        with self._lock:
            self._forget(known.choices)
            self._choices |= {(problem, slug): choice for problem, choice in known.choices.items()}
            self.families.pin(known.ranges, slug)

    @property
    def asks_service(self) -> bool:
        """Whether a service is asked, which may know more from one day to the next."""
        return self._service is not None

    def learn(self, problem: Problem, place: TargetDevice, answer: Mapping[str, Any]) -> None:
        """Keeps an answer on disk as if the service had given it, for launchers that are asked for later."""
        self._answered(problem, place, answer)
        with self._lock:
            self._forget([problem])

    def _forget(self, problems: Iterable[Problem]) -> None:
        gone = set(problems)
        self._choices = {key: choice for key, choice in self._choices.items() if key[0] not in gone}
        self.families.forget()

    def loaded(self, kernel: Kernel, problem: Problem, place: TargetDevice, load: Callable[[Choice], T]) -> T:
        """The result of `load` for the chosen configuration, or for the kernel's default where that raises LaunchError.

        A prediction was compiled by nobody, and what was measured by another version of the compiler. From then on the
        default is the choice, with one warning. A configuration that the application pinned is not replaced.
        """
        choice = self.choose(kernel, problem, place)
        try:
            return load(choice)
        except LaunchError as error:
            is_short = isinstance(error, NoRoomError)
            default = self._default(kernel, problem, replace(place, most_workspace_bytes=0) if is_short else place)
            if self._only_tuned or choice.origin == "pinned" or choice.configuration == default.configuration:
                raise
            made = load(default)
            warn(
                f"{error}\nThe default configuration of {problem_words(kernel, problem)} is used. "
                f"Tune it: {tune_command(kernel, problem, place)}",
                UntunedWarning,
            )
        with self._lock:
            self._choices[problem, place.slug] = default
        return made

    def _known_for_all(self, kernel: Kernel, problem: Problem, place: TargetDevice) -> Choice | None:
        """The choice that is pinned, in the bundle, on disk, or predicted; no service is asked."""
        if problem in self._pinned:
            return Choice(self._pinned.configuration(kernel, problem, place), "pinned")
        if not problem.at_launch:
            choice = self._known(kernel, problem, place)
            is_of_one_size = choice is not None and choice.match in {"exact", "range"}
            return choice and replace(choice, match="nearest" if is_of_one_size else choice.match, cubin=None)
        return self.predicted(kernel, problem, place) or self._of_fp32(kernel, problem, place, None)

    def _warn_untuned(self, kernel: Kernel, family: Family, place: TargetDevice) -> None:
        missing = f"no result for some sizes of {family_words(kernel, family)} on {place.slug}"
        if self._only_tuned:
            raise UntunedError(missing)
        warn(f"{missing}: the kernel's default configuration is used there", UntunedWarning)

    def _chosen(self, kernel: Kernel, problem: Problem, place: TargetDevice, predict: Predict | None) -> Choice:
        if problem in self._pinned:
            pinned = self._pinned.choice(kernel, problem, place)
            if self._pinned.is_verified(problem) or not self._uses.is_withdrawn(kernel, problem, place, pinned):
                return pinned
        choice = self._known(kernel, problem, place)
        if choice is None and self._service and self._bundle is None:
            choice = self._asked(kernel, problem, place) or self._known(kernel, problem, place, even_old=True)
        elif choice is None and self._service and self._report_misses:
            self._service.report(problem, place)
        if choice is None or choice.match == "default":
            found = self._of_dense(kernel, problem, place) or self.predicted(kernel, problem, place, predict)
            choice = found or self._of_fp32(kernel, problem, place, predict) or choice
        if choice is not None and choice.match != "default":
            return choice
        missing = f"no result for {problem_words(kernel, problem)} on {place.slug}"
        remedy = tune_command(kernel, problem, place)
        if self._only_tuned:
            raise UntunedError(f"{missing}. Tune it: {remedy}")
        choice = choice or self._default(kernel, problem, place)  # raises without one: no warning then
        warn(f"{missing}: the kernel's default configuration is used. Tune it: {remedy}", UntunedWarning)
        return choice

    def _known(self, kernel: Kernel, problem: Problem, place: TargetDevice, *, even_old: bool = False) -> Choice | None:
        """The bundle's result of this problem, or the answer that is kept on disk."""
        choice = self._bundle.find(kernel, problem, place) if self._bundle else None
        choice = choice or self._answers.get(kernel, problem, place, even_old=even_old)
        return None if choice is None or self._uses.is_withdrawn(kernel, problem, place, choice) else choice

    def _default(self, kernel: Kernel, problem: Problem, place: TargetDevice) -> Choice:
        """The default of the first variant whose default was not found wrong here; raises LaunchError without one."""
        usable = lambda choice: not self._uses.is_withdrawn(kernel, problem, place, choice)  # noqa: E731
        return default_choice(kernel, problem, place, is_usable=usable)

    def _of_dense(self, kernel: Kernel, problem: Problem, place: TargetDevice) -> Choice | None:
        """The dense arrays' configuration as the nearest, for arrays with gaps or a packed one, where it fits."""
        usual = {name: value for name, value in problem.options.items() if name != "packed_b"}
        plain = kernel.problem(problem.dense.stated_shape, problem.dtype, usual)
        if plain == problem:
            return None
        choice = self._known(kernel, plain, place, even_old=True)
        if choice is None or not is_admitted(kernel, problem, place, choice.configuration):
            return None
        match = "nearest" if choice.match == "exact" else choice.match
        choice = replace(choice, match=match, library_faster=None, cubin=None)
        return None if self._uses.is_withdrawn(kernel, problem, place, choice) else choice

    def _of_fp32(self, kernel: Kernel, problem: Problem, place: TargetDevice, predict: Predict | None) -> Choice | None:
        """FP32's configuration for TF32 of which nothing is known; the library's TF32 is expected to be faster."""
        exact = _in_fp32(kernel, problem)
        if exact == problem:
            return None
        choice = self._known(kernel, exact, place, even_old=True) or self.predicted(kernel, exact, place, predict)
        if choice is None or not is_admitted(kernel, problem, place, choice.configuration):
            return None
        match = "nearest" if choice.is_measured else choice.match
        return replace(choice, match=match, library_faster=True, library_ms=None, cubin=None)

    def _asked(self, kernel: Kernel, problem: Problem, place: TargetDevice) -> Choice | None:
        answer = self._service.ask(problem, place) if self._service else None
        if answer is None:
            return None
        try:
            choice = Choice.from_facts(answer, "service")
        except (TypeError, ValueError) as error:
            warn(f"{problem}: the service's answer cannot be used ({error})", ServiceWarning)
            return None
        is_usable = is_admitted(kernel, problem, place, choice.configuration)
        return choice if is_usable and not self._uses.is_withdrawn(kernel, problem, place, choice) else None

    def _answered(self, problem: Problem, place: TargetDevice, answer: Mapping[str, Any]) -> None:
        if answer.get("match") != "default":
            self._answers.put(problem, place, answer)


def _driver(place: TargetDevice) -> str:
    """The driver here, in words; empty for a CPU."""
    return "" if place.slug.startswith("cpu") else driver_words()


def _in_fp32(kernel: Kernel, problem: Problem) -> Problem:
    """The same problem in FP32, where its accuracy allows TF32."""
    if problem.options.get("accuracy") != "tf32":
        return problem
    exact = kernel.problem(problem.stated_shape, problem.dtype, {**problem.options, "accuracy": "fp32"})
    return kernel.with_size_at_launch(exact, problem.at_launch) if problem.at_launch else exact
