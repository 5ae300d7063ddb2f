"""A configuration for a problem on a device model, wherever it was found, and the one that is always there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.kernels.errors import UnknownNameError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compilation import CompiledLaunch
from tilewright.tuner.runtime.errors import LaunchError

NAMED = frozenset({"pinned", "bundle"})
"""The origins of configurations that somebody has decided on."""

MEASURED = frozenset({"exact", "range"})
"""Matches of a problem that was measured, by itself or with its range; others are expectations."""


@dataclass(frozen=True)
class TargetDevice:
    """The device model that a configuration is chosen for: its slug and limits.

    `most_workspace_bytes`: of one launch, as the setting says; None for any number.
    """

    slug: str
    limits: Limits
    most_workspace_bytes: int | None = None


@dataclass(frozen=True)
class Choice:
    """The configuration to launch.

    `origin`: pinned, bundle, cache, service, shipped or default. `match`: as in the answer. `library_faster`: NVIDIA's
    library was faster, or is expected to be where it was not measured (`is_measured`); None where nobody compared.
    `library_ms`: its time, likewise; `library_name`: its call, which launchers make where it was faster
    (`library_calls.call_of`), of a range only where its table says that they do. `cubin` only from a bundle whose
    signature was checked: everything else is compiled here. `launch` comes with the cubin of a Triton kernel,
    `shared_cubin` where launches are compiled apart (`Preparation.is_shared`).
    """

    configuration: Configuration
    origin: str
    match: str = "exact"
    time_ms: float | None = None
    library_faster: bool | None = None
    cubin: bytes | None = field(default=None, repr=False)
    shared_cubin: bytes = field(default=b"", repr=False)
    launch: CompiledLaunch | None = field(default=None, repr=False)
    library_ms: float | None = None
    library_name: str | None = None

    @property
    def is_measured(self) -> bool:
        """Whether it was timed, and the library where there is one, at this problem or over its range."""
        return self.match in MEASURED

    @property
    def is_behind(self) -> bool:
        """Whether the library was faster, or without a measurement is expected to be no slower."""
        if self.is_measured or self.time_ms is None or self.library_ms is None:
            return bool(self.library_faster)
        return self.time_ms >= self.library_ms

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], origin: str) -> Choice:
        """The choice from the members variant, configuration, match, time_ms and library of an answer or bundle.

        Raises ValueError or TypeError where they are not of those kinds.
        """
        if not isinstance(facts, Mapping):
            raise TypeError("it is not a JSON object")
        values, time_ms, library = facts.get("configuration"), facts.get("time_ms"), facts.get("library")
        if not isinstance(values, Mapping) or not isinstance(time_ms, int | float | None):
            raise TypeError("configuration or time_ms is missing or has the wrong type")
        told = library if isinstance(library, Mapping) else {}
        library_ms, library_name, match = told.get("time_ms"), told.get("name"), str(facts.get("match", "exact"))
        is_called = match != "range" or told.get("launched") is True
        return cls(
            Configuration.from_json({**values, "variant": facts.get("variant")}),
            origin,
            match,
            time_ms,
            bool(told["faster"]) if "faster" in told else None,
            library_ms=library_ms if isinstance(library_ms, int | float) else None,
            library_name=library_name if isinstance(library_name, str) and is_called else None,
        )


def is_admitted(kernel: Kernel, problem: Problem, place: TargetDevice, configuration: Configuration) -> bool:
    """Whether it is in the problem's space on that device; every origin is checked, since values become source text."""
    try:
        variant = kernel.variant(configuration.variant)
    except UnknownNameError:
        return False
    space, values, limits = variant.space(), configuration.values, place.limits
    if not (variant.runs_on(limits) and variant.admits(problem, limits)) or len(values) != len(space.parameters):
        return False
    given = dict(configuration.items)
    is_known = all(given.get(parameter.name) in parameter.values for parameter in space.parameters)
    most = place.most_workspace_bytes
    if is_known and most is not None and variant.workspace_at_once(values, problem) > most:
        return False
    if problem.at_launch:  # thrift is a matter of the sizes that were measured
        return is_known and variant.is_sound(values, problem, limits)
    return is_known and space.admits(values, problem, limits)


def default_choice(
    kernel: Kernel, problem: Problem, place: TargetDevice, *, is_usable: Callable[[Choice], bool] = lambda _choice: True
) -> Choice:
    """The kernel's default if it fits the device, else the nearest that does; raises LaunchError for none.

    `is_usable`: whether a configuration may be used; LaunchError too where none of the variants' defaults may.
    """
    is_refused = False
    for variant in kernel.variants_from_default:
        configuration = variant.space().default()
        if is_admitted(kernel, problem, place, configuration):
            choice = Choice(configuration, "default", "default")
            if is_usable(choice):
                return choice
            is_refused = True
    if is_refused:
        raise LaunchError(f"{kernel.name}: every configuration for {problem} on {place.slug} was wrong in this process")
    starts = kernel.space(problem, place.limits).defaults()
    if not starts:
        raise LaunchError(f"{kernel.name} has no configuration for {problem} on {place.slug}")
    return Choice(kernel.default_configuration(kernel.space(problem, place.limits)), "default", "default")
