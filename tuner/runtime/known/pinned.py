"""Configurations that the application or its lock names: they go before every other source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime.choice import Choice, TargetDevice, is_admitted
from tilewright.tuner.runtime.errors import LaunchError


class Pinned:
    """The named configurations of one runtime, and the first uses of those not verified at their shape."""

    def __init__(self, configurations: Mapping[Problem, Configuration]) -> None:
        self.configurations: dict[Problem, Configuration] = dict(configurations)
        self._matches: dict[Problem, str] = {}
        self._calls: dict[Problem, str] = {}

    def __len__(self) -> int:
        return len(self.configurations)

    def __contains__(self, problem: Problem) -> bool:
        return problem in self.configurations

    def add(
        self,
        configurations: Mapping[Problem, Configuration],
        matches: Mapping[Problem, str],
        calls: Mapping[Problem, str],
    ) -> None:
        """Names these from now on; their matches and library calls replace those of earlier ones."""
        self.configurations |= configurations
        kept = {problem: call for problem, call in self._calls.items() if problem not in configurations}
        self._calls = kept | dict(calls)
        gone = {problem: match for problem, match in self._matches.items() if problem not in configurations}
        self._matches = gone | dict(matches)

    def is_verified(self, problem: Problem) -> bool:
        """Whether the problem's pinned configuration runs without a check."""
        return problem not in self._matches

    def configuration(self, kernel: Kernel, problem: Problem, place: TargetDevice) -> Configuration:
        """The named configuration; raises LaunchError where the search space does not have it."""
        configuration = self.configurations[problem]
        if not is_admitted(kernel, problem, replace(place, most_workspace_bytes=None), configuration):
            raise LaunchError(f"pinned: {configuration} is not in the search space of {problem} on {place.slug}")
        return configuration

    def choice(self, kernel: Kernel, problem: Problem, place: TargetDevice) -> Choice:
        """That configuration with its match and the library's call that is launched in its place; raises likewise."""
        choice = Choice(self.configuration(kernel, problem, place), "pinned", self._matches.get(problem, "exact"))
        call = self._calls.get(problem)
        return choice if call is None else replace(choice, library_faster=True, library_name=call)
