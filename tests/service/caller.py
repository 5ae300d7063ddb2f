"""A client of an application in this process, as one on this machine would be; keys, and requests with them."""

import asyncio
from dataclasses import dataclass
from functools import cache

import httpx
from factories import SHAPE, Rows
from fastapi import APIRouter, FastAPI

from tilewright.service.app import create_app
from tilewright.service.operations.access import keys
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.store.session import session_scope

BASE_URL = "http://127.0.0.1:8000"


@dataclass
class Caller:
    """Sends requests straight into an application, from `peer`."""

    app: FastAPI
    peer: tuple[str, int] = ("127.0.0.1", 50000)

    def request(self, method: str, path: str, **of) -> httpx.Response:
        return asyncio.run(self._request(method, path, **of))

    def get(self, path: str, **of) -> httpx.Response:
        return self.request("GET", path, **of)

    def post(self, path: str, **of) -> httpx.Response:
        return self.request("POST", path, **of)

    async def _request(self, method: str, path: str, **of) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=self.peer)
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client:
            return await client.request(method, path, **of)


@cache
def routes() -> APIRouter:
    """Those of any application; FastAPI makes the models of their bodies at the first request: 40 ms."""
    return create_app().router


def new_app() -> FastAPI:
    """An application whose routes are those of all others of this process."""
    return create_app(routes())


JOB = {"kernel": "gemm", "shape": SHAPE, "budget": {"trials": 10}}


def key(name: str = "ci", **of) -> str:
    with transaction() as session:
        return keys.create_key(session, KeyRequest(name=name, **of)).token


def bearer(token: str) -> dict[str, dict[str, str]]:
    return {"headers": {"Authorization": f"Bearer {token}"}}


def device() -> None:
    with session_scope() as session:
        Rows(session).device()
