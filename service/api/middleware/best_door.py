"""The short way to `GET best`: answered from memory, before routing and validation, where the question is plain.

Whatever is not plain (another driver, a refusal, a shelf that is not in memory) goes the long way, to `best.get_best`,
which gives the same answers. The guard asks it, once it has let the request through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from starlette.datastructures import State
from starlette.types import Scope

from tilewright.service.api.routes.best import represented, router
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.best_cache.shelf import CachedAnswer
from tilewright.service.operations.parse import parse_options

LONGEST = {"shape": 512, "dtype": 16, "options": 512, "device_model": 128}
"""The names that make a plain question, with the limits of `parameters.BestQuery`."""

LONGEST_TAGS = 1024  # parameters.IfNoneMatch
DTYPE = "float32"  # parameters.BestQuery
ROUTE = next(route for route in router.routes if getattr(route, "name", "") == "get_best")
_PREFIX, _SUFFIX = "/v1/kernels/", "/best"


Answered = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers and body."""


class BestDoor:
    """Answers a request, or leaves it to the application that has this `state`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._usual: dict[str, tuple[str, re.Pattern[bytes]]] = {}

    def __call__(self, scope: Scope) -> Answered | None:
        """The answer to a request that the guard let through; its lookup and its demand are counted."""
        if scope["method"] != "GET" or not scope["path"].endswith(_SUFFIX):
            return None
        tags = [value for name, value in scope["headers"] if name == b"if-none-match"]
        if tags and (len(tags) > 1 or len(tags[0]) > LONGEST_TAGS):
            return None
        found, model = self._find(scope["path"], scope["query_string"])
        if found is None:
            return None
        self._state.meters.note_lookups((found,))
        self._state.demand.note((found,), model, scope.get("tilewright.caller"))
        scope["route"] = ROUTE  # what it is counted and logged as
        return represented(found.as_json, tags[0].decode("latin-1") if tags else None)

    def _find(self, path: str, query: bytes) -> tuple[CachedAnswer | None, str | None]:
        """What is known in memory, and the device model as it was asked for."""
        usual = self._usual.get(path)
        words = usual[1].fullmatch(query) if usual else None
        if usual and words:
            sizes = [int(size) for size in words.groups()[1:]]
            model = words[1].decode("ascii") if words[1] else None
            return self._state.best.find_plain(usual[0], model, sizes, DTYPE), model
        kernel, asked = path.removeprefix(_PREFIX).removesuffix(_SUFFIX), _plain(query)
        shape = None if asked is None else _sizes(asked["shape"])
        if asked is None or shape is None or not path.startswith(_PREFIX):
            return None, None
        try:
            options = parse_options(asked["options"]) if "options" in asked else {}
        except InvalidRequestError:
            return None, None
        model = asked.get("device_model")
        found: CachedAnswer | None = self._state.best.find(kernel, model, shape, asked.get("dtype", DTYPE), options)
        if found is not None and path not in self._usual:
            self._usual[path] = kernel, _usual(found.problem.shape)
        return found, model


def _usual(axes: Iterable[str]) -> re.Pattern[bytes]:
    """Questions as our clients write them, read in a tenth of the time: a device model or none, and all the axes."""
    sizes = b"(?:,|%2C)".join(rb"%b(?:=|%%3D)([0-9]{1,10})" % axis.encode() for axis in axes)
    return re.compile(rb"(?:device_model=([a-z0-9-]{1,128})&)?shape=%b" % sizes)


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
