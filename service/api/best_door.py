"""The short way to `GET best`: answered from memory, before routing and validation, where the question is plain.

Whatever is not plain (another driver, a refusal, a shelf that is not in memory) goes the long way, to `best.get_best`,
which gives the same answers. It stands behind the guard, so that the rules of access are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.datastructures import State
from starlette.types import ASGIApp, Receive, Scope, Send

from tilewright.service.api.best import represented, router
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.parse import parse_options, parse_shape
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
        if asked is None or not scope["path"].startswith(_PREFIX):
            return None
        try:
            shape, options = parse_shape(asked["shape"]), parse_options(asked.get("options"))
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
    if len(query) > 3 * sum(LONGEST.values()):
        return None
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    asked = dict(pairs)
    if len(asked) < len(pairs) or "shape" not in asked:
        return None
    return asked if all(0 < len(value) <= LONGEST.get(name, 0) for name, value in pairs) else None
