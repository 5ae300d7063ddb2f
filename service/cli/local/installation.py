"""The programs that `tilewright up` starts: the database, the API, and a worker for each device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.service.cli.failure import CommandError
from tilewright.service.cli.local.supervisor import CLI, Program, Supervisor, worker_program
from tilewright.service.cli.local_connection import LocalConnection
from tilewright.service.cli.output import note
from tilewright.service.client import Client
from tilewright.service.operations.answers import DeviceAnswer
from tilewright.service.operations.best_cache.memory import EXPECTED_FOR_S
from tilewright.service.settings import settings
from tilewright.service.store import schema
from tilewright.service.store.embedded import EmbeddedPostgres
from tilewright.service.store.session import database_url
from tilewright.tuner.devices.local import DeviceEntry

READY_WITHIN_S = 60.0 + EXPECTED_FOR_S  # it reads into memory what was asked about lately
WORKER_WITHIN_S = 90.0  # a worker first measures what its device can do
QUICK_DEATHS = 3  # so many in a row, and waiting longer is of no use
CHECK_S = 0.2
DATABASE_CHECK_S = 5.0
STOP_MARGIN_S = 5.0  # a worker takes up to the grace itself, to end its job


@dataclass
class Installation:
    """The programs that `up` starts and stops."""

    devices: list[DeviceEntry]
    server: EmbeddedPostgres | None
    heard_before: dict[str, str | None] = field(default_factory=dict)  # workers before ours, by device
    supervisor: Supervisor = field(init=False)

    def __post_init__(self) -> None:
        logs = settings().data_dir / "logs"
        programs = [Program("API", (*CLI, "serve"), logs / "api.log")]
        programs += [worker_program(device, logs) for device in self.devices]
        self.supervisor = Supervisor(programs)

    @property
    def url(self) -> str:
        """The API's address, as seen from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings().host, settings().host)  # noqa: S104 - compared only
        return f"http://{host}:{settings().port}"

    def start(self) -> None:
        """Starts database, API and workers; returns when the API is ready."""
        self.start_database()
        self.heard_before = {one.uuid: one.worker for one in LocalConnection().devices()}
        self.supervisor.start()
        with Client(self.url) as client:
            self._wait_for(client.is_ready, self.supervisor.programs[:1], READY_WITHIN_S)

    def start_database(self) -> None:
        """Starts the database and brings its tables up to date."""
        if self.server is not None and not self.server.running():
            note(f"starting PostgreSQL in {self.server.home}")
        database_url()
        schema.upgrade()

    def wait_for_worker(self, client: Client) -> DeviceAnswer:
        """Waits until a worker has registered since the start, and returns its device."""
        found: list[DeviceAnswer] = []

        def has_spoken() -> bool:
            fresh = {one.uuid: one for one in client.devices() if self.heard_before.get(one.uuid) != one.worker}
            found.extend(fresh[device.uuid] for device in self.devices if device.uuid in fresh)
            return bool(found)

        self._wait_for(has_spoken, self.supervisor.programs[1:], WORKER_WITHIN_S)
        return found[0]

    def serve_until_stopped(self) -> None:
        """Restarts the database if it goes away. Ends only by KeyboardInterrupt, which Ctrl-C and SIGTERM raise."""
        while True:
            time.sleep(DATABASE_CHECK_S)
            if self.server is not None:
                self.server.ensure()

    def stop(self) -> None:
        """Stops API and workers, at once after a second Ctrl-C; the database stops when the command ends."""
        try:
            self.supervisor.stop(settings().stop_grace_s + STOP_MARGIN_S)
        except KeyboardInterrupt:
            self.supervisor.kill()

    def _wait_for(self, condition: Callable[[], bool], programs: list[Program], within_s: float) -> None:
        """Returns when the condition holds; raises CommandError with the end of a log if it never will."""
        deadline = time.monotonic() + within_s
        while not condition():
            dead = next((p for p in programs if p.deaths >= QUICK_DEATHS), None)
            if dead is not None or time.monotonic() > deadline:
                slow = dead or programs[0]
                what = "keeps crashing" if dead else f"is not ready after {within_s:.0f} s"
                raise CommandError(f"{slow.name} {what}. Its log, {slow.log}, ends: {slow.log_tail(3)}")
            time.sleep(CHECK_S)
