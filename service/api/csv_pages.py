"""Lists as CSV (RFC 4180): one line per item, nested fields as `problem.shape.m`; all of them, or one page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import urlencode

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from tilewright.service.api.parameters import PageQuery
from tilewright.service.operations.answers import Answer

Format = Literal["json", "csv"]
MEDIA_TYPE = "text/csv"
CSV_TYPE = f"{MEDIA_TYPE}; charset=utf-8; header=present"
CSV_TOO: dict[int | str, dict[str, Any]] = {
    200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "description": "One line per item, below a header."}}}}
}
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""Cells that begin so would be run as formulas by a spreadsheet; OWASP, CSV injection."""

READ_AT_ONCE = 1000
"""Rows of a whole list that are read by one statement and written in one piece."""

SPOOLED_BYTES = 4 * 2**20
"""How much of a whole list is kept in memory until all its columns are known; the rest lies in a temporary file."""


class Listed(Protocol):
    """A list with items, and perhaps a next page."""

    @property
    def items(self) -> Sequence[Answer]:
        """The rows of the page."""

    @property
    def next_cursor(self) -> str | None:
        """The cursor of the next page."""


L = TypeVar("L", bound=Listed)
Q = TypeVar("Q", bound=PageQuery)


def listed(request: Request, query: Q, read: Callable[[Q], L]) -> L | Response:
    """The page that the query asks for; as CSV without `limit` and `cursor` the whole list, streamed."""
    if query.format == "json" or query.model_fields_set & {"limit", "cursor"}:
        return rendered(request, read(query), query.format)
    first = read(query.model_copy(update={"limit": READ_AT_ONCE}))  # here, so that a refusal can still be sent
    if first.next_cursor is None:
        return rendered(request, first, query.format)

    def pages() -> Iterator[L]:
        page = first
        while True:
            yield page
            if page.next_cursor is None:
                return
            page = read(query.model_copy(update={"limit": READ_AT_ONCE, "cursor": page.next_cursor}))

    return StreamingResponse(_pieces(pages()), media_type=CSV_TYPE, headers=_named(request))


def _pieces(pages: Iterator[Listed]) -> Iterator[str]:
    """The text of all pages. The header needs every column that occurs, so that all rows are read before it is sent."""
    columns: dict[str, None] = {}
    with SpooledTemporaryFile(SPOOLED_BYTES, "w+", encoding="utf-8") as kept:
        for page in pages:
            for row in map(flat, page.items):
                columns |= dict.fromkeys(row)
                kept.write(f"{json.dumps(row)}\n")
            yield ""  # gives the thread back, and tells whether the client is still there
        kept.seek(0)
        yield _text(columns, [], with_header=True)
        while lines := list(islice(kept, READ_AT_ONCE)):
            yield _text(columns, map(json.loads, lines))


def rendered(request: Request, page: L, text_format: Format) -> L | Response:
    """The page as it is for `json`; its rows as CSV text for `csv`."""
    if text_format == "json":
        return page
    rows = [flat(item) for item in page.items]
    headers = _named(request)
    if page.next_cursor is not None:
        query = dict(request.query_params) | {"cursor": page.next_cursor}
        headers["Link"] = f'<{request.url.path}?{urlencode(query)}>; rel="next"'
    return Response(csv_text(rows), media_type=CSV_TYPE, headers=headers)


def _named(request: Request) -> dict[str, str]:
    return {"Content-Disposition": f'inline; filename="{request.url.path.rsplit("/", 1)[-1]}.csv"'}


def csv_text(rows: list[dict[str, Any]]) -> str:
    """The rows as CSV, below a header with every column that occurs."""
    return _text(dict.fromkeys(name for row in rows for name in row), rows, with_header=True)


def _text(columns: Mapping[str, None], rows: Iterable[Mapping[str, Any]], *, with_header: bool = False) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(columns), restval="")
    if with_header:
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
