"""A service that lets people sign in at an OpenID provider, and the browser that goes there and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from caller import Caller

from tilewright.service.api import openid
from tilewright.service.app import create_app
from tilewright.service.operations.access import projects
from tilewright.service.operations.access.sessions import HOST_COOKIE
from tilewright.service.operations.requests import ProjectRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings

PUBLIC = "https://tiles.example"
RETURN = f"{PUBLIC}/sign-in/openid/return"
RIGHTS = "ops=admin,vision=tune/vision,staff=read"
HOST = {"Host": "tiles.example"}


@contextmanager
def trusting(issuer: str, client_id: str, secret: Path | None, environment: pytest.MonkeyPatch) -> Iterator[Caller]:
    """Calls of a service that trusts the provider, and has the project `vision`."""
    given = {
        "REQUIRE_KEYS": "true",
        "PUBLIC_URL": PUBLIC,
        "OIDC_ISSUER": issuer,
        "OIDC_CLIENT_ID": client_id,
        "OIDC_RIGHTS": RIGHTS,
    }
    if secret:
        given["OIDC_SECRET_FILE"] = str(secret)
    for name, value in given.items():
        environment.setenv(f"TILEWRIGHT_{name}", value)
    settings.cache_clear()
    openid.provider.cache_clear()
    with transaction() as session:
        projects.create_project(session, ProjectRequest(name="vision"))
    try:
        yield Caller(create_app())
    finally:
        environment.undo()
        settings.cache_clear()
        openid.provider.cache_clear()


def begun(browser: Caller, following: str = "/jobs") -> tuple[str, str]:
    """The provider's address and the cookie of the attempt."""
    led = browser.get("/sign-in/openid", params={"next": following}, headers=HOST)
    assert led.status_code == 303, led.text
    return led.headers["location"], led.headers["set-cookie"]


def come_back(browser: Caller, back: str, cookie: str) -> httpx.Response:
    """The answer to the browser that the provider sent back."""
    path = back.removeprefix(PUBLIC)
    assert path != back
    return browser.get(path, headers=HOST | {"Cookie": cookie.partition(";")[0]})


def cookie_of(answer: httpx.Response) -> dict[str, str]:
    """The headers of who has signed in."""
    (given,) = [c for c in answer.headers.get_list("set-cookie") if c.startswith(f"{HOST_COOKIE}=")]
    return HOST | {"Cookie": given.split(";")[0]}
