"""Where commands get their answers: the API at TILEWRIGHT_URL if that is set, otherwise this machine's database."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from sqlalchemy.orm import Session

from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import note
from tilewright.service.cli.result_calls import LocalResults
from tilewright.service.client import Client
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations import catalog, registry
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
from tilewright.service.operations.best import find as find_best
from tilewright.service.operations.caller import COMMAND_LINE, acting_as
from tilewright.service.operations.fleet import fleet
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.jobs import request as request_job
from tilewright.service.operations.requests import JobRequest, ScheduleChanges, ScheduleRequest
from tilewright.service.operations.schedules import schedules
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.service.store import schema
from tilewright.service.store.embedded import EmbeddedPostgres


class LocalConnection(LocalResults):
    """The calls of `Client`, answered from the database of the settings, each in one transaction."""

    def best(
        self, kernel: str, device_model: str, shape: dict[str, int], dtype: str, options: dict[str, bool | str]
    ) -> BestAnswer:
        """The best known configuration."""
        with transaction() as session:
            return find_best.find_best(session, kernel, device_model, shape, dtype, options)

    def request_job(self, request: JobRequest) -> tuple[JobAnswer, bool]:
        """The job, and whether it is new."""
        with transaction() as session:
            return request_job.request_job(session, request)

    def job(self, job_id: UUID) -> JobAnswer:
        """The job as it stands."""
        with transaction() as session:
            return jobs.job(session, job_id)

    def jobs(self, *, state: str | None = None, limit: int = 50, cursor: str | None = None) -> Page[JobAnswer]:
        """A page of jobs, newest first."""
        with transaction() as session:
            return jobs.jobs(session, state=state, limit=limit, cursor=cursor)

    def cancel_job(self, job_id: UUID) -> JobAnswer:
        """The job after the request to stop."""
        with transaction() as session:
            return jobs.cancel_job(session, job_id)

    def trials(self, job_id: UUID, *, limit: int = 100, cursor: str | None = None) -> Page[TrialAnswer]:
        """A page of a job's trials."""
        with transaction() as session:
            return jobs.trials(session, job_id=job_id, limit=limit, cursor=cursor)

    def create_schedule(self, request: ScheduleRequest) -> ScheduleAnswer:
        """The schedule; sent again, the same one."""
        with transaction() as session:
            return schedules.create_schedule(session, request)

    def edit_schedule(self, schedule_id: int, changes: ScheduleChanges) -> ScheduleAnswer:
        """The schedule with those fields changed."""
        with transaction() as session:
            return schedules.edit_schedule(session, schedule_id, changes)

    def schedules(self) -> list[ScheduleAnswer]:
        """Every schedule, by name."""
        with transaction() as session:
            return schedules.schedules(session)

    def schedule(self, schedule_id: int) -> ScheduleAnswer:
        """One schedule."""
        with transaction() as session:
            return schedules.schedule(session, schedule_id)

    def set_enabled(self, schedule_id: int, enabled: bool) -> ScheduleAnswer:
        """The schedule paused or going on."""
        with transaction() as session:
            return schedules.set_enabled(session, schedule_id, enabled=enabled)

    def delete_schedule(self, schedule_id: int) -> None:
        """Removes the schedule."""
        with transaction() as session:
            schedules.delete_schedule(session, schedule_id)

    def run_now(self, schedule_id: int) -> list[JobAnswer]:
        """The jobs of a fire outside the due times."""
        with transaction() as session:
            return schedules.run_now(session, schedule_id)

    def devices(self) -> list[DeviceAnswer]:
        """Every registered device."""
        with transaction() as session:
            return registry.devices(session)

    def drain_device(self, uuid: str) -> DeviceAnswer:
        """The device, which takes no more jobs."""
        with transaction() as session:
            return fleet.drain_device(session, uuid)

    def resume_device(self, uuid: str) -> DeviceAnswer:
        """The device, which takes jobs again."""
        with transaction() as session:
            return fleet.resume_device(session, uuid)

    def device_models(self) -> list[DeviceModelAnswer]:
        """Every registered device model."""
        with transaction() as session:
            return registry.device_models(session)

    def kernels(self) -> list[KernelAnswer]:
        """Every kernel."""
        with transaction() as session:
            return catalog.kernels(session)

    def kernel(self, name: str) -> KernelAnswer:
        """One kernel's declaration."""
        with transaction() as session:
            return catalog.kernel(session, name)

    def source(self, kernel: str, variant: str | None) -> SourceAnswer:
        """A variant's source."""
        with transaction() as session:
            return catalog.source(session, kernel, variant)


Connection = Client | LocalConnection
"""What commands ask: the API, or the database by the same calls."""


def embedded_server() -> EmbeddedPostgres | None:
    """The embedded PostgreSQL of the settings; None if they name another database."""
    return None if settings().database_url else EmbeddedPostgres(settings().data_dir / "postgres")


@contextmanager
def connect() -> Iterator[Connection]:
    """The connection that the settings name, ready to answer."""
    url = settings().url
    if url:
        with Client(url, key=settings().key) as client:
            yield client
        return
    prepare_database()
    with acting_as(COMMAND_LINE, "tilewright " + " ".join(sys.argv[1:3])):  # the command's own words, no values
        yield LocalConnection()


@contextmanager
def database_session(what: str, calls: str, command: str) -> Iterator[Session]:
    """A session for a command that works in the database alone; raises CommandError where TILEWRIGHT_URL names an API.

    `what` it manages and the `calls` of the API that do the same, for the sentence that says so.
    """
    if settings().url:
        raise CommandError(
            f"{what} are managed in the database: unset TILEWRIGHT_URL there, or use {calls} with an admin key",
            ExitCode.USAGE,
        )
    prepare_database()
    with acting_as(COMMAND_LINE, command), transaction() as session:
        yield session


def prepare_database() -> None:
    """Starts the embedded database if it is stopped, and brings its tables up to date.

    A shared database is not migrated in passing: its other users have to agree on when that happens.
    """
    server = embedded_server()
    if server is None:
        if not schema.at_head():
            raise DatabaseUnavailableError(
                "The database's tables are not those of this version. Run: tilewright db upgrade"
            )
        return
    if not server.running():
        note(f"starting the embedded PostgreSQL in {server.home}")
    schema.upgrade()
