"""The short way to `GET best`: answered from memory, before routing and validation, where the question is plain.

Whatever is not plain (another driver, a refusal, a shelf that is not in memory) goes the long way, to `best.get_best`,
which gives the same answers. It stands behind the guard, so that the rules of access are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from starlette.datastructures import State
from starlette.types import ASGIApp, Receive, Scope, Send

from tilewright.service.api.best import represented, router
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.parse import parse_options
from tilewright.service.operations.shelf import Found

LONGEST = {"shape": 512, "dtype": 16, "options": 512, "device_model": 128}
"""The names that make a plain question, with the limits of `parameters.BestQuery`."""

LONGEST_TAGS = 1024  # parameters.IfNoneMatch
ROUTE = next(route for route in router.routes if getattr(route, "name", "") == "get_best")
_PREFIX, _SUFFIX = "/v1/kernels/", "/best"


@dataclass
class BestDoor:
    """An ASGI application around another, with that application's `state`."""

    app: ASGIApp
    state: State

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"].endswith(_SUFFIX):
            found = self._answer(scope)
            tags = [value for name, value in scope["headers"] if name == b"if-none-match"]
            if found is not None and (not tags or (len(tags) == 1 and len(tags[0]) <= LONGEST_TAGS)):
                scope["route"] = ROUTE  # what it is counted and logged as
                status, headers, body = represented(found.as_json(), tags[0].decode("latin-1") if tags else None)
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": body})
                return
        await self.app(scope, receive, send)

    def _answer(self, scope: Scope) -> Found | None:
        """What is known in memory; its lookup and its demand are counted."""
        kernel = scope["path"].removeprefix(_PREFIX).removesuffix(_SUFFIX)
        asked = _plain(scope["query_string"])
        shape = None if asked is None else _sizes(asked["shape"])
        if asked is None or shape is None or not scope["path"].startswith(_PREFIX):
            return None
        try:
            options = parse_options(asked["options"]) if "options" in asked else {}
        except InvalidRequestError:
            return None
        model = asked.get("device_model")
        answer: Found | None = self.state.best.find(kernel, model, shape, asked.get("dtype", "float32"), options)
        if answer is not None:
            self.state.meters.note_lookups([answer])
            self.state.demand.note([answer], model)
        return answer


def _plain(query: bytes) -> dict[str, str] | None:
    """The question; None where it has other names, one twice, an empty value or a long one, or no shape."""
    asked: dict[str, str] = {}
    for pair in query.decode("latin-1").split("&"):
        name, _, value = pair.partition("=")
        value = unquote(value.replace("+", " "))
        if not 0 < len(value) <= LONGEST.get(name, 0) or name in asked:
            return None
        asked[name] = value
    return asked if "shape" in asked else None


def _sizes(text: str) -> dict[str, int] | None:
    """The sizes by axis; None where `parse_shape` must look closer. The kernel judges names and sizes."""
    shape: dict[str, int] = {}
    for pair in text.split(","):
        axis, _, size = pair.partition("=")
        if axis in shape or not (size.isascii() and size.isdigit()):
            return None
        shape[axis] = int(size)
    return shape
