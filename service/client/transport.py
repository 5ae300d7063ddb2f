"""The client's requests: sent, repeated where that is safe, their answers checked; event streams."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlencode

import httpx
from pydantic import BaseModel, ValidationError

from tilewright.service.client.errors import TRANSIENT, ApiProblemError, ApiUnreachableError
from tilewright.service.client.events import JobEvent, parse_events

T = TypeVar("T", bound=BaseModel)

TIMEOUT_S = 30.0
CACHED_ANSWERS = 256
JSON = {"Content-Type": "application/json"}
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
LONGEST_WAIT_S = 10.0
QUIET_S = 60.0  # a stream that is silent for so long is reopened; servers send comments in between


class NothingFollowsError(Exception):
    """The job has ended and every event was received."""


class Transport:
    """One API at `url`. Every call raises ApiProblemError (refused) or ApiUnreachableError (no answer)."""

    def __init__(self, url: str, *, key: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        base = _base_url(self.url)
        self._seen: OrderedDict[str, tuple[str, bytes]] = OrderedDict()  # request → (ETag, body)
        self._http = httpx.Client(
            base_url=base,
            headers={"Accept": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=timeout_s,
            # A proxy of the environment cannot reach this machine's own loopback address.
            trust_env=base.host not in LOOPBACK,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _stream(self, path: str, last: str | None) -> Iterator[JobEvent]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
        with self._http.stream(
            "GET", path, headers=headers, timeout=httpx.Timeout(TIMEOUT_S, read=QUIET_S)
        ) as response:
            if response.is_error:
                response.read()
                raise ApiProblemError.of(response)
            if response.status_code == httpx.codes.NO_CONTENT:
                raise NothingFollowsError
            yield from parse_events(response.iter_lines(), last)

    def _get(self, kind: type[T], path: str) -> T:
        """The answer at `path`; one with an ETag is kept, and transferred again only if it has changed."""
        seen = self._seen.get(path)
        response = self._send("GET", path, headers={"If-None-Match": seen[0]} if seen else {})
        if response.status_code == httpx.codes.NOT_MODIFIED and seen:
            self._seen.move_to_end(path)
            return self._read(kind, seen[1])
        if etag := response.headers.get("etag"):
            self._seen[path] = (etag, response.content)
            if len(self._seen) > CACHED_ANSWERS:
                self._seen.popitem(last=False)
        return self._read(kind, response.content)

    def _post(self, kind: type[T], path: str, request: BaseModel | None = None) -> T:
        """The checked answer to the request; what is None in it is not sent."""
        content = request.model_dump_json(exclude_none=True) if request else None
        return self._read(kind, self._send("POST", path, content=content).content)

    def _send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: str | None = None,
        pauses_s: Sequence[float | None] = (0.2, 0.8, None),
    ) -> httpx.Response:
        """The response; a call that reaches no server, or an overloaded one, is tried three times.

        If the server says how long to wait (429), the client waits that long, up to ten seconds. Repeating is safe for
        reads, for new jobs and schedules (an idempotency key or the name identifies them), and for cancelling.
        """
        if method != "GET":
            headers = JSON | dict(headers or {})  # the API takes no change without it, not even one without a body
        for pause_s in pauses_s:
            wait_s = 0.0
            try:
                response = self._http.request(method, path, headers=headers, content=content)
            except httpx.TransportError as error:
                if pause_s is None or isinstance(error, httpx.UnsupportedProtocol):
                    raise ApiUnreachableError(self.url, reason_of(error)) from error
            else:
                if not response.is_error:
                    return response
                if pause_s is None or response.status_code not in TRANSIENT:
                    raise ApiProblemError.of(response)
                wait_s = _wait_s(response)
            time.sleep(max(pause_s, wait_s))
        raise AssertionError("the last attempt returns or raises")

    def _read(self, kind: type[T], body: bytes) -> T:
        """The checked answer. Fields that a newer API has added are ignored: /v1 only grows."""
        try:
            return kind.model_validate_json(body, extra="ignore")
        except ValidationError as error:
            first = error.errors()[0]
            reason = f"unexpected answer at {'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
            raise ApiUnreachableError(self.url, reason) from error


def _base_url(url: str) -> httpx.URL:
    try:
        base = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ApiUnreachableError(url, str(error)) from error
    if base.scheme not in {"http", "https"} or not base.host:
        raise ApiUnreachableError(url, "not an address like http://127.0.0.1:8000")
    return base


def _wait_s(response: httpx.Response) -> float:
    """Seconds to wait after too many requests; 0 if the server names none, or a date."""
    retry_after = response.headers.get("retry-after", "")
    if response.status_code != httpx.codes.TOO_MANY_REQUESTS or not retry_after.isdecimal():
        return 0.0
    return min(float(retry_after), LONGEST_WAIT_S)


def with_query(path: str, **query: str | float | None) -> str:
    """Path and query; None is left out, flags are `true` and `false`."""
    given = {n: str(v).lower() if isinstance(v, bool) else v for n, v in query.items() if v is not None}
    return f"{path}?{urlencode(given, safe=',:=')}" if given else path


def reason_of(error: httpx.TransportError) -> str:
    """The reason why no answer came, in words."""
    return str(error) or type(error).__name__
