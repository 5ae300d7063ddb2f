"""The client: the API's calls as methods, with checked answers, and refusals as errors."""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote, urlencode
from uuid import UUID

import httpx
from pydantic import BaseModel, ValidationError

from tilewright.service.client.errors import TRANSIENT, ApiProblemError, ApiUnreachableError
from tilewright.service.client.events import JobEvent, parse_events
from tilewright.service.client.results import ResultCalls
from tilewright.service.operations.answers import (
    BestAnswer,
    DeviceAnswer,
    DeviceModelAnswer,
    JobAnswer,
    KernelAnswer,
    Page,
    ScheduleAnswer,
    SourceAnswer,
    TrialAnswer,
)
from tilewright.service.operations.parse import format_options, format_shape
from tilewright.service.operations.requests import JobRequest, ScheduleChanges, ScheduleRequest

T = TypeVar("T", bound=BaseModel)

TIMEOUT_S = 30.0
CACHED_ANSWERS = 256
JSON = {"Content-Type": "application/json"}
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
LONGEST_WAIT_S = 10.0
QUIET_S = 60.0  # a stream that is silent for so long is reopened; servers send comments in between


class _NothingFollowsError(Exception):
    """The job has ended and every event was received."""


class Client(ResultCalls):
    """One API at `url`. Every method raises ApiProblemError (refused) or ApiUnreachableError (no answer)."""

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

    def is_ready(self) -> bool:
        """Whether the API answers and its database is reachable and up to date."""
        try:
            return self._http.get("/ready", timeout=5).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def best(
        self, kernel: str, device_model: str, shape: dict[str, int], dtype: str, options: dict[str, bool | str]
    ) -> BestAnswer:
        """The best known configuration; repeated, the query costs one 304 while nothing has changed."""
        return self._get(BestAnswer, self.best_path(kernel, device_model, shape, dtype, options))

    @staticmethod
    def best_path(
        kernel: str, device_model: str, shape: dict[str, int], dtype: str, options: dict[str, bool | str]
    ) -> str:
        """Path and query of that call, readable: `/v1/kernels/gemm/best?device_model=…&shape=m=256,…`."""
        query = {"device_model": device_model, "shape": format_shape(shape), "dtype": dtype}
        if options:
            query["options"] = format_options(options)
        return f"/v1/kernels/{quote(kernel, safe='')}/best?" + urlencode(query, safe="=,:")

    def request_job(self, request: JobRequest, *, idempotency_key: str | None = None) -> tuple[JobAnswer, bool]:
        """The job, and whether it is new; the key makes a repetition after a lost answer harmless."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4()), "Content-Type": "application/json"}
        body = request.model_dump_json(exclude_none=True)
        response = self._send("POST", "/v1/jobs", headers=headers, content=body)
        return self._read(JobAnswer, response.content), response.status_code == httpx.codes.ACCEPTED

    def job(self, job_id: UUID) -> JobAnswer:
        """The current state of the job."""
        return self._get(JobAnswer, f"/v1/jobs/{job_id}")

    def jobs(self, *, state: str | None = None, limit: int = 50, cursor: str | None = None) -> Page[JobAnswer]:
        """A page of jobs, newest first."""
        return self._get(Page[JobAnswer], _path("/v1/jobs", state=state, limit=limit, cursor=cursor))

    def cancel_job(self, job_id: UUID) -> JobAnswer:
        """The job after the request to stop: it stops after the running trial."""
        response = self._send("POST", f"/v1/jobs/{job_id}/cancel", headers=JSON)
        return self._read(JobAnswer, response.content)

    def trials(self, job_id: UUID, *, limit: int = 100, cursor: str | None = None) -> Page[TrialAnswer]:
        """A page of a job's trials, in the order of their numbers."""
        return self._get(Page[TrialAnswer], _path(f"/v1/jobs/{job_id}/trials", limit=limit, cursor=cursor))

    def create_schedule(self, request: ScheduleRequest) -> ScheduleAnswer:
        """The schedule; sent again, the same one."""
        body = request.model_dump_json(exclude_none=True)
        response = self._send("POST", "/v1/schedules", headers=JSON, content=body)
        return self._read(ScheduleAnswer, response.content)

    def edit_schedule(self, schedule_id: int, changes: ScheduleChanges) -> ScheduleAnswer:
        """The schedule, with these fields changed."""
        body = changes.model_dump_json(exclude_unset=True)
        response = self._send("PATCH", f"/v1/schedules/{schedule_id}", headers=JSON, content=body)
        return self._read(ScheduleAnswer, response.content)

    def schedules(self) -> list[ScheduleAnswer]:
        """Every schedule, by name."""
        return self._get(Page[ScheduleAnswer], "/v1/schedules").items

    def schedule(self, schedule_id: int) -> ScheduleAnswer:
        """One schedule."""
        return self._get(ScheduleAnswer, f"/v1/schedules/{schedule_id}")

    def set_enabled(self, schedule_id: int, enabled: bool) -> ScheduleAnswer:
        """The schedule paused or going on."""
        call = "resume" if enabled else "pause"
        response = self._send("POST", f"/v1/schedules/{schedule_id}/{call}", headers=JSON)
        return self._read(ScheduleAnswer, response.content)

    def delete_schedule(self, schedule_id: int) -> None:
        """Removes the schedule."""
        self._send("DELETE", f"/v1/schedules/{schedule_id}", headers=JSON)

    def run_now(self, schedule_id: int) -> list[JobAnswer]:
        """The jobs of a fire outside the due times. Never sent twice: each time would measure again."""
        response = self._send("POST", f"/v1/schedules/{schedule_id}/run", headers=JSON, pauses_s=(None,))
        return self._read(Page[JobAnswer], response.content).items

    def devices(self) -> list[DeviceAnswer]:
        """Every device that a worker has registered."""
        return self._get(Page[DeviceAnswer], "/v1/devices").items

    def drain_device(self, uuid: str) -> DeviceAnswer:
        """The device, which takes no more jobs."""
        response = self._send("POST", f"/v1/devices/{quote(uuid, safe='')}/drain", headers=JSON)
        return self._read(DeviceAnswer, response.content)

    def resume_device(self, uuid: str) -> DeviceAnswer:
        """The device, which takes jobs again."""
        response = self._send("POST", f"/v1/devices/{quote(uuid, safe='')}/resume", headers=JSON)
        return self._read(DeviceAnswer, response.content)

    def device_models(self) -> list[DeviceModelAnswer]:
        """Every device model that a worker has registered."""
        return self._get(Page[DeviceModelAnswer], "/v1/device-models").items

    def kernels(self) -> list[KernelAnswer]:
        """Every kernel."""
        return self._get(Page[KernelAnswer], "/v1/kernels").items

    def kernel(self, name: str) -> KernelAnswer:
        """One kernel's declaration."""
        return self._get(KernelAnswer, f"/v1/kernels/{quote(name, safe='')}")

    def source(self, kernel: str, variant: str | None = None) -> SourceAnswer:
        """A variant's exact source (the default variant's), with the macros of its default configuration."""
        return self._get(SourceAnswer, _path(f"/v1/kernels/{quote(kernel, safe='')}/source", variant=variant))

    def events(self, job_id: UUID, *, after: str | None = None, reconnects: int = 20) -> Iterator[JobEvent]:
        """The job's events until it ends; a broken connection is resumed after the last event."""
        last, failures = after, 0
        while True:
            try:
                for event in self._stream(f"/v1/jobs/{job_id}/events", last):
                    last, failures = event.id, 0
                    yield event
                    if event.is_last:
                        return
            except _NothingFollowsError:
                return
            except httpx.TransportError as error:
                failures += 1
                if failures > reconnects:
                    raise ApiUnreachableError(self.url, _reason(error)) from error
            # Also after a stream that the server ended properly: it is stopping, or has lost its database.
            time.sleep(min(0.1 * 2**failures, 5.0))

    def _stream(self, path: str, last: str | None) -> Iterator[JobEvent]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
        with self._http.stream(
            "GET", path, headers=headers, timeout=httpx.Timeout(TIMEOUT_S, read=QUIET_S)
        ) as response:
            if response.is_error:
                response.read()
                raise ApiProblemError.of(response)
            if response.status_code == httpx.codes.NO_CONTENT:
                raise _NothingFollowsError
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
        for pause_s in pauses_s:
            wait_s = 0.0
            try:
                response = self._http.request(method, path, headers=headers, content=content)
            except httpx.TransportError as error:
                if pause_s is None or isinstance(error, httpx.UnsupportedProtocol):
                    raise ApiUnreachableError(self.url, _reason(error)) from error
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


def _path(path: str, **query: str | int | None) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given, safe=',:=')}" if given else path


def _reason(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__
