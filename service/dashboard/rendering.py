"""Rendering of templates, and error pages in place of problem documents."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from markupsafe import Markup

from tilewright.kernels.errors import InvalidProblemError
from tilewright.service import dashboard
from tilewright.service.dashboard.formatting import FILTERS
from tilewright.service.dashboard.packed_files import static_path
from tilewright.service.dashboard.snippets import tune_example
from tilewright.service.dashboard.views import problem_path
from tilewright.service.errors import DatabaseUnavailableError, InvalidRequestError, NotFoundError
from tilewright.service.operations.caller import Caller, Scope
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.staleness.standing import source_keys
from tilewright.service.operations.transaction import refuse_in_transaction
from tilewright.service.operations.validation_words import plain
from tilewright.service.settings import settings

RETRY_SECONDS = 5
LEAST_COMPRESSED = 1024

HELP = {
    "/": "measuring/README.html",
    "/attention": "operating.html#keeping-results-fresh",
    "/ask": "measuring/predictions.html",
    "/compare": "measuring/trials-and-finals.html#the-finals",
    "/history": "operating.html#keeping-results-fresh",
    "/views": "operating.html#keeping-results-fresh",
    "/jobs": "quick-start.html#tune",
    "/schedules": "operating.html#keeping-results-fresh",
    "/fleet": "operating.html#a-fleet",
    "/demand": "operating.html#keeping-results-fresh",
    "/kernels": "kernels.html",
    "/sign-in": "operating.html#access-keys",
    "/access": "operating.html#access-keys",
}
"""The part of the documentation that explains a page of the dashboard, by the page's address."""


def help_path(here: str) -> str:
    """The address of the documentation that explains a page; its start where the site was not built."""
    wanted = HELP.get(here, "index.html")
    return f"/guide/{wanted}" if (dashboard.GUIDE / wanted.partition("#")[0]).is_file() else "/guide"


def prepare_pages() -> None:
    """Prepares what a page's first visitor would wait for: compiles templates, hashes kernels' sources."""
    for name in _templates.list_templates():
        _templates.get_template(name)
    for kernel in catalogue().kernels():
        source_keys(kernel)


_reader: ContextVar[Caller | None] = ContextVar("tilewright_reader", default=None)
_shown: ContextVar[str] = ContextVar("tilewright_shown", default="")


def views_path() -> str:
    """The page of saved views, where the address of the present page can be saved."""
    shown = _shown.get()
    return address("/views", {"address": "" if shown.startswith("/views") else shown})


def signed_in() -> Caller | None:
    """The caller whose key is shown, on a server that demands keys; None for anybody else."""
    caller = _reader.get()
    return caller if caller is not None and caller.key_id is not None else None


_templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {**FILTERS, "problem_path": problem_path}
_templates.globals |= {
    "needs_keys": lambda: settings().require_keys,
    "signed_in": signed_in,
    "views_path": views_path,
    "tune_example": tune_example,
    "static": static_path,
    "help_path": help_path,
}


def script_json(value: Any) -> Markup:
    """The value as JSON that can stand inside a `script` element of any type."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))  # noqa: S704 - no `<` is left


_templates.filters["script_json"] = script_json


def page(name: str, *, status: int = 200, refresh_s: int | None = None, **values: Any) -> HTMLResponse:
    """The template as a response. `refresh_s`: how soon a browser without JavaScript asks again."""
    refuse_in_transaction("the rendering of a page")
    text = _templates.get_template(name).render(refresh_s=refresh_s, **values)
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else {}
    return HTMLResponse(text, status_code=status, headers=headers)


def may(request: Request, scope: Scope) -> bool:
    """Whether the reader of the page has that scope; the API checks again when an action is done."""
    caller: Caller = request.scope["tilewright.caller"]
    return caller.scope.allows(scope)


def own_url(request: Request) -> str:
    """The address of this server for programs of the caller, used in commands to copy."""
    return settings().public_url or str(request.base_url).rstrip("/")


def address(path: str, query: Mapping[str, Any]) -> str:
    """A path with the parts of the query that are not empty."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def compressed(request: Request, response: Response) -> Response:
    """The response, gzipped if it is long and the browser accepts that. Pages have no secrets that could leak so."""
    is_taken = "gzip" in request.headers.get("accept-encoding", "")
    if is_taken and len(response.body) >= LEAST_COMPRESSED and "content-encoding" not in response.headers:
        response.body = gzip.compress(response.body, 5)
        response.headers["content-encoding"] = "gzip"
        response.headers["content-length"] = str(len(response.body))
    response.headers["vary"] = "Accept-Encoding"
    return response


def _why_not(error: InvalidRequestError | InvalidProblemError | RequestValidationError) -> str:
    """The faults of an address, a sentence for each of its parts."""
    if isinstance(error, InvalidRequestError):
        example = f" Example: {error.example}" if error.example else ""
        return f"The {_in_words(error.field)} {error.reason}{example}"
    if isinstance(error, InvalidProblemError):
        return str(error)
    # A part that may be one of several types has an error for each; the first tells what it may be.
    reasons: dict[str, str] = {}
    for one in error.errors():
        given = f", not {one['input']!r}" if isinstance(one["input"], str) else ""
        reasons.setdefault(str(one["loc"][1]), f"{plain(one['msg'])}{given}.")
    return " ".join(f"The {_in_words(name)} {reason}" for name, reason in reasons.items())


def _in_words(field: str) -> str:
    return field.replace("_", " ")


class PageRoute(APIRoute):
    """A route whose expected errors are pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with expected errors turned into pages."""
        handle = super().get_route_handler()

        async def handle_for_people(request: Request) -> Response:
            _reader.set(request.scope.get("tilewright.caller"))
            _shown.set(address(request.url.path, request.query_params))
            try:
                return compressed(request, await handle(request))
            except DatabaseUnavailableError:
                return page("unavailable.html", status=503, retry_s=RETRY_SECONDS)
            except NotFoundError as error:
                return page("refused.html", status=404, title=f"No such {error.kind}", reason=str(error))
            except (InvalidRequestError, InvalidProblemError, RequestValidationError) as error:
                return page("refused.html", status=422, title="This address is not right", reason=_why_not(error))

        return handle_for_people
