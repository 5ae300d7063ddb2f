"""The check of a user's kernel without a GPU: its search spaces, compilation and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tilewright.kernels.kernel import Kernel, Variant
from tilewright.kernels.own import corners, example, limits_of, odd_shapes, option_values, spread
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.compile import cccl, nvrtc
from tilewright.tuner.compile.compilation import Compilation, Compiled, arch_of, triton_version
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.devices.cpu.bench import CpuBench
from tilewright.tuner.devices.cpu.check import CHECKS
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import NoCompilerError, OwnFunctionError, TrialFailure, first_error
from tilewright.tuner.kernel_check.parameters import check_parameters, missing_header
from tilewright.tuner.kernel_check.reference import DECLARATION_ERRORS, SEED, check_reference, words_of
from tilewright.tuner.kernel_check.report import Finding, KernelCheckReport, SpaceSize
from tilewright.tuner.kernel_check.sizes import check_sizes
from tilewright.tuner.outcome import Outcome

REGISTERS_OF_BLOCK = 65536  # on every GPU from 7.5 on (CUDA C++ Programming Guide, "Compute Capabilities")

Capability = tuple[int, int]
Shape = Mapping[str, int]


def check_spaces(kernel: Kernel, capabilities: Sequence[Capability], report: KernelCheckReport) -> None:
    """Adds each variant's size on each target; an error where none has a configuration for the example."""
    for variant in kernel.variants:
        sizes: list[SpaceSize] = []
        for capability in capabilities:
            if not variant.runs_on(limits_of(capability)):
                continue
            for dtype in kernel.dtypes:
                space = _space(kernel, variant, example(kernel, dtype, {}), limits_of(capability), report)
                if space is not None:
                    before = space.spaces[0].product_size()
                    sizes.append(SpaceSize(variant.name, dtype, arch_of(capability), before, len(space)))
        report.spaces += sizes
        if not any(size.after for size in sizes):
            targets = ", ".join(map(arch_of, capabilities))
            message = f"no configuration for example_shape on any of {targets}"
            report.add([Finding("error", "space", variant.name, message)])
        else:
            empty = [f"{size.dtype} on {size.target}" for size in sizes if not size.after]
            report.add(Finding("note", "space", f"{variant.name} {place}", "no configuration") for place in empty)


def check_compiling(
    kernel: Kernel, capabilities: Sequence[Capability], report: KernelCheckReport, pool: CompilePool
) -> None:
    """Compiles corners of every variant's space for the targets; raises NoCompilerError."""
    submitted = []
    for variant, capability, problem, configuration in _compilations(kernel, capabilities, report):
        work = Compilation.of(kernel, problem, configuration, arch_of(capability), "nvrtc")
        submitted.append((variant, problem, configuration, work.arch, pool.submit(work)))
    for variant, problem, configuration, arch, future in submitted:
        where = f"{configuration} {problem.dtype} {arch}"
        try:
            compiled = future.result()
        except TrialFailure as failure:
            report.add([Finding("error", "compile", where, _reason(failure))])
            continue
        finally:
            report.compiled += 1
        is_told = not cccl.is_used(kernel.source(variant.name))  # the compiler alone knows CUB's TempStorage
        report.add(_flaws_of_compiled(variant, problem, configuration, compiled, where, is_told=is_told))


def check_results(
    kernel: Kernel, shapes: Sequence[Shape], report: KernelCheckReport, device: CpuDevice, configurations: int
) -> None:
    """Runs each variant's start and so many more configurations on the CPU, with each kind of inputs and each shape.

    The first shape also with each option's other values, and under the sanitizers. A variant that hangs is run no more.
    """
    hung: set[str] = set()
    for place, shape in enumerate(shapes):
        for dtype in kernel.dtypes:
            for options in option_values(kernel, dtype) if place == 0 else [{}]:
                problem = kernel.problem(shape, dtype, options)
                try:
                    bench = device.bench(kernel, problem, SEED)
                except OwnFunctionError as error:
                    where = f"{problem.dtype} {words_of(shape)}"
                    report.add([Finding("error", "result", where, str(error).splitlines()[0])])
                    continue
                try:
                    report.add(_unwritten(bench))
                    for variant in (v for v in kernel.variants if v.name not in hung):
                        tried = _tried_on_cpu(kernel, variant, problem, device, configurations, report)
                        if not _verify(bench, tried, report):
                            hung.add(variant.name)
                        elif place == 0 and dtype == kernel.dtypes[0] and not options:
                            _sanitize(bench, tried[:1], report)
                finally:
                    bench.close()


def check_kernel(
    kernel: Kernel,
    report: KernelCheckReport,
    *,
    capabilities: Sequence[Capability],
    shapes: Sequence[Shape] = (),
    configurations: int = 4,
    compile_it: bool = True,
    run_it: bool = True,
    say: Callable[[str], None] = lambda _text: None,
) -> KernelCheckReport:
    """The report, filled: spaces, then compiling by NVRTC, then results on the CPU; `say` hears what is begun.

    Without NVRTC nothing is compiled for GPUs, which is noted. Raises NoCompilerError where a C++ compiler is missing.
    """
    shapes = shapes or odd_shapes(kernel)
    if not kernel.is_triton:  # loading it has compared those of a Triton function
        check_parameters(kernel, report)
    check_spaces(kernel, capabilities, report)
    check_reference(kernel, shapes, report)
    missing = _missing_compiler(kernel) if compile_it else None
    if missing is not None:
        report.add([Finding("note", "compile", "", missing)])
    elif compile_it:
        say(f"compiling for {', '.join(map(arch_of, capabilities))}")
        pool = CompilePool()
        try:
            check_compiling(kernel, capabilities, report, pool)
        finally:
            pool.close()
    missing = _missing_on_cpu(kernel) if run_it else None
    if missing is not None:
        reason = f"not computed on the CPU, which has no {missing}: trials on a GPU verify each configuration"
        report.add([Finding("note", "result", "", reason)])
    # Without a sound reference there is nothing to compare with.
    elif run_it and not any((f.severity, f.part) == ("error", "result") for f in report.findings):
        say(f"computing {', '.join(map(words_of, shapes))} on the CPU")
        device = CpuDevice()
        try:
            check_results(kernel, shapes, report, device, configurations)
            check_sizes(kernel, shapes[0], report, device)
        finally:
            device.close()
        if not report.verified and not any((f.severity, f.part) == ("error", "result") for f in report.findings):
            where = "; ".join(map(words_of, shapes))
            nothing = "no configuration was run. Give a --shape that has one, or skip this check with --no-run"
            report.add([Finding("error", "result", where, nothing)])
    if (compile_it or run_it) and not report.compiled and not report.verified and report.ok:
        nothing = "nothing was compiled and nothing was computed, so nothing is known of this kernel"
        report.add([Finding("error", "result", "", nothing)])
    return report


def _missing_on_cpu(kernel: Kernel) -> str | None:
    """The header or feature that the CPU lacks for every variant; None where it can run one."""
    if not kernel.is_triton and (header := missing_header(kernel)) is not None:
        return f"<{header}>"
    if not all(variant.requires for variant in kernel.variants):
        return None
    return " and ".join(sorted({name for variant in kernel.variants for name in variant.requires}))


def _missing_compiler(kernel: Kernel) -> str | None:
    """Why nothing can be compiled for GPUs here, and the remedy; None where it can."""
    if not kernel.is_triton:
        missing = "not compiled for GPUs: NVRTC is not installed. Install it: pip install nvidia-cuda-nvrtc"
        return None if nvrtc.is_available() else missing
    try:
        triton_version()
    except NoCompilerError as error:
        return f"not compiled for GPUs: {error}"
    return None


def _space(
    kernel: Kernel, variant: Variant, problem: Problem, limits: Limits, report: KernelCheckReport
) -> SearchSpace | None:
    """The variant's space for the problem, enumerated; None, and an error, where a constraint raises one."""
    try:
        if not variant.supports(problem):
            return None
        space = kernel.space(problem, limits, only=[variant.name])
        len(space)
    except DECLARATION_ERRORS as error:
        target = arch_of(limits.compute_capability) if "ptx" in limits.features else "cpu"
        where = f"{variant.name} {problem.dtype} {target} {words_of(problem.stated_shape)}"
        report.add([Finding("error", "space", where, f"a constraint or launch raises {type(error).__name__}: {error}")])
        return None
    return space


def _compilations(
    kernel: Kernel, capabilities: Sequence[Capability], report: KernelCheckReport
) -> Iterator[tuple[Variant, Capability, Problem, Configuration]]:
    """All corners of the example in each dtype; only the start for other options and an odd shape."""
    for variant in kernel.variants:
        for capability in capabilities:
            if not variant.runs_on(limits_of(capability)):
                continue
            for dtype in kernel.dtypes:
                odd = kernel.problem(odd_shapes(kernel)[0], dtype)
                plain, *others = (example(kernel, dtype, options) for options in option_values(kernel, dtype))
                for problem in (plain, *others, odd):
                    space = _space(kernel, variant, problem, limits_of(capability), report)
                    if space is None or not len(space):
                        continue
                    for configuration in corners(space) if problem is plain else space.defaults():
                        yield variant, capability, problem, configuration


def _flaws_of_compiled(
    variant: Variant, problem: Problem, configuration: Configuration, compiled: Compiled, where: str, *, is_told: bool
) -> Iterator[Finding]:
    """Faults of compiled kernels. `is_told`: the declaration can know the kernel's static shared memory."""
    declared_bytes = variant.static_shared_bytes(configuration.values, problem)
    threads = variant.launch(configuration.values, problem).threads
    taken = compiled.resources
    if taken.shared_bytes is not None and taken.shared_bytes > declared_bytes:
        message = "its static shared memory is more than static_shared_bytes declares"
        place = f"{where} ({taken.shared_bytes} bytes, declared {declared_bytes})"
        yield Finding("error" if is_told else "note", "compile", place, message)
    if taken.registers is not None and taken.registers * threads > REGISTERS_OF_BLOCK:
        needs = "it needs more registers than a multiprocessor has"
        message = f"{needs}: add __launch_bounds__, or constrain the threads ({threads})"
        yield Finding("error", "compile", where, message)
    if taken.spill_bytes:
        yield Finding("note", "compile", f"{where} ({taken.spill_bytes} bytes)", "registers spill to memory")
    warning = next((line for line in compiled.log.splitlines() if "warning" in line), None)
    if warning:
        yield Finding("note", "compile", where, warning.strip())


def _tried_on_cpu(
    kernel: Kernel, variant: Variant, problem: Problem, device: CpuDevice, count: int, report: KernelCheckReport
) -> list[Configuration]:
    limits = device.model.limits
    if not variant.runs_on(limits):
        needed = ", ".join(sorted(variant.requires - limits.features))
        report.add(
            [Finding("note", "result", variant.name, f"not run: it requires {needed}, which the CPU does not have")]
        )
        return []
    space = _space(kernel, variant, problem, limits, report)
    if space is None:
        return []
    if not len(space):
        where = f"{variant.name} {problem.dtype} {words_of(problem.stated_shape)}"
        report.add(
            [Finding("note", "space", where, "the variant supports this problem, but has no configuration for it")]
        )
        return []
    return list(dict.fromkeys([*space.defaults(), *spread(space, count)]))


def _verify(bench: CpuBench, configurations: Sequence[Configuration], report: KernelCheckReport) -> bool:
    """Runs the configurations until one does not end; tells whether all did."""
    bench.compile_ahead(configurations)
    for configuration in configurations:
        where = f"{configuration} {bench.problem.dtype} {words_of(bench.problem.stated_shape)}"
        report.verified += 1
        try:
            program = bench.compile(configuration)
            verifications = bench.verify_each_kind(program) or ()
            for remark in bench.remarks(program):
                message = (
                    f"differs with {remark.inputs} inputs, for which the reference is not made: nothing is refused"
                )
                report.add([Finding("note", "result", where, message)])
        except TrialFailure as failure:
            message = f"{failure.outcome.value} on the CPU: {_reason(failure)}"
            report.add([Finding("error", "result", where, message)])
            if failure.outcome is Outcome.TIMED_OUT:
                return False
            continue
        wrong = next((verification for verification in verifications if not verification.is_right), None)
        if wrong is not None:
            report.add([Finding("error", "result", f"{where}; {wrong.message()}", "the result is wrong")])
    return True


def _unwritten(bench: CpuBench) -> Iterator[Finding]:
    """Findings about elements that the default configuration leaves unwritten: they are NaN, and equal NaN would pass.

    An unwritten integer is found by the comparison, which begins with other ones.
    """
    if not bench.expected.verified or bench.kernel.check is not None:
        return
    for name, reference in bench.expected.references.items():
        count, size = int(np.isnan(reference.value).sum()), reference.value.size
        if count:
            where = f"{count} of {size} components of {name}, {words_of(bench.problem.stated_shape)}"
            message = (
                "the configuration that others are compared with does not write them, or writes NaN, so nothing is "
                "checked there: give a `reference`, or a `check` and how many are `written`"
            )
            yield Finding("note", "result", where, message)


def _sanitize(bench: CpuBench, configurations: Sequence[Configuration], report: KernelCheckReport) -> None:
    for configuration in configurations:
        for mode in CHECKS:
            try:
                checked = bench.check(configuration, mode)
            except NoCompilerError as error:
                report.add([Finding("note", "memory", "", str(error))])
                continue
            except TrialFailure:
                continue  # verifying it has said so
            report.sanitized += 1
            for finding in checked.findings:
                report.add([Finding("error", "memory", f"{configuration} `{finding.text.strip()}`", finding.message)])
            if not checked.is_clean and not checked.findings:
                report.add([Finding("error", "memory", str(configuration), first_error(checked.log))])


def _reason(failure: TrialFailure) -> str:
    return first_error(failure.log) or failure.outcome.value
