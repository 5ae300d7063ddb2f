"""Access control: who sends a request, whether they may do what it asks, and whether they send too many."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property, partial
from http.cookies import CookieError, SimpleCookie
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers
from starlette.types import Scope as Request

from tilewright.service.api import refusals
from tilewright.service.api.middleware.shares import REMEMBERED, Buckets, Shares
from tilewright.service.errors import TooManyRequestsError
from tilewright.service.operations.access import keys, sessions
from tilewright.service.operations.access.keys import TokenOwner
from tilewright.service.operations.caller import THIS_MACHINE, Caller, Scope
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings

BELIEVED_S = 5.0
"""How long an accepted token is trusted: a key revoked by another process may work here for so long."""

WRONG_PER_MINUTE = 30
"""Tokens that are not in force, from one address, before more of them are answered with 429.

Guessing is hopeless; this keeps it quiet. Whoever shows a key in force is let in all the same: behind a proxy everybody
has one address, and one who guesses must not keep the others out.
"""

GUESSES_AT_ONCE = 2
"""Tokens looked up at a time of addresses that have shown too many wrong ones: the rest of a flood waits here, where it
takes neither the threads nor the connections that requests are served with. A look-up takes about a millisecond."""

ABROAD_AT_ONCE = 4
"""Calls of an OpenID provider at a time, each of some seconds at most."""

LOCK = "tilewright.lock"
"""Under this name of its scope a request has the lock of its application."""

T = TypeVar("T")

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OPEN = frozenset(
    {
        *("/guide", "/health", "/ready", "/favicon.ico", "/v1/session"),
        *("/sign-in", "/sign-in/openid", "/sign-in/openid/return", "/sign-out"),
    }
)
_CHEAP = frozenset({"/health", "/ready", "/favicon.ico"})
"""Uncounted paths, so that flooding a proxy cannot make the service look dead; nor do the open folders count."""

_STREAM = "/events"
_OPEN_FOLDERS = ("/static/", "/problems/", "/guide/")
_ASKING = "/best:batch"
"""The end of the address that is posted to because the question is long; it changes nothing."""

_ADMIN_FOLDERS = ("/v1/keys", "/v1/projects", "/v1/sessions", "/v1/audit", "/v1/import", "/v1/webhooks", "/v1/devices/")


def wanted_scope(method: str, path: str) -> Scope:
    """The scope that a request needs, by its method and address."""
    if path.startswith(_ADMIN_FOLDERS):
        return Scope.ADMIN
    return Scope.READ if method in _SAFE or path.endswith(_ASKING) else Scope.TUNE


class AccessControl:
    """Admits or refuses every request of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.needs_key, self.has_open_reads = settings().require_keys, settings().open_reads
        self._clock = clock
        self._believed: OrderedDict[tuple[str, bool], tuple[TokenOwner, float]] = OrderedDict()
        self._rates = Buckets(settings().requests_per_minute, clock)
        self._wrong = Buckets(WRONG_PER_MINUTE, clock)
        self._looked_up: dict[tuple[str, bool], asyncio.Task[TokenOwner]] = {}
        self.shares = Shares(clock)

    async def admit(self, scope: Request, headers: Headers) -> Caller:
        """The caller; raises UnknownCallerError (401), ForbiddenError (403), TooManyRequestsError (429)."""
        scope[LOCK] = self
        if not self.needs_key and b"authorization" not in [name for name, _ in scope["headers"]]:
            return THIS_MACHINE  # a cookie from a time with keys is no matter without them
        path, method = scope["path"], scope["method"]
        address = address_of(scope)
        token, is_key = _token(scope, headers)
        wanted = wanted_scope(method, path)
        is_open = path in _OPEN or path.startswith(_OPEN_FOLDERS)
        if is_open:
            if not self.needs_key:
                return THIS_MACHINE
            if path in _OPEN - _CHEAP:
                self._limit(self._rates, _stranger(address))
            return Caller("nobody", Scope.READ)
        if token is None:
            if not (self.has_open_reads and wanted is Scope.READ):
                raise refusals.UnknownCallerError("This server answers only to access keys.")
            caller = Caller(_stranger(address), Scope.READ)
            await self.shares.come_in(scope, caller.name)
        else:
            caller = await self._owner(scope, token, is_key=is_key)
        scope["tilewright.caller"] = caller  # refusals are logged by its name too, and its connections known by it
        if not caller.scope.allows(wanted):
            has = f"{caller.name} has the scope {caller.scope}"
            raise refusals.ForbiddenError(f"{has}, and this request needs the scope {wanted}.")
        self._limit(self._rates, caller.name)
        if not path.endswith(_STREAM):
            self.shares.enter(scope, caller.name)
        return caller

    async def look_up(
        self,
        find: Callable[[], T | None],
        address: str,
        *,
        is_known: bool = False,
        limiter: CapacityLimiter | None = None,
    ) -> T:
        """The owner of a token, which `find` looks up in a thread. A token that `is_known` was in force a moment ago.

        Raises UnknownCallerError where it finds nothing, TooManyRequestsError where it often found nothing before.
        """
        is_guessing = not is_known and self._wrong.wait_s(address, take=False) > 0
        owner = await to_thread.run_sync(find, limiter=self._guesses if is_guessing else limiter)
        if owner is None:
            self._limit(self._wrong, address)
            raise refusals.UnknownCallerError("This token belongs to no valid key.")
        return owner

    def charge(self, scope: Request, caller: Caller, size: int) -> None:
        """Counts each kilobyte of a body, except an admin's, as a request; raises TooManyRequestsError."""
        if caller.scope is not Scope.ADMIN:
            name = _stranger(address_of(scope)) if caller.is_stranger else caller.name
            self._limit(self._rates, name, size // 1024)

    def charge_for_work(self, caller: Caller, count: int) -> None:
        """Counts work as so many requests of its caller; raises TooManyRequestsError."""
        if self.needs_key or caller.is_stranger:
            self._limit(self._rates, caller.name, count)

    def forget(self) -> None:
        """Forgets all callers, since a key or a session has ended; look-ups under way are not kept."""
        self._believed, self._looked_up = OrderedDict(), {}

    @cached_property
    def abroad(self) -> CapacityLimiter:
        """A limit on threads that call an OpenID provider: one that does not answer must not keep them all."""
        return CapacityLimiter(ABROAD_AT_ONCE)

    @cached_property
    def _guesses(self) -> CapacityLimiter:
        return CapacityLimiter(GUESSES_AT_ONCE)

    async def _owner(self, scope: Request, token: str, *, is_key: bool) -> Caller:
        name = keys.hash_of(token), is_key  # a session's token is no key, nor is a key one
        address = address_of(scope)
        known = self._believed.get(name)
        await self.shares.come_in(scope, known[0].caller.name if known else address)
        believed = self._believed
        owner, since = believed.get(name, (None, -math.inf))  # asked now: it may have ended in the meantime
        if owner is None or self._clock() - since > BELIEVED_S or has_ended(owner.expires_at):
            find, since = partial(_look_up, token, is_key=is_key), self._clock()
            try:
                owner = await self._look_up_once(name, find, address, is_known=owner is not None)
            except (refusals.UnknownCallerError, TooManyRequestsError):
                believed.pop(name, None)
                raise
            believed[name] = (owner, since)
        believed.move_to_end(name)
        while len(believed) > REMEMBERED:
            believed.popitem(last=False)
        return owner.caller

    async def _look_up_once(
        self, name: tuple[str, bool], find: Callable[[], TokenOwner | None], address: str, *, is_known: bool
    ) -> TokenOwner:
        """The owner of a token: all requests that show it wait for one look-up."""
        asked = self._looked_up
        task = asked.get(name)
        if task is None:
            task = asked[name] = asyncio.ensure_future(self.look_up(find, address, is_known=is_known))
            task.add_done_callback(lambda _: asked.pop(name, None))
        return await asyncio.shield(task)

    def _limit(self, buckets: Buckets, name: str, count: int = 1) -> None:
        wait_s = buckets.wait_s(name, count=count)
        if wait_s > 0:
            raise self.shares.refusal(name, wait_s)


def has_ended(expires_at: datetime | None) -> bool:
    """Whether that moment has passed, by this machine's clock; the database's has the last word."""
    return expires_at is not None and expires_at <= datetime.now(UTC)


def address_of(scope: Request) -> str:
    """The address that a request comes from; wrong tokens are counted by it."""
    address: str = (scope.get("client") or ("socket", 0))[0]
    return address


def _stranger(address: str) -> str:
    return f"reader {address}"


def is_still_let_in(scope: Request) -> bool:
    """Whether the token of an open request is still in force; asks the database."""
    token, is_key = _token(scope, Headers(scope=scope))
    return token is None or not (lock_of(scope).needs_key or is_key) or _look_up(token, is_key=is_key) is not None


def lock_of(scope: Request) -> AccessControl:
    """The lock that has let a request in."""
    lock: AccessControl = scope[LOCK]
    return lock


def charge_for_work(scope: Request, count: int) -> None:
    """Counts what a request costs beyond itself, as so many requests; raises TooManyRequestsError."""
    caller: Caller | None = scope.get("tilewright.caller")
    if LOCK in scope and caller is not None:
        lock_of(scope).charge_for_work(caller, count)


async def take_turn(scope: Request) -> None:
    """Returns when the request, which had only waited, may be worked on again."""
    if LOCK in scope:
        await lock_of(scope).shares.take_turn(scope)


def give_turn_back(scope: Request) -> None:
    """Gives back the turn of a request that only waits from now on, for the caller's next one."""
    if LOCK in scope:
        lock_of(scope).shares.give_turn_back(scope)


def _look_up(token: str, *, is_key: bool) -> TokenOwner | None:
    with transaction() as session:
        return keys.find_key(session, token) if is_key else sessions.find_session(session, token)


def _token(scope: Request, headers: Headers) -> tuple[str | None, bool]:
    """The token that a request shows, and whether it is a key's; a header goes before a cookie."""
    given = headers.get("authorization")
    if given is not None:
        kind, _, token = given.partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise refusals.UnknownCallerError("The Authorization header must be `Bearer` followed by a key.")
        return token.strip(), True
    return session_token(scope["scheme"], headers), False


def session_token(scheme: str, headers: Mapping[str, str]) -> str | None:
    """The token in the browser's cookie; None without such a cookie."""
    if "cookie" not in headers:
        return None
    try:
        morsel = SimpleCookie(headers["cookie"]).get(sessions.cookie_name(scheme))
    except CookieError:
        return None
    return morsel.value if morsel and morsel.value else None
