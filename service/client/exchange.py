"""The API's calls for whole documents: export, import, bundles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import httpx

from tilewright.service.client.errors import ApiProblemError, ApiUnreachableError
from tilewright.service.client.http import Client
from tilewright.service.client.transport import JSON, reason_of, with_query
from tilewright.service.operations.exchange.report import ImportAnswer

IMPORT_S = 600.0
"""How long an import may take: it is one transaction, however large."""


class ExchangeClient(Client):
    """The client with the calls that move documents; nothing is sent twice."""

    def export(self, **query: str | int | bool | None) -> Iterator[bytes]:
        """The pieces of the document as they arrive."""
        return self._download(with_query("/v1/export", **query))

    def bundle(self, device_model: str, *, with_sources: bool = False) -> str:
        """The bundle of a device model."""
        path = with_query("/v1/bundle", device_model=device_model, sources=with_sources)
        return b"".join(self._download(path)).decode()

    def import_document(self, body: bytes, query: Mapping[str, str | bool | None]) -> ImportAnswer:
        """The report of the import."""
        try:
            response = self._http.post(with_query("/v1/import", **query), content=body, headers=JSON, timeout=IMPORT_S)
        except httpx.TransportError as error:
            raise ApiUnreachableError(self.url, reason_of(error)) from error
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
            raise ApiUnreachableError(self.url, reason_of(error)) from error
