"""Kernels: their declarations, options that differ from defaults, and the exact source of a variant."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.kernels.errors import UnknownNameError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import OptionValue, Problem
from tilewright.kernels.space import Configuration
from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations.answers import KernelAnswer, SourceAnswer, TunedFor
from tilewright.service.operations.registry import catalogue
from tilewright.service.store import models

_OWN_KERNEL = "A kernel of your own needs its folder in TILEWRIGHT_KERNEL_FOLDERS, here, at the API and at the workers."


def kernel_named(name: str) -> Kernel:
    """The kernel; raises NotFoundError that lists the known ones."""
    try:
        return catalogue().get(name)
    except UnknownNameError as error:
        raise NotFoundError("kernel", name, error.known, _OWN_KERNEL) from error


def packed_input(kernel: str) -> str:
    """The name of the input that `packed_b` is about; "an input" for a kernel that is not known here."""
    declared = catalogue().by_name.get(kernel)
    return declared.packed if declared and declared.packed else "an input"


def options_that_differ(problem: TunedFor | Problem) -> dict[str, OptionValue]:
    """The options that are not at their defaults; all options of a kernel that is not known here."""
    declared = catalogue().by_name.get(problem.kernel)
    usual = {option.name: option.default for option in declared.options} if declared else {}
    return {name: value for name, value in problem.options.items() if usual.get(name) != value}


def kernels(session: Session) -> list[KernelAnswer]:
    """The declarations of all kernels by name, also of those that only workers have."""
    stored = session.execute(select(models.Kernel.name, models.Kernel.declaration))
    declared = {row.name: row.declaration for row in stored}
    declared |= {k.name: dict(k.declaration) for k in catalogue().kernels()}
    return [KernelAnswer(name=name, declaration=declaration) for name, declaration in sorted(declared.items())]


def kernel(session: Session, name: str) -> KernelAnswer:
    """One kernel's declaration; raises NotFoundError."""
    known = {k.name: k for k in kernels(session)}
    if name not in known:
        raise NotFoundError("kernel", name, list(known), _OWN_KERNEL)
    return known[name]


def compiler_flags(kernel: Kernel, problem: Problem, configuration: Configuration) -> list[str]:
    """The macro definitions as a compiler takes them, `-DNAME=value`, then the kernel's own flags."""
    definitions = kernel.definitions(problem, configuration)
    return [*(f"-D{name}={value}" for name, value in definitions.items()), *kernel.flags]


def source(
    session: Session,
    kernel_name: str,
    variant: str | None = None,
    shape: Mapping[str, int] | None = None,
    dtype: str = "",
    options: Mapping[str, OptionValue] | None = None,
    *,
    values: Mapping[str, int] | None = None,
    source_hash: str | None = None,
) -> SourceAnswer:
    """The source of a variant with the macros of one problem and configuration; what is not given takes its default.

    `source_hash` asks for the state of the source that a result was measured with, which may be an older one.
    Raises NotFoundError for an unknown kernel, variant or hash, InvalidProblemError, InvalidRequestError.
    """
    kernel = kernel_named(kernel_name)
    chosen = variant or kernel.default_variant or kernel.variants[0].name
    problem = kernel.problem(shape or kernel.example_shape, dtype, options)
    configuration = _configuration(kernel, chosen, values or {})
    return SourceAnswer(
        kernel=kernel.name,
        variant=chosen,
        source_hash=source_hash or kernel.source_hash(chosen),
        entry=kernel.entry,
        source=_stored_source(session, kernel, chosen, source_hash) if source_hash else kernel.source(chosen),
        definitions=kernel.definitions(problem, configuration),
        flags=compiler_flags(kernel, problem, configuration),
    )


def _stored_source(session: Session, kernel: Kernel, variant: str, source_hash: str) -> str:
    if source_hash == kernel.source_hash(variant):
        return kernel.source(variant)
    stored_source = session.scalar(
        select(models.KernelVariant.source)
        .join(models.Kernel, models.Kernel.id == models.KernelVariant.kernel_id)
        .where(
            models.Kernel.name == kernel.name,
            models.KernelVariant.name == variant,
            models.KernelVariant.source_hash == source_hash,
        )
    )
    if stored_source is None:
        raise NotFoundError("source", source_hash)
    return stored_source


def _configuration(kernel: Kernel, variant: str, values: Mapping[str, int]) -> Configuration:
    """The variant's default configuration with `values` in place of some; refuses values that are not declared."""
    try:
        parameters = {p.name: p for p in kernel.variant(variant).parameters}
    except UnknownNameError as error:
        raise NotFoundError("variant", variant, error.known) from error
    for name, value in values.items():
        if name not in parameters:
            listed = ", ".join(parameters) or "none"
            raise InvalidRequestError(
                f"configuration.{name}", f"{variant} has no such parameter; its parameters: {listed}."
            )
        if value not in parameters[name].values:
            allowed = ", ".join(map(str, parameters[name].values))
            example = f"{name}={parameters[name].default}"
            raise InvalidRequestError(f"configuration.{name}", f"must be one of {allowed}.", example)
    return Configuration.of(variant, {name: p.default for name, p in parameters.items()} | dict(values))
