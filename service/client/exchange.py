"""The API's calls for whole documents: export, import, bundles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urlencode

import httpx

from tilewright.service.client.errors import ApiProblemError, ApiUnreachableError
from tilewright.service.client.http import JSON, Client
from tilewright.service.operations.exchange.report import ImportAnswer

IMPORT_S = 600.0
"""How long an import may take: it is one transaction, however large."""


class ExchangeClient(Client):
    """The client with the calls that move documents; nothing is sent twice."""

    def export(self, **query: str | int | bool | None) -> Iterator[bytes]:
        """The pieces of the document as they arrive."""
        return self._download(_path("/v1/export", query))

    def bundle(self, device_model: str, *, with_sources: bool = False) -> str:
        """The bundle of a device model."""
        query: dict[str, str | int | bool | None] = {"device_model": device_model, "sources": with_sources}
        return b"".join(self._download(_path("/v1/bundle", query))).decode()

    def import_document(self, body: bytes, query: Mapping[str, str | bool | None]) -> ImportAnswer:
        """The report of the import."""
        try:
            response = self._http.post(_path("/v1/import", query), content=body, headers=JSON, timeout=IMPORT_S)
        except httpx.TransportError as error:
            raise ApiUnreachableError(self.url, str(error) or type(error).__name__) from error
        if response.is_error:
            raise ApiProblemError.of(response)
        return self._read(ImportAnswer, response.content)

    def _download(self, path: str) -> Iterator[bytes]:
        try:
            with self._http.stream("GET", path) as response:
                if response.is_error:
                    response.read()
                    raise ApiProblemError.of(response)
                yield from response.iter_bytes()
        except httpx.TransportError as error:
            raise ApiUnreachableError(self.url, str(error) or type(error).__name__) from error


def _path(path: str, query: Mapping[str, str | int | bool | None]) -> str:
    """Path and query; None is left out, flags are `true` and `false`."""
    given = {n: str(v).lower() if isinstance(v, bool) else v for n, v in query.items() if v is not None}
    return f"{path}?{urlencode(given, safe=',:=')}" if given else path
