"""Choices that change what a kernel computes, and what a problem may state of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.problem import OptionValue


@dataclass(frozen=True)
class Option:
    """A choice that changes the function computed: a flag (`values` False, True) or one word of several.

    `unstated`: a problem's key leaves it out where it is at its default, so that problems without it keep their key.
    """

    name: str
    values: tuple[OptionValue, ...]
    default: OptionValue
    doc: str = ""
    only_dtypes: tuple[str, ...] = ()  # those that admit other values than the default; empty: all
    unstated: bool = False


def _example(declared: Sequence[Option]) -> str:
    """The first option set to a value that is not its default, as `name=value`; `{}` if the kernel has no options."""
    if not declared:
        return "{}"
    option = declared[0]
    value = next(value for value in option.values if value != option.default)
    return f"{option.name}={str(value).lower() if isinstance(value, bool) else value}"


def check_options(
    kernel: str, declared: Sequence[Option], stated: Mapping[str, OptionValue], dtype: str, dtypes: Sequence[str]
) -> None:
    """Raises InvalidProblemError, with the remedy, for what the kernel of these options and dtypes does not have."""
    known = {option.name: option for option in declared}
    for name, value in stated.items():
        if name not in known:
            has = f"has the options {', '.join(known)}" if known else "has no options"
            raise InvalidProblemError(f"options.{name}", f"{kernel} {has}", _example(declared))
        option = known[name]
        if not any(type(value) is type(v) and value == v for v in option.values):
            words = ", ".join(str(v).lower() if isinstance(v, bool) else v for v in option.values)
            raise InvalidProblemError(f"options.{name}", f"must be one of {words}", words.split(", ")[-1])
        if value != option.default and dtype not in (option.only_dtypes or dtypes):
            admitted = ", ".join(option.only_dtypes)
            raise InvalidProblemError(f"options.{name}", f"{value} is for {admitted}", str(option.default))
