"""Refuses requests from the wrong hosts, origins or callers, and bad bodies. Pure ASGI: streams pass untouched."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tilewright.service.api import problems, refusals
from tilewright.service.api.middleware.access import AccessControl
from tilewright.service.errors import ServiceError, TooManyRequestsError
from tilewright.service.operations import strict_json
from tilewright.service.operations.access.sessions import sign_in_path
from tilewright.service.operations.caller import Caller, acting_as
from tilewright.service.operations.strict_json import MalformedJSONError, RefusedJSONError
from tilewright.service.settings import settings

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_MARKS = (*((n.lower().encode(), v.encode()) for n, v in SECURITY_HEADERS.items()), (b"cache-control", b"no-cache"))

FORWARDED = re.compile(rb"forwarded|x-forwarded-.*|(x-real|x-client|cf-connecting|true-client)-ip|via")
BODY_SECONDS = 30.0
# A body that is too large is still read up to here and thrown away: a client that is cut off while it sends
# sees a broken connection instead of the refusal.
DRAINED_BYTES = 16 << 20
LONG_BODY = 1 << 17
STRANGERS_BYTES = 1 << 16
"""Largest body of a caller without a key, where reads are open: a batch of a thousand shapes."""
OPEN_BYTES = {"/v1/session": 1 << 10, "/sign-in": 1 << 13, "/sign-out": 1 << 10}
"""The same where everybody may post: a key, in the form an address to go on to as well. A kilobyte: 170 members."""
REMEMBERED = 256
"""Addresses, names of headers and hosts whose examination is not repeated: every request has the same few."""

IMPORT = "/v1/import"
STATIC = "/static/"
FORMS = frozenset({"/sign-in", "/sign-out"})
"""Posted to by the browser itself, without a script; all other bodies are JSON, which no foreign form can send."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
_JSON = re.compile(r"application/json(\s*;\s*charset=\"?utf-8\"?)?\s*", re.IGNORECASE)
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FORM = re.compile(r"application/x-www-form-urlencoded(\s*;\s*charset=\"?utf-8\"?)?\s*", re.IGNORECASE)
_OF_BODY = frozenset({b"content-length", b"transfer-encoding"})
"""Without one of them a request has no body (RFC 9112, section 6.3)."""


Header = tuple[bytes, bytes]
Known = tuple[int, Sequence[Header], bytes]
"""Status, headers and body of a response."""


@dataclass(frozen=True)
class Rules:
    """The rules that the guard enforces."""

    allowed_hosts: frozenset[str]
    max_body_bytes: int
    loopback_only: bool = True  # and no forwarded headers: as long as no keys are demanded
    max_import_bytes: int = 1 << 24
    public_origin: str | None = None

    @classmethod
    def of_settings(cls) -> Rules:
        """The rules of this process's settings."""
        hosts, public = {host.lower() for host in settings().allowed_hosts}, settings().public_url
        if public is not None:
            hosts.add(_host_name(urlsplit(public).netloc.encode()))
        return cls(
            frozenset(hosts),
            settings().max_body_bytes,
            loopback_only=not settings().require_keys,
            max_import_bytes=settings().max_import_bytes,
            public_origin=public,
        )

    def most_bytes(self, path: str, *, is_stranger: bool) -> int:
        """The largest size of a body that may be sent to that address."""
        if path in OPEN_BYTES or is_stranger:
            return min(self.max_body_bytes, OPEN_BYTES.get(path, STRANGERS_BYTES))
        return max(self.max_body_bytes, self.max_import_bytes) if path == IMPORT else self.max_body_bytes

    def origins(self, scheme: str, host: bytes) -> set[str]:
        """The origins whose pages may call this server under that Host: the public one, else the request's own.

        Under the public name there is no other: a page without TLS could come from an attacker on the network.
        """
        public = self.public_origin
        if public is not None and _host_name(urlsplit(public).netloc.encode()) == _host_name(host):
            return {public}
        return {f"{scheme}://{host.decode('latin-1').lower()}"} | ({public} if public else set())


@dataclass
class Guard:
    """An ASGI application around another that refuses requests by the rules, and marks every response."""

    app: ASGIApp
    rules: Rules = field(default_factory=Rules.of_settings)
    lock: AccessControl = field(default_factory=AccessControl)
    known: Callable[[Scope], Known | None] = lambda _scope: None
    """Returns the response of a request that needs no application, or None; the response is marked like any other."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; anything but HTTP (lifespan) passes."""
        if scope["type"] != "http":
            await (self.app(scope, receive, send) if scope["type"] == "lifespan" else _close(send))
            return
        headers = Headers(scope=scope)
        names = {name for name, _ in scope["headers"]}  # asked first: a look for one header goes through all of them
        request_id = _request_id(headers) if b"x-request-id" in names else os.urandom(16).hex()
        scope["tilewright.request_id"] = request_id
        scope["tilewright.response_headers"] = {**SECURITY_HEADERS, "X-Request-Id": request_id}

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _marked(message.get("headers", ()), request_id)
            elif message.get("more_body"):  # a long answer goes as slowly as its caller reads it
                self.lock.shares.give_turn_back(scope)
            await send(message)

        try:
            await self._answer(scope, headers, names, receive, (send, send_marked))
        finally:
            self.lock.shares.leave(scope)

    async def _answer(
        self, scope: Scope, headers: Headers, names: Collection[bytes], receive: Receive, sends: tuple[Send, Send]
    ) -> None:
        request_id, (send, send_marked) = scope["tilewright.request_id"], sends
        try:
            self._admit(scope, names)
            caller = await self.lock.admit(scope, headers)
            if not _OF_BODY.isdisjoint(names):
                receive = await self._body(scope, headers, receive, caller)
        except refusals.UnknownCallerError as error:
            answer = _sign_in(scope, headers) or problems.response_to(error, "header", request_id)
            await answer(scope, receive, send_marked)
            return
        except (ServiceError, RefusedJSONError, MalformedJSONError) as error:
            if isinstance(error, TooManyRequestsError):
                await self.lock.shares.hold(scope, error)
            await problems.response_to(error, "body", request_id)(scope, receive, send_marked)
            return
        except ConnectionResetError:
            return  # the client left before its body was complete
        scope["tilewright.caller"] = caller
        known = self.known(scope)
        if known is not None:
            status, given, body = known
            await send({"type": "http.response.start", "status": status, "headers": _marked(given, request_id)})
            await send({"type": "http.response.body", "body": body})
            return
        await self.lock.shares.take_turn(scope)
        if scope["method"] in _SAFE:
            await self.app(scope, receive, send_marked)
            return
        with acting_as(caller, f"{scope['method']} {scope['path']}", request_id):
            await self.app(scope, receive, send_marked)

    def _admit(self, scope: Scope, names: Collection[bytes]) -> None:
        """Raises where a request's address or headers are refused; `names`: of its headers."""
        if self.rules.loopback_only:
            _refuse_other_machines(scope)
            _refuse_forwarded(scope)
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or _host_name(hosts[0]) not in self.rules.allowed_hosts:
            raise refusals.WrongHostError("The Host header must name this server: one of the allowed hosts.")
        # Browsers send an Origin with scripts too, which are nobody's secret.
        if b"origin" in names and not (scope["method"] in _SAFE and scope["path"].startswith(STATIC)):
            self._refuse_foreign_origins(scope, hosts[0])
        if b"sec-fetch-site" in names and scope["method"] not in _SAFE:
            _refuse_other_sites(scope)
        if b"%00" in scope.get("raw_path", b"") or b"%00" in scope["query_string"] or "\0" in scope["path"]:
            raise RefusedJSONError("", "must not hold U+0000 in its address.")

    def _refuse_foreign_origins(self, scope: Scope, host: bytes) -> None:
        own = self.rules.origins(scope["scheme"], host)
        if any(origin.lower() not in own for origin in Headers(scope=scope).getlist("origin")):
            raise refusals.ForeignOriginError(
                "The Origin header names another origin than this server's. "
                "Behind a proxy, TILEWRIGHT_PUBLIC_URL must be the address that browsers use."
            )

    async def _body(self, scope: Scope, headers: Headers, receive: Receive, caller: Caller) -> Receive:
        """A `receive` that hands out the whole, checked body; raises for a refused one."""
        most, is_form = self.rules.most_bytes(scope["path"], is_stranger=caller.is_stranger), scope["path"] in FORMS
        length = headers.get("content-length", "0")
        if length == "0" and "transfer-encoding" not in headers:
            return receive
        declared = int(length) if length.isdecimal() else 0  # 0 too where it comes in chunks
        if declared > max(DRAINED_BYTES, most):
            raise refusals.TooLargeError(f"The body may hold {most} bytes, this one has {length}.")
        self.lock.charge(scope, caller, declared)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read(receive, most)
        except TimeoutError:
            raise refusals.TooSlowError(f"The body did not arrive within {BODY_SECONDS:.0f} s.") from None
        if body:
            self.lock.charge(scope, caller, 0 if declared else len(body))
            if not (_FORM if is_form else _JSON).fullmatch(headers.get("content-type", "")):
                kind = "application/x-www-form-urlencoded" if is_form else "application/json"
                raise refusals.NotJSONError(f"The Content-Type of this body must be {kind}.")
            if headers.get("content-encoding", "identity").lower() != "identity":
                raise refusals.NotJSONError("A body must not be compressed; leave Content-Encoding out.")
            if is_form:
                return _replay(body, receive)
            if len(body) > LONG_BODY:
                await run_in_threadpool(strict_json.check, body)  # others are answered meanwhile
            else:
                strict_json.check(body)
        return _replay(body, receive)


def _sign_in(scope: Scope, headers: Headers) -> Response | None:
    """The way to the sign-in page, for a browser that asks for a page."""
    if scope["method"] not in _SAFE or "text/html" not in headers.get("accept", ""):
        return None
    query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
    where = sign_in_path(scope["path"] + query)
    return RedirectResponse(where, status_code=303, headers={"Cache-Control": "no-store"})


def _refuse_other_machines(scope: Scope) -> None:
    client = scope.get("client")
    if client is not None and not _is_loopback(client[0]):  # a Unix socket has no address; its permissions decide
        raise refusals.NotLoopbackError("Only requests from this machine are answered while no keys are demanded.")


@lru_cache(maxsize=REMEMBERED)
def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback
    except ValueError:
        return False


def _refuse_forwarded(scope: Scope) -> None:
    for name, _ in scope["headers"]:
        if _is_forwarding(name):
            raise refusals.ForwardedError(f"The header {name.decode('latin-1')} is refused while no keys are demanded.")


def _marked(given: Iterable[Header], request_id: str) -> list[Header]:
    """The headers of a response with the marks that it has not itself."""
    marks, has_id = _marks_beside(tuple([name for name, _ in given]))
    marked = [*given, *marks]
    if not has_id:
        marked.append((b"x-request-id", request_id.encode()))
    return marked


@lru_cache(maxsize=REMEMBERED)
def _marks_beside(names: tuple[bytes, ...]) -> tuple[tuple[Header, ...], bool]:
    """The marks of a response that has headers of these names, and whether one of them is the request's id."""
    there = {name.lower() for name in names}
    return tuple(mark for mark in _MARKS if mark[0] not in there), b"x-request-id" in there


@lru_cache(maxsize=REMEMBERED)
def _is_forwarding(header: bytes) -> bool:
    return FORWARDED.fullmatch(header.lower()) is not None


def _refuse_other_sites(scope: Scope) -> None:
    if Headers(scope=scope)["sec-fetch-site"] not in {"none", "same-origin"}:
        raise refusals.ForeignOriginError("A page of another site may not send this request.")


@lru_cache(maxsize=REMEMBERED)
def _host_name(host: bytes) -> str:
    """The name without its port; IPv6 addresses keep their brackets."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]*)(:[0-9]{1,5})?", host.decode("latin-1"))
    return match[1].lower() if match else ""


def _request_id(headers: Headers) -> str:
    """The caller's own id where it is a plain word, else a new one."""
    given = headers["x-request-id"]
    return given if _REQUEST_ID.fullmatch(given) else os.urandom(16).hex()


async def _read(receive: Receive, max_bytes: int) -> bytes:
    """The whole body; raises TooLargeError after having read it, up to a limit, so that the client hears of it."""
    kept, size, more = bytearray(), 0, True
    while more and size <= max(DRAINED_BYTES, max_bytes):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        part: bytes = message.get("body", b"")
        size += len(part)
        if size <= max_bytes:
            kept += part
        more = message.get("more_body", False)
    if size > max_bytes:
        raise refusals.TooLargeError(f"The body may hold {max_bytes} bytes, this one has {size} or more.")
    return bytes(kept)


def _replay(body: bytes, receive: Receive) -> Receive:
    waiting: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


async def _close(send: Send) -> None:
    await send({"type": "websocket.close", "code": 1008})
