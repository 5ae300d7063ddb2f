"""Lists as CSV (RFC 4180): one line per item, nested fields as `problem.shape.m`, the next page in `Link`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import urlencode

from fastapi import Request, Response

from tilewright.service.operations.answers import Answer

Format = Literal["json", "csv"]
MEDIA_TYPE = "text/csv"
CSV_TOO: dict[int | str, dict[str, Any]] = {
    200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "description": "One line per item, below a header."}}}}
}
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""Cells that begin so would be run as formulas by a spreadsheet; OWASP, CSV injection."""


class Listed(Protocol):
    """A list with items, and perhaps a next page."""

    @property
    def items(self) -> Sequence[Answer]:
        """The rows."""

    @property
    def next_cursor(self) -> str | None:
        """Of the next page."""


L = TypeVar("L", bound=Listed)


def rendered(request: Request, page: L, text_format: Format) -> L | Response:
    """The page as it is for `json`; its rows as CSV text for `csv`."""
    if text_format == "json":
        return page
    rows = [flat(item) for item in page.items]
    headers = {"Content-Disposition": f'inline; filename="{request.url.path.rsplit("/", 1)[-1]}.csv"'}
    if page.next_cursor is not None:
        query = dict(request.query_params) | {"cursor": page.next_cursor}
        headers["Link"] = f'<{request.url.path}?{urlencode(query)}>; rel="next"'
    return Response(csv_text(rows), media_type=f"{MEDIA_TYPE}; charset=utf-8; header=present", headers=headers)


def csv_text(rows: list[dict[str, Any]]) -> str:
    """The rows as CSV, below a header with every column that occurs."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def flat(item: Answer) -> dict[str, Any]:
    """The item on one level: nested names joined by dots, list items by semicolons."""
    return dict(_flat("", item.model_dump(mode="json")))


def _flat(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        inside = ((f"{prefix}.{name}" if prefix else str(name), part) for name, part in value.items())
        return [pair for name, part in inside for pair in _flat(name, part)]
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        named = {part.get("device_model", str(place)): part for place, part in enumerate(value)}
        return _flat(prefix, named)
    if isinstance(value, list):
        return [(prefix, ";".join(map(str, value)))]
    if isinstance(value, str) and value.startswith(FORMULAS):
        return [(prefix, f"'{value}")]
    return [(prefix, value)]
