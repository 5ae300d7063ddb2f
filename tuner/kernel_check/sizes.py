"""Kernels with an axis whose size comes with the launch: several sizes through one program, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel, Variant
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import OwnFunctionError, TrialFailure, TunerError, first_error
from tilewright.tuner.kernel_check.reference import SEED, words_of
from tilewright.tuner.kernel_check.report import Finding, KernelCheckReport

MORE = (1, 2, 127)
"""Sizes beside the shape's own: the least, one that a tile exceeds, and an odd one that is larger than most tiles."""


def check_sizes(kernel: Kernel, shape: Mapping[str, int], report: KernelCheckReport, device: CpuDevice) -> None:
    """Runs a configuration of each variant at several sizes of each such axis; adds an error for each wrong one."""
    limits = device.model.limits
    for axis in kernel.launch_axes:
        for variant in (v for v in kernel.variants if v.runs_on(limits)):
            problems = list(_problems(kernel, variant, shape, axis, limits))
            configuration = _for_all(kernel, variant, problems, limits)
            if configuration is not None:
                programs = {_ran(kernel, problem, configuration, report, device) for problem in problems}
                if len(programs - {""}) > 1:
                    message = f"sizes of {axis} make different code: the source must not need the size to be compiled"
                    report.add([Finding("error", "result", f"{variant.name} {axis}", message)])


def _problems(
    kernel: Kernel, variant: Variant, shape: Mapping[str, int], axis: str, limits: Limits
) -> Iterator[Problem]:
    for size in sorted({shape.get(axis, 1), *MORE}):
        try:
            problem = kernel.with_size_at_launch(kernel.problem({**shape, axis: size}), axis)
        except InvalidProblemError:
            continue
        if variant.admits(problem, limits):
            yield problem


def _for_all(kernel: Kernel, variant: Variant, problems: list[Problem], limits: Limits) -> Configuration | None:
    """The variant's default, or the start for one of the problems, that is sound for all of them."""
    starts = [variant.space().default()]
    starts += [one for problem in problems for one in kernel.space(problem, limits, only=[variant.name]).defaults()]
    sound = (one for one in starts if all(variant.is_sound(one.values, problem, limits) for problem in problems))
    return next(sound, None) if problems else None


def _ran(
    kernel: Kernel, problem: Problem, configuration: Configuration, report: KernelCheckReport, device: CpuDevice
) -> str:
    """The program that was run and judged; empty where there is none."""
    where = f"{configuration} {problem.dtype} {words_of(problem.stated_shape)}, {problem.at_launch} at launch"
    report.verified += 1
    try:
        bench = device.bench(kernel, problem, SEED)
    except OwnFunctionError as error:
        report.add([Finding("error", "result", where, str(error).splitlines()[0])])
        return ""
    try:
        program = bench.compile(configuration)
        for verification in bench.verify_each_kind(program) or ():
            if not verification.is_right:
                report.add([Finding("error", "result", f"{where}; {verification.message()}", "the result is wrong")])
                break
    except TrialFailure as failure:
        message = f"{failure.outcome.value} on the CPU: {first_error(failure.log)}"
        report.add([Finding("error", "result", where, message)])
        return ""
    except TunerError as error:  # of the runner, which the source does not take the arguments of
        report.add([Finding("error", "result", where, str(error))])
        return ""
    finally:
        bench.close()
    return str(program.path)
