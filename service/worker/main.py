"""The worker process of one device: registers it, keeps its locks and its heartbeat, runs its jobs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterable

import psycopg
from procrastinate.exceptions import ProcrastinateException
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tilewright.service.errors import DatabaseUnavailableError, ServiceError
from tilewright.service.operations import registry
from tilewright.service.settings import settings
from tilewright.service.store import schema
from tilewright.service.store.engine_queue import queue_of_device, queue_of_model
from tilewright.service.store.models import DeviceState
from tilewright.service.store.patience import patiently
from tilewright.service.store.session import database_url, session_scope
from tilewright.service.worker.device_lock import DeviceBusyError, FleetLock, host_lock
from tilewright.service.worker.engine import make_app
from tilewright.service.worker.maintenance import Maintenance
from tilewright.service.worker.supervision import Supervision
from tilewright.tuner.device import DeviceModel, Environment
from tilewright.tuner.devices import open_device
from tilewright.tuner.errors import TunerError

logger = logging.getLogger(__name__)

RECONNECT_S = 1.0


def run_worker(device_name: str) -> int:
    """Runs jobs on the device until SIGTERM or SIGINT; 0 then.

    Raises NoDeviceError, DeviceBusyError where another worker serves the device, DatabaseUnavailableError.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("procrastinate").setLevel(logging.WARNING)
    device = open_device(device_name)
    try:
        uuid, model, environment = device.uuid, device.model, device.environment
    finally:
        device.close()  # jobs open it in their own process; this one holds no context
    with host_lock(uuid, "worker"), FleetLock(uuid) as lock:
        ordinal = int(device_name.partition(":")[2]) if device_name.startswith("cuda:") else 0
        patiently(lambda session: _register(session, model, uuid, ordinal, environment))
        worker = Worker(device_name, uuid, [queue_of_model(model.slug), queue_of_device(uuid)], lock)
        with Maintenance():
            asyncio.run(worker.serve())
    return worker.status


def _register(session: Session, model: DeviceModel, uuid: str, ordinal: int, environment: Environment) -> None:
    registry.register_kernels(session, registry.catalogue())
    registry.register_device(session, model, uuid, socket.gethostname(), ordinal, environment)
    # Whoever starts a worker on a lost device has looked at it.
    registry.set_device_state(session, uuid, DeviceState.READY)


class Worker:
    """The engine's loop and the heartbeat of one device."""

    def __init__(self, device_name: str, device_uuid: str, queues: Iterable[str], lock: FleetLock) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{device_name}"
        self.device_name, self.device_uuid, self.queues, self.lock = device_name, device_uuid, list(queues), lock
        self.status = 0

    async def serve(self) -> None:
        """Runs jobs until a signal says stop; the running one is handed back then."""
        supervision = Supervision(self.device_name, self.device_uuid, self.name)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, supervision.stopping.set)
        heartbeat = asyncio.create_task(self._beat(supervision))
        logger.info("Serving %s.", ", ".join(self.queues))
        try:
            while not (supervision.stopping.is_set() or supervision.device_lost.is_set()):
                await self._run_engine(supervision)
            # A lost device stays under its worker's name, visibly alive and lost, until somebody looks.
            await supervision.stopping.wait()
        finally:
            heartbeat.cancel()

    async def _run_engine(self, supervision: Supervision) -> None:
        """Fetches and runs jobs until told to stop, or until the database goes away."""
        app = make_app(database_url(), supervision.run)
        try:
            async with app.open_async():
                engine = asyncio.create_task(app.run_worker_async(queues=self.queues, name=self.name))
                reasons = [
                    asyncio.create_task(event.wait()) for event in (supervision.stopping, supervision.device_lost)
                ]
                await asyncio.wait({engine, *reasons}, return_when=asyncio.FIRST_COMPLETED)
                for task in (engine, *reasons):
                    task.cancel()
                await asyncio.gather(engine, return_exceptions=True)
                if not engine.cancelled() and (error := engine.exception()) is not None:
                    raise error
        except (ProcrastinateException, psycopg.Error) as error:
            logger.warning("The job engine stopped (%s); it starts again.", error.__cause__ or error)
            await asyncio.sleep(RECONNECT_S)

    async def _beat(self, supervision: Supervision) -> None:
        while True:
            try:
                await asyncio.to_thread(self._beat_once)
            except DeviceBusyError as error:
                logger.error("%s", error)  # noqa: TRY400 - expected: the sentence says it all
                self.status = 1
                supervision.stopping.set()
                return
            except (DatabaseUnavailableError, SQLAlchemyError) as error:
                logger.warning("No heartbeat now: %s", error)
            await asyncio.sleep(settings().heartbeat_s)

    def _beat_once(self) -> None:
        self.lock.keep()
        with session_scope() as session:
            registry.heartbeat(session, self.device_uuid)


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
