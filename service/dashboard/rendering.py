"""Templates, and pages instead of problem documents where a page cannot be shown."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute

from tilewright.service.dashboard.words import FILTERS
from tilewright.service.errors import DatabaseUnavailableError, InvalidRequestError, NotFoundError

RETRY_SECONDS = 5

_templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= FILTERS


def page(name: str, *, status: int = 200, refresh_s: int | None = None, **values: Any) -> HTMLResponse:
    """The template as a response. `refresh_s`: how soon a browser without JavaScript asks again."""
    text = _templates.get_template(name).render(refresh_s=refresh_s, **values)
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else {}
    return HTMLResponse(text, status_code=status, headers=headers)


def address(path: str, query: Mapping[str, Any]) -> str:
    """A path with those parts of the query that say something."""
    said = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(said)}" if said else path


class PageRoute(APIRoute):
    """A route whose expected failures are pages for people."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with those failures caught."""
        handle = super().get_route_handler()

        async def handle_for_people(request: Request) -> Response:
            try:
                return await handle(request)
            except DatabaseUnavailableError:
                return page("unavailable.html", status=503, retry_s=RETRY_SECONDS)
            except NotFoundError as error:
                return page("refused.html", status=404, title=f"No such {error.kind}", reason=str(error))
            except InvalidRequestError as error:
                return page("refused.html", status=422, title="This address is not right", reason=str(error))
            except RequestValidationError as error:
                reason = "; ".join(f"{e['loc'][-1]}: {e['msg']}" for e in error.errors())
                return page("refused.html", status=422, title="This address is not right", reason=reason)

        return handle_for_people
