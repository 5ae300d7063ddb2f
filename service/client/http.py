"""The client: the API's calls as methods, with checked answers, and refusals as errors."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from urllib.parse import quote
from uuid import UUID

import httpx

from tilewright.service.client.errors import ApiUnreachableError
from tilewright.service.client.events import JobEvent
from tilewright.service.client.results import ResultCalls
from tilewright.service.client.transport import NothingFollowsError, reason_of, with_query
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
from tilewright.service.operations.requests import JobRequest, RetryRequest, ScheduleChanges, ScheduleRequest


class Client(ResultCalls):
    """One API at `url`. Every method raises ApiProblemError (refused) or ApiUnreachableError (no answer)."""

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
        return with_query(
            f"/v1/kernels/{quote(kernel, safe='')}/best",
            device_model=device_model,
            shape=format_shape(shape),
            dtype=dtype,
            options=format_options(options) if options else None,
        )

    def request_job(self, request: JobRequest, *, idempotency_key: str | None = None) -> tuple[JobAnswer, bool]:
        """The job, and whether it is new; the key makes a repetition after a lost answer harmless."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        body = request.model_dump_json(exclude_none=True)
        response = self._send("POST", "/v1/jobs", headers=headers, content=body)
        return self._read(JobAnswer, response.content), response.status_code == httpx.codes.ACCEPTED

    def job(self, job_id: UUID) -> JobAnswer:
        """The current state of the job."""
        return self._get(JobAnswer, f"/v1/jobs/{job_id}")

    def jobs(self, *, state: str | None = None, limit: int = 50, cursor: str | None = None) -> Page[JobAnswer]:
        """A page of jobs, newest first."""
        return self._get(Page[JobAnswer], with_query("/v1/jobs", state=state, limit=limit, cursor=cursor))

    def cancel_job(self, job_id: UUID) -> JobAnswer:
        """The job after the request to stop: it stops after the running trial."""
        return self._post(JobAnswer, f"/v1/jobs/{job_id}/cancel")

    def retry_trials(self, job_id: UUID, trial: int | None = None) -> JobAnswer:
        """The job that tries the failed trials of that job's study again, or the one of that number."""
        return self._post(JobAnswer, f"/v1/jobs/{job_id}/retries", RetryRequest(trial=trial))

    def trials(self, job_id: UUID, *, limit: int = 100, cursor: str | None = None) -> Page[TrialAnswer]:
        """A page of a job's trials, in the order of their numbers."""
        return self._get(Page[TrialAnswer], with_query(f"/v1/jobs/{job_id}/trials", limit=limit, cursor=cursor))

    def create_schedule(self, request: ScheduleRequest) -> ScheduleAnswer:
        """The schedule; sent again, the same one."""
        return self._post(ScheduleAnswer, "/v1/schedules", request)

    def edit_schedule(self, schedule_id: int, changes: ScheduleChanges) -> ScheduleAnswer:
        """The schedule, with these fields changed."""
        body = changes.model_dump_json(exclude_unset=True)
        response = self._send("PATCH", f"/v1/schedules/{schedule_id}", content=body)
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
        return self._post(ScheduleAnswer, f"/v1/schedules/{schedule_id}/{call}")

    def delete_schedule(self, schedule_id: int) -> None:
        """Removes the schedule."""
        self._send("DELETE", f"/v1/schedules/{schedule_id}")

    def run_now(self, schedule_id: int) -> list[JobAnswer]:
        """The jobs of a fire outside the due times. Never sent twice: each time would measure again."""
        response = self._send("POST", f"/v1/schedules/{schedule_id}/run", pauses_s=(None,))
        return self._read(Page[JobAnswer], response.content).items

    def devices(self) -> list[DeviceAnswer]:
        """Every device that a worker has registered."""
        return self._get(Page[DeviceAnswer], "/v1/devices").items

    def drain_device(self, uuid: str) -> DeviceAnswer:
        """The device, which takes no more jobs."""
        return self._post(DeviceAnswer, f"/v1/devices/{quote(uuid, safe='')}/drain")

    def resume_device(self, uuid: str) -> DeviceAnswer:
        """The device, which takes jobs again."""
        return self._post(DeviceAnswer, f"/v1/devices/{quote(uuid, safe='')}/resume")

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
        return self._get(SourceAnswer, with_query(f"/v1/kernels/{quote(kernel, safe='')}/source", variant=variant))

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
            except NothingFollowsError:
                return
            except httpx.TransportError as error:
                failures += 1
                if failures > reconnects:
                    raise ApiUnreachableError(self.url, reason_of(error)) from error
            # Also after a stream that the server ended properly: it is stopping, or has lost its database.
            time.sleep(min(0.1 * 2**failures, 5.0))
