"""The short way to `GET best`: answered from memory, before routing and validation, where the question is plain.

Every other question (another driver, a refusal, a shelf that is not in memory) goes the long way, to `best.get_best`,
which gives the same answers. The guard calls this for each request that it lets through.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import unquote

from starlette.datastructures import State
from starlette.types import Scope

from tilewright.kernels.problem import OptionValue
from tilewright.service.api.routes.best import represented, router
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.parse import parse_options, parse_shape

LONGEST = {"shape": 512, "dtype": 16, "options": 512, "device_model": 128}
"""The names that make a plain question, with the limits of `parameters.BestQuery`."""

LONGEST_QUERY = 1024
KEPT_QUESTIONS = 4096
"""Queries up to that length whose parsing is not repeated: applications ask the same few again and again."""

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

    def __call__(self, scope: Scope) -> Answered | None:
        """The answer to a request that the guard let through; its lookup and its demand are counted."""
        if scope["method"] != "GET" or not scope["path"].endswith(_SUFFIX):
            return None
        tags = [value for name, value in scope["headers"] if name == b"if-none-match"]
        if tags and (len(tags) > 1 or len(tags[0]) > LONGEST_TAGS):
            return None
        path, query = scope["path"], scope["query_string"]
        question = _question(query) if path.startswith(_PREFIX) and len(query) <= LONGEST_QUERY else None
        if question is None:
            return None
        kernel, (model, shape, dtype, options) = path[len(_PREFIX) : -len(_SUFFIX)], question
        answer = self._state.best.find(kernel, model, shape, dtype, options)
        if answer is None:
            return None
        self._state.meters.note_lookups((answer,))
        self._state.demand.note((answer,), model, scope.get("tilewright.caller"))
        scope["route"] = ROUTE  # what it is counted and logged as
        return represented(answer.as_json, tags[0].decode("latin-1") if tags else None)


@lru_cache(maxsize=KEPT_QUESTIONS)
def _question(query: bytes) -> tuple[str | None, Mapping[str, int], str, Mapping[str, OptionValue]] | None:
    """Device model, shape, dtype and options; None where the long way must look closer.

    That is for another name, one given twice, an empty value or a long one, no shape, and what cannot be parsed.
    """
    fields: dict[str, str] = {}
    for pair in query.decode("latin-1").replace("+", " ").split("&"):
        name, _, value = pair.partition("=")
        if "%" in value:  # most clients escape these two, and `unquote` takes ten times as long
            value = unquote(value.replace("%3D", "=").replace("%2C", ","))
        if not 0 < len(value) <= LONGEST.get(name, 0) or name in fields:
            return None
        fields[name] = value
    try:
        shape, options = parse_shape(fields.get("shape", "")), parse_options(fields.get("options"))
    except InvalidRequestError:
        return None
    return fields.get("device_model"), shape, fields.get("dtype", DTYPE), options
