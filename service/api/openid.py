"""Sign-in by OpenID Connect: who a provider says a person is, by the code flow with PKCE, and what that one may do.

OpenID Connect Core 1.0, sections 3.1 and 3.1.3.7; RFC 7636; RFC 9207. All calls wait for the provider: use a thread.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlencode

import httpx
from authlib.common.errors import AuthlibBaseError
from authlib.common.security import generate_token
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from authlib.oidc.discovery import get_well_known_url
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from tilewright.service.errors import ServiceError
from tilewright.service.operations.caller import Scope
from tilewright.service.settings import settings
from tilewright.service.settings_model import EVERYBODY

PROVIDER_S = 5.0
"""How long an answer of the provider may take."""

KNOWN_FOR_S = 3600.0
"""How long its endpoints and keys are believed; a token of an unknown key has them asked for again, once a minute."""

AGAIN_S = 60.0
MOST_BYTES = 1 << 20
"""The largest answer of the provider that is read."""

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by a key of the provider's; none, and those by the client's secret, are refused."""

LEEWAY_S = 60
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class OpenIDError(ServiceError):
    """The provider did not say who this is."""


class NoRightsError(ServiceError):
    """The provider knows the person, and no rule of TILEWRIGHT_OIDC_RIGHTS lets it in."""


@dataclass(frozen=True)
class Attempt:
    """A sign-in that has begun: the browser keeps it in a cookie until it comes back with the provider's code."""

    state: str
    nonce: str
    verifier: str
    following: str

    @classmethod
    def new(cls, following: str) -> Attempt:
        """An attempt whose state and nonce nobody can guess."""
        return cls(generate_token(32), generate_token(32), generate_token(48), following)

    @property
    def text(self) -> str:
        """The attempt as the cookie's text."""
        return urlencode(asdict(self))


@dataclass(frozen=True)
class Person:
    """A person who has signed in: the name of its key, with its rights."""

    name: str
    scope: Scope
    project: str


class Provider:
    """The provider of the settings."""

    def __init__(self) -> None:
        own = settings()
        self._issuer, self._client_id = str(own.oidc_issuer), str(own.oidc_client_id)
        self._secret_file, self._claim, self._rights = own.oidc_secret_file, own.oidc_claim, own.oidc_rights
        self._known: dict[str, tuple[float, Any]] = {}
        self.redirect_uri = f"{own.public_url}/sign-in/openid/return"

    def address(self, attempt: Attempt) -> str:
        """The address where the browser signs in; raises OpenIDError."""
        more = {"nonce": attempt.nonce, "code_challenge": create_s256_code_challenge(attempt.verifier)}
        uri: str = prepare_grant_uri(
            self._endpoint("authorization_endpoint"),
            self._client_id,
            "code",
            self.redirect_uri,
            self._scopes(),
            attempt.state,
            code_challenge_method="S256",
            **more,
        )
        return uri

    def person(self, attempt: Attempt, *, state: str, code: str, issuer: str | None) -> Person:
        """The person who came back with this code; raises OpenIDError, NoRightsError."""
        if not hmac.compare_digest(attempt.state.encode(), state.encode()) or issuer not in {None, self._issuer}:
            raise OpenIDError("The answer belongs to another sign-in.")
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": self.redirect_uri}
        form |= {"code_verifier": attempt.verifier, "client_id": self._client_id}
        told = self._call("POST", self._endpoint("token_endpoint"), data=form, auth=self._own_name())
        claims = self._claims(str(told.get("id_token")), attempt.nonce, told.get("access_token"))
        if self._claim not in claims:
            claims |= self._told_of(claims["sub"], str(told.get("access_token")))
        return self._with_rights(claims)

    def _scopes(self) -> str:
        """The scopes that are asked for, with the claim's own where the provider has one, as `groups` at Dex."""
        known = self._metadata().get("scopes_supported")
        own = [self._claim] if isinstance(known, list) and self._claim in known else []
        return " ".join(["openid", "profile", "email", *own])

    def _own_name(self) -> httpx.BasicAuth | None:
        """The client's name and secret, each encoded as a form's value (RFC 6749, section 2.3.1)."""
        path: Path | None = self._secret_file
        if path is None:
            return None
        return httpx.BasicAuth(quote_plus(self._client_id), quote_plus(path.read_text(encoding="utf-8").strip()))

    def _told_of(self, subject: str, access_token: str) -> dict[str, Any]:
        """The person's claim as the provider tells it apart from the token (OpenID Connect Core 1.0, section 5.3)."""
        address = self._metadata().get("userinfo_endpoint")
        if address is None:
            return {}
        told = self._call("GET", str(address), headers={"Authorization": f"Bearer {access_token}"})
        if told.get("sub") != subject:
            raise OpenIDError("The provider tells of another person than its token.")
        return {self._claim: told[self._claim]} if self._claim in told else {}

    def _claims(self, token: str, nonce: str, access_token: Any) -> dict[str, Any]:
        try:
            decoded = self._decoded(token)
            wanted = {"iss": self._issuer, "aud": self._client_id}
            values = {name: {"essential": True, "value": value} for name, value in wanted.items()}
            of_request = {"nonce": nonce, "client_id": self._client_id, "access_token": access_token}
            claims = CodeIDToken(decoded.claims, decoded.header, values, of_request)
            claims.validate(leeway=LEEWAY_S)
        except (JoseError, AuthlibBaseError, ValueError, TypeError, KeyError) as error:
            raise OpenIDError(f"The provider's token is not valid: {error}.") from error
        return dict(claims)

    def _decoded(self, token: str) -> jwt.Token:
        try:
            return jwt.decode(token, self._keys(), algorithms=ALGORITHMS)
        except (JoseError, ValueError):  # the provider may have a new key
            return jwt.decode(token, self._keys(KNOWN_FOR_S - AGAIN_S), algorithms=ALGORITHMS)

    def _with_rights(self, claims: dict[str, Any]) -> Person:
        held = claims.get(self._claim, ())
        held = {held} if isinstance(held, str) else {str(one) for one in held} if isinstance(held, list) else set()
        given = [right for right in self._rights if right.claim == EVERYBODY or right.claim in held]
        if not given:
            raise NoRightsError(f"No rule of TILEWRIGHT_OIDC_RIGHTS names what this account has in {self._claim!r}.")
        best = max(given, key=lambda right: list(Scope).index(Scope(right.scope)))  # the first of equal ones
        return Person(_name_of(str(claims["sub"])), Scope(best.scope), best.project)

    def _keys(self, at_least_s: float = 0.0) -> KeySet:
        found: KeySet = KeySet.import_key_set(self._kept(self._endpoint("jwks_uri"), at_least_s))
        return found

    def _metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = self._kept(get_well_known_url(self._issuer, external=True))
        if found.get("issuer") != self._issuer:
            raise OpenIDError("The provider's configuration is of another issuer.")
        return found

    def _endpoint(self, name: str) -> str:
        found = self._metadata().get(name)
        if not isinstance(found, str):
            raise OpenIDError(f"The provider's configuration has no {name}.")
        return found

    def _kept(self, url: str, too_old_s: float = 0.0) -> Any:
        """A kept document unless it is too old, else a new one."""
        when, document = self._known.get(url, (-KNOWN_FOR_S, None))
        age_s = time.monotonic() - when
        if age_s >= KNOWN_FOR_S - too_old_s:
            document = self._call("GET", url)
            self._known[url] = time.monotonic(), document
        return document

    def _call(self, method: str, url: str, **more: Any) -> dict[str, Any]:
        try:
            with httpx.Client(timeout=PROVIDER_S, trust_env=False, headers={"Accept": "application/json"}) as client:
                answer = client.request(method, url, **more)
            told = answer.json() if len(answer.content) <= MOST_BYTES else None
        except (httpx.HTTPError, httpx.InvalidURL, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise OpenIDError(f"The provider does not answer: {type(error).__name__}.") from error
        if answer.status_code != httpx.codes.OK or not isinstance(told, dict):
            raise OpenIDError(f"The provider answers {answer.status_code} to {method} {url.partition('?')[0]}.")
        return told


@cache
def provider() -> Provider:
    """The provider of this process."""
    return Provider()


def _name_of(subject: str) -> str:
    """The name of the person's key: the provider's lasting one, or a hash of it."""
    word = subject if NAME.fullmatch(subject) else hashlib.sha256(subject.encode()).hexdigest()[:32]
    return f"oidc:{word}"
