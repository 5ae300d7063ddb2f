"""The service over HTTP with the standard library alone: its API, and one configuration without exceptions."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, NamedTuple

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.errors import TunerError
from tilewright.tuner.runtime.choice import TargetDevice
from tilewright.tuner.runtime.errors import ServiceWarning, warn

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 1 << 20
REST_S = 60.0
"""After a failure nobody is made to wait for the service again so soon."""

MOST_SEEN = 2000
"""Characters of a claim's words that the service takes."""

MAX_REPORTS = 256
"""Misses and claims that wait to be reported; more are dropped."""


class SeenTimes(NamedTuple):
    """The times of a program's calls on its GPU, ours and the library's in turns: medians, and how many of each."""

    ours_ms: float
    library_ms: float
    calls: int

    def __str__(self) -> str:
        """The times in words."""
        return f"first calls took {self.ours_ms:.4g} ms, the library's {self.library_ms:.4g} ms ({self.calls} of each)"


Outcome = dict[str, Any] | Exception | None
Answered = Callable[[Problem, TargetDevice, dict[str, Any]], None]


class ServiceAddressError(TunerError):
    """The address or the key cannot be used."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class ApiCalls:
    """Calls of one API. Raises ServiceAddressError for an address or a key that cannot be one."""

    def __init__(self, url: str, key: str | None, limit_s: float) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ServiceAddressError(f"TILEWRIGHT_URL: {url!r} is not an HTTP address. Example: http://127.0.0.1:8000")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ServiceAddressError("TILEWRIGHT_KEY: a key must be printable ASCII on one line")
        self.url, self._limit_s = url.rstrip("/"), limit_s
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._opener = urllib.request.build_opener(_NoRedirects)

    def best(self, problem: Problem, device_model: str) -> dict[str, Any]:
        """The answer to `GET /v1/kernels/{kernel}/best`; raises what `call` raises."""
        words = [f"{name}={str(value).lower()}" for name, value in problem.option_items]
        query = {"device_model": device_model, "shape": problem.shape_text, "dtype": problem.dtype}
        query |= {"options": ",".join(words)} if words else {}
        return self.call(f"/v1/kernels/{problem.kernel}/best?{urllib.parse.urlencode(query)}")

    def table(self, family: Family, device_model: str) -> dict[str, Any]:
        """The answer to `GET /v1/kernels/{kernel}/table`; raises what `call` raises."""
        words = ",".join(f"{name}={str(value).lower()}" for name, value in family.options.items())
        query = {"device_model": device_model, "shape": family.shape_text, "dtype": family.dtype}
        query |= {"options": words} if words else {}
        return self.call(f"/v1/kernels/{family.kernel}/table?{urllib.parse.urlencode(query)}")

    def claim(
        self,
        kernel: Kernel,
        problem: Problem,
        device_model: str,
        driver: str,
        configuration: Configuration,
        seen: str,
        *,
        times: SeenTimes | None = None,
    ) -> dict[str, Any]:
        """The answer to `POST /v1/claims`: what was seen here of this configuration; raises what `call` raises.

        It needs a key of scope `tune` where the service requires keys. `seen`: what was wrong, in words; with `times`
        nothing was.
        """
        body = problem.as_json() | {
            "device_model": device_model,
            "driver": driver,
            "variant": configuration.variant,
            "configuration": dict(configuration.items),
            "source_hash": kernel.source_hash(configuration.variant),
            "seen": seen[:MOST_SEEN],
        }
        body |= {} if times is None else {"times": times._asdict()}
        return self.call("/v1/claims", body)

    def call(self, path: str, body: Mapping[str, Any] | None = None, method: str | None = None) -> dict[str, Any]:
        """The JSON object that a GET answers, or with a body a POST; `method`: another one.

        Raises urllib.error.HTTPError for a refusal, OSError or http.client.HTTPException where nothing answers in time,
        ValueError for anything else than a JSON object.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        url = self.url + path
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - http or https: see __init__
        with self._opener.open(request, timeout=self._limit_s) as response:
            text = response.read(MAX_ANSWER_BYTES + 1)
        answer = json.loads(text) if len(text) <= MAX_ANSWER_BYTES else None
        if not isinstance(answer, dict):
            raise ValueError("the answer is not a JSON object")  # noqa: TRY004 - handled like any other unusable answer
        return answer


def refusal(error: urllib.error.HTTPError) -> dict[str, Any]:
    """The problem document of a refusal; one made of the status where the body is something else."""
    try:
        with error:
            document = json.loads(error.read(MAX_ANSWER_BYTES))
    except (OSError, ValueError, RecursionError):
        document = None
    return document if isinstance(document, dict) else {"status": error.code, "detail": f"HTTP {error.code}"}


class Service:
    """The service that launchers ask; `answered` is called for each answer, also one after the limit."""

    def __init__(self, url: str, key: str | None, limit_s: float, answered: Answered) -> None:
        self._api = ApiCalls(url, key, limit_s)
        self.url, self.limit_s = self._api.url, limit_s
        self._answered = answered
        self._rests_until = 0.0
        self._has_warned = False
        self._reports: queue.Queue[Callable[[], object]] = queue.Queue(MAX_REPORTS)
        self._reporter_of = 0  # the process whose thread reports: threads do not survive a fork

    def ask(self, problem: Problem, place: TargetDevice) -> dict[str, Any] | None:
        """The answer; None where the service has none, or does not answer within the limit (one warning)."""
        return self._waited_for(partial(self._outcome, problem, place))

    def table(
        self, family: Family, place: TargetDevice, keep: Callable[[dict[str, Any]], object]
    ) -> dict[str, Any] | None:
        """The table of a family, or None, in the same way; `keep` gets it, even after the limit."""

        def outcome() -> Outcome:
            answer = self._outcome_of(lambda: self._api.table(family, place.slug))
            if isinstance(answer, dict):
                keep(answer)
            return answer

        return self._waited_for(outcome)

    def _waited_for(self, work: Callable[[], Outcome]) -> dict[str, Any] | None:
        if time.monotonic() < self._rests_until:
            return None
        box: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        threading.Thread(target=lambda: box.put(work()), daemon=True).start()
        try:
            outcome = box.get(timeout=self.limit_s)
        except queue.Empty:
            outcome = TimeoutError(f"no answer within {self.limit_s:g} s")
        if isinstance(outcome, Exception):
            self._failed(outcome)
            return None
        return outcome

    def report(self, problem: Problem, place: TargetDevice) -> None:
        """Asks in the background, so that the service counts demand; returns at once, and drops excess questions."""
        self._later(partial(self._outcome, problem, place))

    def claim(
        self,
        kernel: Kernel,
        problem: Problem,
        place: TargetDevice,
        driver: str,
        configuration: Configuration,
        seen: str,
        *,
        times: SeenTimes | None = None,
    ) -> None:
        """Claims in the background what was seen of this configuration here; returns at once, never raises."""
        self._later(partial(self._claim, kernel, problem, place.slug, driver, configuration, seen, times=times))

    def _claim(self, *claimed: Any, times: SeenTimes | None) -> None:
        try:
            self._api.claim(*claimed, times=times)
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            log.warning("%s did not take a claim: %s", self.url, error)

    def _later(self, report: Callable[[], object]) -> None:
        if self._reporter_of != os.getpid():
            self._reporter_of = os.getpid()
            self._reports = queue.Queue(MAX_REPORTS)
            threading.Thread(target=self._send_reports, args=(self._reports,), daemon=True).start()
        try:
            self._reports.put_nowait(report)
        except queue.Full:
            return

    def _send_reports(self, reports: queue.Queue[Callable[[], object]]) -> None:
        while True:
            reports.get()()
            reports.task_done()

    def _outcome(self, problem: Problem, place: TargetDevice) -> Outcome:
        answer = self._outcome_of(lambda: self._api.best(problem, place.slug))
        if isinstance(answer, dict):
            self._answered(problem, place, answer)
        return answer

    @staticmethod
    def _outcome_of(question: Callable[[], dict[str, Any]]) -> Outcome:
        """The outcome of a question as a value, which can pass between threads."""
        try:
            return question()
        except urllib.error.HTTPError as error:
            with error:  # 404: it does not know the kernel or the device model, or has no table
                return None if error.code == HTTPStatus.NOT_FOUND else error
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            return error

    def _failed(self, error: Exception) -> None:
        self._rests_until = time.monotonic() + REST_S
        if not self._has_warned:
            self._has_warned = True
            warn(f"{self.url} was not of help: {error}; going on without it", ServiceWarning)
