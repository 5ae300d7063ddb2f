"""The client: the API's calls as methods, with checked answers, and refusals as errors."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Unpack
from urllib.parse import quote
from uuid import UUID

import httpx

from tilewright.service.client.errors import ApiUnreachableError
from tilewright.service.client.events import JobEvent
from tilewright.service.client.transport import NothingFollowsError, Transport, reason_of, with_query
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
from tilewright.service.operations.best.results import ResultAnswer, WhichResults
from tilewright.service.operations.best.tables import TableAnswer
from tilewright.service.operations.claims.claims import ClaimAnswer
from tilewright.service.operations.demand.demand import DemandAnswer, TunedDemand
from tilewright.service.operations.parse import format_options, format_shape
from tilewright.service.operations.requests import (
    ClaimRequest,
    DemandJobs,
    JobRequest,
    RetractionRequest,
    RetryRequest,
    ScheduleChanges,
    ScheduleRequest,
)
from tilewright.service.operations.staleness.comparisons import ComparisonAnswer
from tilewright.service.operations.views.attention import AttentionFilter, AttentionPage


class Client(Transport):
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
        """The job, and whether it is new; the key lets a call be repeated after a lost answer."""
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
        """The schedule of that number."""
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
        """The declaration of one kernel."""
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

    def table(
        self,
        kernel: str,
        device_model: str | None,
        shape: Mapping[str, int | str],
        dtype: str = "float32",
        options: Mapping[str, bool | str] | None = None,
    ) -> TableAnswer:
        """The table of a family, whose shape has a range in it such as `{"m": "1..8192", "n": 4096, "k": 4096}`."""
        path = with_query(
            f"/v1/kernels/{quote(kernel, safe='')}/table",
            device_model=device_model,
            shape=format_shape(shape),
            dtype=dtype,
            options=format_options(options) if options else None,
        )
        return self._get(TableAnswer, path)

    def results(self, **which: Unpack[WhichResults]) -> Page[ResultAnswer]:
        """The first page of results, newest first."""
        return self._get(Page[ResultAnswer], with_query("/v1/results", **which))

    def retract(self, result_id: int, reason: str) -> ResultAnswer:
        """The retracted result; sent again, the same."""
        return self._post(ResultAnswer, f"/v1/results/{result_id}/retract", RetractionRequest(reason=reason))

    def report_claim(self, request: ClaimRequest) -> ClaimAnswer:
        """The claim that a configuration gave wrong results; sent again, the same one."""
        return self._post(ClaimAnswer, "/v1/claims", request)

    def claims(self, *, state: str | None = None, limit: int = 50, cursor: str | None = None) -> Page[ClaimAnswer]:
        """A page of claims, newest first."""
        return self._get(Page[ClaimAnswer], with_query("/v1/claims", state=state, limit=limit, cursor=cursor))

    def claim(self, claim_id: int) -> ClaimAnswer:
        """One claim, and what came of it."""
        return self._get(ClaimAnswer, f"/v1/claims/{claim_id}")

    def demand(
        self, *, kernel: str | None = None, device_model: str | None = None, limit: int = 50
    ) -> Page[DemandAnswer]:
        """The first page of requested problems that are not tuned yet, the most requested first."""
        path = with_query("/v1/demand", kernel=kernel, device_model=device_model, limit=limit)
        return self._get(Page[DemandAnswer], path)

    def tune_demand(
        self, request: DemandJobs, *, top: int, kernel: str | None = None, device_model: str | None = None
    ) -> list[TunedDemand]:
        """The jobs for the most requested problems; sent again, it joins those that are open."""
        path = with_query("/v1/demand:tune", top=top, kernel=kernel, device_model=device_model)
        return self._post(Page[TunedDemand], path, request).items

    def attention(self, chosen: AttentionFilter | None = None, *, limit: int = 50) -> AttentionPage:
        """The first page of what needs attention, the most worthwhile first."""
        path = with_query("/v1/attention", **asdict(chosen or AttentionFilter()), limit=limit)
        return self._get(AttentionPage, path)

    def tune_attention(self, request: DemandJobs, chosen: AttentionFilter, *, top: int) -> list[TunedDemand]:
        """The jobs for the most worthwhile that a worker serves; sent again, it joins those that are open."""
        path = with_query("/v1/attention:tune", top=top, **asdict(chosen))
        return self._post(Page[TunedDemand], path, request).items

    def comparisons(self, schedule_id: int, *, verdict: str | None = None, limit: int = 50) -> Page[ComparisonAnswer]:
        """The first page of a schedule's comparisons, newest first."""
        path = with_query(f"/v1/schedules/{schedule_id}/comparisons", verdict=verdict, limit=limit)
        return self._get(Page[ComparisonAnswer], path)
