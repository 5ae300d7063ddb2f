"""An import as it was read, whatever its format, and the caller's options for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, ValidationError

from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.exchange.document import BestPart, Name, ProblemPart, TablePart, Text, TrialPart
from tilewright.service.operations.exchange.report import printable
from tilewright.service.operations.parse import parse_options, parse_renames, parse_shape
from tilewright.service.operations.requests import Request
from tilewright.tuner.devices.device import DeviceModel, Environment

ORIGIN = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Name of the installation that the results come from; they carry it.",
        examples=["lab-7"],
    ),
]


PRODUCT = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 :._+()-]{0,127}$")]
"""A device model's slug, or what people call it."""


class ImportOptions(Request):
    """The caller's options. Foreign documents do not name the problem and device model they were measured for."""

    origin: ORIGIN = "elsewhere"
    kernel: Name | None = None
    shape: dict[Name, int] | None = None
    dtype: Name | None = None
    options: dict[Name, bool | Text] | None = None
    device_model: PRODUCT | None = None
    limits: dict[Name, Text] | None = Field(default=None, max_length=16)
    variant: Name | None = None
    rename: dict[Name, Name] = Field(default_factory=dict, max_length=64)


def import_options_of(given_texts: Mapping[str, str | None]) -> ImportOptions:
    """The same options from text, as in query strings and command lines.

    Raises pydantic.ValidationError, and InvalidRequestError for a malformed shape, options or names.
    """
    given: dict[str, Any] = {name: value for name, value in given_texts.items() if value is not None}
    if "shape" in given:
        given["shape"] = parse_shape(given["shape"])
    given |= {name: parse_options(given[name]) for name in ("options", "limits") if name in given}
    if "rename" in given:
        given["rename"] = parse_renames(given["rename"])
    return ImportOptions.model_validate(given)


@dataclass(frozen=True)
class UnreadableRow:
    """A row that cannot be read, and why."""

    pointer: str
    detail: str


@dataclass(frozen=True)
class IncomingStudy:
    """Rows for one problem on one device model; `trials` by their places in the document."""

    pointer: str
    problem: ProblemPart
    device_model: str
    environment: Environment
    space_size: int | None
    trials: Mapping[int, TrialPart]
    best: BestPart | None = None
    unread: Sequence[UnreadableRow] = ()
    is_verified: bool = False  # each time comes with the error that was found
    row_pointers: Mapping[int, str] = field(default_factory=dict)

    def row_pointer(self, row: int) -> str:
        """The JSON pointer to the row in the document."""
        return self.row_pointers.get(row, f"{self.pointer}/trials/{row}")


@dataclass(frozen=True)
class IncomingDocument:
    """A whole document; device models that it describes, by slug."""

    format: str
    origin: str
    studies: Sequence[IncomingStudy]
    device_models: Mapping[str, DeviceModel] = field(default_factory=dict)
    tables: Sequence[TablePart] = ()


def refused(error: ValidationError, pointer: str = "") -> InvalidRequestError:
    """The first thing that a model found wrong, with its place in the document."""
    first = error.errors(include_url=False)[0]
    place = ".".join([*pointer.strip("/").split("/"), *(str(part) for part in first["loc"])]).strip(".")
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return InvalidRequestError(printable(place) or "document", first["msg"].removeprefix("Value error, ") + more + ".")
