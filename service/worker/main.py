"""The worker process of one device: registers it, keeps its locks and its heartbeat, runs its jobs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from contextlib import closing

import psycopg
from procrastinate.exceptions import ProcrastinateException
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tilewright.service import logs
from tilewright.service.device_lock import DeviceBusyError, FleetLock, alone_on, host_lock
from tilewright.service.errors import DatabaseUnavailableError, ServiceError
from tilewright.service.operations import registry
from tilewright.service.operations.fleet import fleet
from tilewright.service.settings import settings
from tilewright.service.store import schema
from tilewright.service.store.engine_queue import queue_of_device, queue_of_model
from tilewright.service.store.models import DeviceState
from tilewright.service.store.patience import patiently
from tilewright.service.store.session import database_url, session_scope
from tilewright.service.worker.engine import make_app
from tilewright.service.worker.intake import Intake, first_of
from tilewright.service.worker.maintenance import Maintenance
from tilewright.service.worker.supervision import Supervision
from tilewright.tuner.compile import cache
from tilewright.tuner.devices.cpu import build as cpu_build
from tilewright.tuner.devices.device import DeviceModel, Environment
from tilewright.tuner.devices.local import DeviceEntry, find_device, open_device
from tilewright.tuner.errors import TunerError

logger = logging.getLogger(__name__)

RECONNECT_S = 1.0
CACHE_COUNTED_EVERY_S = 300.0


def run_worker(device_name: str) -> int:
    """Serves the device until SIGTERM or SIGINT (hands the job back) or SIGUSR1 (ends it first); the exit status.

    Raises NoDeviceError, DeviceBusyError where another worker serves the device, DatabaseUnavailableError.
    """
    logs.configure()
    entry = find_device(device_name)
    # The whole GPU's: its slices share clocks and power, and would disturb each other's times.
    gpu = entry.physical_uuid
    with host_lock(gpu, "worker", host_wide=entry.kind == "cuda"), FleetLock(gpu) as lock:
        with alone_on(entry), closing(open_device(device_name)) as device:
            model, environment = device.model, device.environment
        # Closed: jobs open it in their own process; this one holds no context.
        worker = Worker(entry, model, lock)
        logs.always(worker=worker.name, device=entry.uuid)
        patiently(lambda session: worker.register(session, environment))
        with Maintenance():
            asyncio.run(worker.serve())
    return worker.status


class Worker:
    """The engine's loop and the heartbeat of one device."""

    def __init__(self, entry: DeviceEntry, model: DeviceModel, lock: FleetLock) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{entry.name}"
        self.entry, self.model, self.lock = entry, model, lock
        self.queues = [queue_of_model(model.slug), queue_of_device(entry.uuid)]
        self.status = 0
        self._cache = cache.default_folder() if entry.kind == "cuda" else cpu_build.default_cache()
        self._cache_counted_s = float("-inf")
        self._registered = registry.catalogue()
        self._workers = 1

    def register(self, session: Session, environment: Environment) -> None:
        """Stores the kernels, the device, its model and environment, and this worker's name with them."""
        registry.register_kernels(session, self._registered)
        entry, host = self.entry, socket.gethostname()
        ordinal = int(entry.name.partition(":")[2]) if entry.kind == "cuda" else 0
        registry.register_device(
            session, self.model, entry.uuid, host, ordinal, environment, worker=self.name, physical_uuid=entry.gpu_uuid
        )
        # To start a worker on a lost device means that somebody has looked at it.
        registry.set_device_state(session, entry.uuid, DeviceState.READY)
        self._workers = fleet.workers_alive(session)

    async def serve(self) -> None:
        """Runs jobs until a signal says stop: SIGTERM and SIGINT hand the running one back, SIGUSR1 lets it end."""
        intake = Intake()
        supervision = Supervision(self.entry.name, self.entry.uuid, self.name, intake)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, intake.stopping.set)
        loop.add_signal_handler(signal.SIGUSR1, intake.leaving.set)
        heartbeat = asyncio.create_task(self._beat(intake))
        logger.info("Serving %s.", ", ".join(self.queues))
        try:
            while not (intake.is_ending or intake.device_lost.is_set()):
                if intake.paused.is_set():
                    logger.info("Drained: no more jobs until somebody resumes %s.", self.entry.uuid)
                    await first_of(intake.resumed.wait(), intake.stopping.wait(), intake.leaving.wait())
                else:
                    await self._run_engine(supervision)
            # A lost device stays under its worker's name, visibly alive and lost, until somebody looks.
            await first_of(intake.stopping.wait(), intake.leaving.wait())
        finally:
            heartbeat.cancel()

    async def _run_engine(self, supervision: Supervision) -> None:
        """Fetches and runs jobs until told to stop, or until the database goes away."""
        app, intake = make_app(database_url(), supervision.run, self._workers), supervision.intake
        try:
            async with app.open_async():
                engine = asyncio.create_task(app.run_worker_async(queues=self.queues, name=self.name))
                await first_of(
                    asyncio.wait({engine}), intake.stopping.wait(), intake.device_lost.wait(), _drained(supervision)
                )
                engine.cancel()
                await asyncio.gather(engine, return_exceptions=True)
                if not engine.cancelled() and (error := engine.exception()) is not None:
                    raise error
        except (ProcrastinateException, psycopg.Error) as error:
            logger.warning("The job engine stopped (%s); it starts again.", error.__cause__ or error)
            await asyncio.sleep(RECONNECT_S)

    async def _beat(self, intake: Intake) -> None:
        while True:
            try:
                intake.follow(takes_jobs=await asyncio.to_thread(self._beat_once))
            except DeviceBusyError as error:
                logger.error("%s", error)  # noqa: TRY400 - expected: the sentence says it all
                self.status = 1
                intake.stopping.set()
                return
            except (DatabaseUnavailableError, SQLAlchemyError, OSError) as error:
                logger.warning("No heartbeat now: %s", error)
            await asyncio.sleep(settings().heartbeat_s)

    def _beat_once(self) -> bool:
        self.lock.keep()
        with session_scope() as session:
            takes_jobs = registry.heartbeat(session, self.entry.uuid)
            declared = registry.catalogue()
            if declared is not self._registered:  # somebody has edited a folder of kernels
                registry.register_kernels(session, declared)
        self._registered = declared
        if time.monotonic() - self._cache_counted_s > CACHE_COUNTED_EVERY_S:
            files, size = cache.folder_size(self._cache)
            with session_scope() as session:
                registry.note_cache(session, self.entry.uuid, files, size)
            self._cache_counted_s = time.monotonic()
        return takes_jobs


async def _drained(supervision: Supervision) -> None:
    """Returns when no more jobs are to be taken and the running one has ended. Until then the engine must live: its
    heartbeat is the job's.
    """
    intake = supervision.intake
    await first_of(intake.leaving.wait(), intake.paused.wait())
    await supervision.idle.wait()


def main(arguments: list[str]) -> int:
    """`python -m tilewright.service.worker.main DEVICE`: migrates the database if needed, then serves."""
    (device_name,) = arguments
    try:
        schema.upgrade()
        return run_worker(device_name)
    except (ServiceError, TunerError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
