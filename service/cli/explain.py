"""The message and the exit code of every error."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from tilewright.kernels.errors import BrokenDeclarationError, KernelError
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.errors import InvalidRequestError, NoConfigurationError, NotFoundError, ServiceError
from tilewright.service.operations.validation_words import plain
from tilewright.tuner.errors import NoCompilerError, NoDeviceError, TunerError

if TYPE_CHECKING:
    from pydantic import ValidationError

    from tilewright.service.client import ApiProblemError


@dataclass(frozen=True)
class Failure:
    """The message and exit code that the user gets."""

    message: str
    code: int


# Typer 0.20 and later carry a copy of Click, earlier ones use Click itself; the base class of its errors is reached
# in the same way through both.
_CLICK_ERROR = typer.BadParameter.__mro__[2]

_ARGUMENTS = frozenset({"kernel", "variant", "device", "device model", "device_model", "parameter", "option"})
"""A missing one of these is a wrong argument: usage. Anything else that is missing: nothing found."""

_CODES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], ExitCode], ...] = (
    (BrokenDeclarationError, ExitCode.FAILED),
    ((KernelError, InvalidRequestError), ExitCode.USAGE),
    (NoConfigurationError, ExitCode.NOTHING_FOUND),
    ((NoDeviceError, NoCompilerError), ExitCode.NO_DEVICE),
)
"""The first match counts; an error of ours that matches none is a failure, code 1."""


def explain(error: Exception) -> Failure:
    """Message and exit code of any error; the message of one without a rule here says that it is unexpected."""
    if isinstance(error, CommandError):
        return Failure(str(error), error.code)
    if isinstance(error, _CLICK_ERROR):
        return Failure(_usage_message(error), ExitCode.USAGE)
    if isinstance(error, ServiceError | KernelError | TunerError):
        return Failure(str(error) or type(error).__doc__ or type(error).__name__, _code_of(error))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Failure(f"{where}{error.strerror or error}", ExitCode.FAILED)
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return Failure(_validation_message(error), ExitCode.USAGE)
    return Failure(f"unexpected {type(error).__name__}: {error} (TILEWRIGHT_DEBUG=1 shows where)", ExitCode.FAILED)


def _code_of(error: ServiceError | KernelError | TunerError) -> ExitCode:
    """Exit code of an error of ours."""
    known = next((code for kinds, code in _CODES if isinstance(error, kinds)), None)
    if known is not None:
        return known
    if isinstance(error, NotFoundError):
        return _code_of_missing(error.kind)
    from tilewright.service.client import ApiProblemError

    return _code_of_problem(error) if isinstance(error, ApiProblemError) else ExitCode.FAILED


def _code_of_problem(error: ApiProblemError) -> ExitCode:
    """The exit code for the API's refusal: as if the operation ran without an API."""
    if error.status in {400, 413, 415, 422}:
        return ExitCode.USAGE
    if error.kind.endswith("/no-configuration"):
        return ExitCode.NOTHING_FOUND
    if error.kind.endswith("/not-found"):
        return _code_of_missing(error.missing)
    return ExitCode.FAILED


def _code_of_missing(kind: str | None) -> ExitCode:
    """Exit code for a missing thing of that kind; `kind` is None if an older API does not name it."""
    return ExitCode.USAGE if kind in _ARGUMENTS else ExitCode.NOTHING_FOUND


def _usage_message(error: Exception) -> str:
    """The message about a wrong command line, with the place of its help."""
    message = str(getattr(error, "format_message", error.__str__)()).strip()
    context = getattr(error, "ctx", None)
    if not message:  # a group without a command has printed its help
        message = "A command is missing."
    message = re.sub(r"(?<=: )Input should .*", lambda found: plain(found[0]), message)
    message = message if message.endswith((".", "?", ")")) else f"{message}."
    return f"{message} Try: {context.command_path} --help" if context is not None else message


def _validation_message(error: ValidationError) -> str:
    """Every wrong field with its reason, in one line; settings are named as they are set."""
    prefix = "TILEWRIGHT_" if error.title == "Settings" else ""
    messages = []
    for field in error.errors():
        name = ".".join(str(part) for part in field["loc"])
        reason = plain(field["msg"])
        shows_value = field["type"] != "missing" and not isinstance(field["input"], dict)
        given = f" (given: {field['input']!r:.60})" if shows_value else ""
        messages.append(f"{prefix + name.upper() if prefix else name}: {reason}{given}")
    return "; ".join(messages)
