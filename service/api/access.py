"""The lock in the door: which caller a request comes from, whether it may do what it asks, and not too often."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import Scope as Request

from tilewright.service.api import refusals
from tilewright.service.operations import keys, sessions
from tilewright.service.operations.caller import THIS_MACHINE, Caller, Scope
from tilewright.service.operations.keys import Found
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings

COOKIE = sessions.COOKIE
BELIEVED_S = 5.0
"""How long an accepted token is not looked up again: so long a revoked key may go on in this process."""

REMEMBERED = 4096
"""Tokens and addresses kept in memory; the least recent ones are forgotten first."""

WRONG_PER_MINUTE = 30
"""Tokens that are not in force, from one address, before it has to wait. Guessing is hopeless; this keeps it quiet."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OPEN = frozenset({"/health", "/ready", "/sign-in", "/v1/session", "/favicon.ico"})
_OPEN_FOLDERS = ("/static/", "/problems/")
_ASKING = ("/best:batch", "/v1/digits")
"""Ends of addresses that are posted to because the question is long; they change nothing."""

_ADMIN_FOLDERS = ("/v1/keys", "/v1/audit", "/v1/import", "/v1/webhooks", "/v1/devices/")


def wanted_scope(method: str, path: str) -> Scope:
    """What a request asks for, by its method and address."""
    if path.startswith(_ADMIN_FOLDERS):
        return Scope.ADMIN
    return Scope.READ if method in _SAFE or path.endswith(_ASKING) else Scope.TUNE


@dataclass
class Buckets:
    """Requests a minute for each of many callers, half a minute's worth at once; bounded in memory."""

    per_minute: float
    clock: Callable[[], float] = time.monotonic
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # name -> (tokens, when)

    def wait_s(self, name: str, *, take: bool = True) -> float:
        """0 where the caller may go on, which counts if it is to `take`; else the seconds until it may."""
        now, most = self.clock(), max(1.0, self.per_minute / 2)
        tokens, when = self._left.pop(name, (most, now))
        tokens = min(most, tokens + (now - when) * self.per_minute / 60)
        is_allowed = tokens >= 1
        self._left[name] = (tokens - 1 if is_allowed and take else tokens, now)
        while len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
        return 0.0 if is_allowed else (1 - tokens) * 60 / self.per_minute


class Lock:
    """Decides about every request of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.needs_key, self.has_open_reads = settings().require_keys, settings().open_reads
        self._clock = clock
        self._believed: OrderedDict[str, tuple[Found, float]] = OrderedDict()
        self._rates = Buckets(settings().requests_per_minute, clock)
        self._wrong = Buckets(WRONG_PER_MINUTE, clock)

    async def admit(self, scope: Request, headers: Headers) -> Caller:
        """The caller; raises UnknownCallerError (401), ForbiddenError (403), TooManyRequestsError (429)."""
        if not self.needs_key and b"authorization" not in [name for name, _ in scope["headers"]]:
            return THIS_MACHINE  # a cookie from a time with keys is no matter without them
        path, method = scope["path"], scope["method"]
        address = (scope.get("client") or ("socket", 0))[0]
        token, is_key = _token(headers)
        wanted = wanted_scope(method, path)
        is_open = path in _OPEN or path.startswith(_OPEN_FOLDERS)
        if is_open:
            return THIS_MACHINE if not self.needs_key else Caller("nobody", Scope.READ)
        if token is None:
            if not (self.has_open_reads and wanted is Scope.READ):
                raise refusals.UnknownCallerError("This server answers only to access keys.")
            caller = Caller(f"reader {address}", Scope.READ)
        else:
            caller = await self._owner(token, address, is_key=is_key)
        if not caller.scope.allows(wanted):
            raise refusals.ForbiddenError(f"{caller.name} has the scope {caller.scope}; this needs {wanted}.")
        self._limit(self._rates, caller.name)
        return caller

    async def _owner(self, token: str, address: str, *, is_key: bool) -> Caller:
        name = keys.hash_of(token)
        found, since = self._believed.pop(name, (None, -math.inf))
        if found is None or self._clock() - since > BELIEVED_S:
            self._limit(self._wrong, address, take=False)
            found, since = await run_in_threadpool(_look_up, token, is_key=is_key), self._clock()
            if found is None:
                self._limit(self._wrong, address)
                raise refusals.UnknownCallerError("No key in force has this token.")
        self._believed[name] = (found, since)
        while len(self._believed) > REMEMBERED:
            self._believed.popitem(last=False)
        return found.caller

    @staticmethod
    def _limit(buckets: Buckets, name: str, *, take: bool = True) -> None:
        wait_s = buckets.wait_s(name, take=take)
        if wait_s > 0:
            raise refusals.TooManyRequestsError(math.ceil(wait_s))


def _look_up(token: str, *, is_key: bool) -> Found | None:
    with transaction() as session:
        return keys.find_key(session, token) if is_key else sessions.find_session(session, token)


def _token(headers: Headers) -> tuple[str | None, bool]:
    """The token that a request shows, and whether it is a key's; a header goes before a cookie."""
    given = headers.get("authorization")
    if given is not None:
        kind, _, token = given.partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise refusals.UnknownCallerError("The Authorization header must be `Bearer` and a key.")
        return token.strip(), True
    return session_token(headers), False


def session_token(headers: Mapping[str, str]) -> str | None:
    """The token in the browser's cookie; None where there is none."""
    if "cookie" not in headers:
        return None
    try:
        found = SimpleCookie(headers["cookie"]).get(COOKIE)
    except CookieError:
        return None
    return found.value if found and found.value else None
