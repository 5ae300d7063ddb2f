"""A problem by the names of its axes and options, in words, and the command line that tunes it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.runtime.choice import TargetDevice


def problem_words(kernel: Kernel, problem: Problem) -> str:
    """The problem with the options that are not at their defaults."""
    return " ".join([str(problem), *given_options(kernel, problem)])


def family_words(kernel: Kernel, family: Family) -> str:
    """The family with the options that are not at their defaults."""
    return " ".join([str(family), *given_options(kernel, family.largest)])


def tune_command(kernel: Kernel, problem: Problem, place: TargetDevice) -> str:
    """The command line that tunes it, whole."""
    words = ["tilewright tune", kernel.name, "--shape", problem.shape_text]
    words += [] if problem.dtype == "float32" else ["--dtype", problem.dtype]
    words += [word for option in given_options(kernel, problem) for word in ("--option", option)]
    return " ".join([*words, "--device-model", shlex.quote(place.slug)])


def given_options(kernel: Kernel, problem: Problem) -> list[str]:
    """The options that are not at their defaults, as `name=value`."""
    values = {option.name: problem.options[option.name] for option in kernel.options}
    given = ((option.name, values[option.name]) for option in kernel.options if values[option.name] != option.default)
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in given]


def named_problem(kernel: Kernel, dtype: str, named: Mapping[str, Any]) -> Problem:
    """The problem; an axis may have size 0 if the output then has no element."""
    shape = {name: value for name, value in named.items() if name in kernel.axis_names}
    options = {name: value for name, value in named.items() if name not in kernel.axis_names}
    empty = [axis for axis in kernel.axes if shape.get(axis) == 0 and type(shape[axis]) is int]
    problem = kernel.problem(shape | dict.fromkeys(empty, 1), dtype, options)
    if not empty:
        return problem
    problem = replace(problem, axes=tuple((axis, shape[axis]) for axis, _ in problem.axes))
    if 0 not in kernel.output.shape(problem):
        raise InvalidProblemError(
            f"shape.{empty[0]}", "of an empty sum there is nothing to launch; fill the output with 0", f"{empty[0]}=1"
        )
    return problem
