"""The client's errors: a refusal with its problem document, or no answer at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tilewright.service.errors import ServiceError

TRANSIENT = frozenset({429, 502, 503, 504})
"""Statuses after which the same request may succeed a moment later."""


class ApiUnreachableError(ServiceError):
    """The API does not answer."""

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(
            f"The API at {url} does not answer ({reason}). If it is not running, start it: tilewright serve"
        )


@dataclass(frozen=True)
class FieldProblem:
    """A field that was refused: its name (`shape.m`), the reason, and a valid value."""

    field: str
    detail: str
    example: str | None = None

    def __str__(self) -> str:
        text = f"{self.field}: {self.detail}" if self.field and not self.detail.startswith(self.field) else self.detail
        return f"{text} Example: {self.example}" if self.example and self.example not in text else text


class ApiProblemError(ServiceError):
    """The API refused the request; the attributes are those of its problem document, whose `type` is `kind` here.

    `missing`: the kind of item that does not exist, like `kernel`; None for other refusals and from servers before 0.2.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        kind: str = "about:blank",
        missing: str | None = None,
        fields: tuple[FieldProblem, ...] = (),
    ) -> None:
        self.status, self.title, self.detail, self.kind = status, title, detail, kind
        self.missing, self.fields = missing, fields
        super().__init__("; ".join(str(field) for field in fields) or detail or title)

    @classmethod
    def of(cls, response: httpx.Response) -> ApiProblemError:
        """The error of a response with status 400 or above."""
        try:
            document = response.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):  # a proxy's page, or another server altogether
            kind = response.headers.get("content-type", "no content type")
            return cls(response.status_code, response.reason_phrase, f"HTTP {response.status_code} ({kind})")
        title = str(document.get("title") or response.reason_phrase)
        detail = str(document.get("detail") or title)
        kind = str(document.get("type") or "about:blank")
        missing = document.get("missing")
        return cls(
            response.status_code,
            title,
            detail,
            kind=kind,
            missing=missing if isinstance(missing, str) else None,
            fields=tuple(_fields(document)),
        )


def _fields(document: Mapping[str, Any]) -> list[FieldProblem]:
    """The refused fields: the members of `errors`."""
    errors = document.get("errors")
    return [_field(entry) for entry in errors if isinstance(entry, dict)] if isinstance(errors, list) else []


def _field(entry: Mapping[str, Any]) -> FieldProblem:
    name = entry.get("field") or str(entry.get("pointer") or "").lstrip("#/").replace("/", ".")
    example = entry.get("example")
    return FieldProblem(str(name), str(entry.get("detail") or ""), None if example is None else str(example))
