"""A small OpenID provider on a loopback port, what it says can be bent; a service and a browser that sign in there."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote_plus, urlencode, urlsplit

import httpx
import pytest
from caller import Caller
from joserfc import jwt
from joserfc.jwk import RSAKey

from tilewright.service.api import openid
from tilewright.service.app import create_app
from tilewright.service.operations.access import projects
from tilewright.service.operations.access.sessions import HOST_COOKIE
from tilewright.service.operations.requests import ProjectRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings

CLIENT, SECRET = "tilewright", "a secret: of the client"


class OpenIDProvider(ThreadingHTTPServer):
    """The provider. `claims` go into tokens; `bend` changes a token before it is signed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.issuer = f"http://127.0.0.1:{self.server_address[1]}"
        self.keys = [RSAKey.generate_key(2048, {"kid": "first"})]
        self.claims: dict[str, Any] = {"sub": "alice", "groups": ["vision"]}
        self.bend = lambda claims: claims
        self.signed_by, self.algorithm = None, "RS256"
        self.has_secret = True
        self.told_apart: dict[str, Any] | None = None  # at the userinfo endpoint, to who shows the access token
        self.codes: dict[str, dict[str, str]] = {}

    def authorized(self, address: str) -> str:
        """Where the browser is sent back to once its person has agreed."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], 'iss': self.issuer})}"

    def token(self, form: dict[str, str], authorization: str | None) -> tuple[int, dict[str, Any]]:
        """The answer of the token endpoint; each code counts once."""
        asked = self.codes.pop(form.get("code", ""), None)
        named = base64.b64encode(f"{CLIENT}:{quote_plus(SECRET)}".encode()).decode()
        proof = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(proof).decode().rstrip("=")
        if authorization not in ({f"Basic {named}"} if self.has_secret else {None}):
            return 401, {"error": "invalid_client"}
        is_right = asked and asked["code_challenge"] == challenge and asked["redirect_uri"] == form["redirect_uri"]
        if not is_right:
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": asked["nonce"]}
        key = self.signed_by or self.keys[0]
        header = {"alg": self.algorithm, "kid": key.kid}
        token = jwt.encode(header, self.bend(claims | self.claims), key, algorithms=[self.algorithm])
        return 200, {"access_token": "x", "token_type": "Bearer", "id_token": token}


class _Answers(BaseHTTPRequestHandler):
    server: OpenIDProvider

    def do_GET(self) -> None:
        if self.path.startswith("/authorize?"):  # its person agrees to everything
            self.send_response(302)
            self.send_header("Location", self.server.authorized(self.path))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        issuer = self.server.issuer
        documents = {
            "/.well-known/openid-configuration": {
                "issuer": issuer,
                "authorization_endpoint": f"{issuer}/authorize",
                "token_endpoint": f"{issuer}/token",
                "jwks_uri": f"{issuer}/keys",
            }
            | ({"userinfo_endpoint": f"{issuer}/userinfo"} if self.server.told_apart else {}),
            "/keys": {"keys": [key.as_dict(private=False) for key in self.server.keys]},
        }
        found = documents.get(self.path)
        if self.path == "/userinfo" and self.headers["Authorization"] == "Bearer x":
            found = self.server.told_apart
        self._say(200 if found else 404, found or {})

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        fields = {name: values[0] for name, values in form.items()}
        self._say(*self.server.token(fields, self.headers.get("Authorization")))

    def _say(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def openid_provider() -> Iterator[OpenIDProvider]:
    """A provider that runs."""
    with OpenIDProvider() as provider:
        thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield provider
        finally:
            provider.shutdown()
            thread.join()


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
