"""Sends due messages of webhooks from a thread: several at a time, one of each webhook."""

from __future__ import annotations

import asyncio
import logging
import time

from sqlalchemy.exc import SQLAlchemyError

import tilewright
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.webhooks import deliveries
from tilewright.service.operations.webhooks.deliveries import ClaimedMessage, DeliveryAttempt
from tilewright.service.store.session import session_scope
from tilewright.service.worker.background import Background
from tilewright.service.worker.pinned_post import post

logger = logging.getLogger(__name__)

AT_ONCE = 16
LOOK_EVERY_S = 1.0
STOP_S = 2.0
"""How long attempts may still take when the process is asked to stop."""


class WebhookSender(Background):
    """Delivers from `start` (or `with`) to `stop`, in any number of processes; only one makes each attempt."""

    def __init__(self, look_every_s: float = LOOK_EVERY_S) -> None:
        super().__init__("webhooks", 2 * (STOP_S + look_every_s))
        self._look_every_s = look_every_s

    def _work(self) -> None:
        asyncio.run(self._loop())

    async def _loop(self) -> None:
        under_way: dict[asyncio.Task[None], int] = {}  # attempt -> its webhook
        while not self._stopping.is_set():
            for claimed in await asyncio.to_thread(self._claim, list(under_way.values())):
                under_way[asyncio.create_task(self._deliver(claimed))] = claimed.webhook_id
            if under_way:
                await asyncio.wait(under_way, timeout=self._look_every_s, return_when=asyncio.FIRST_COMPLETED)
                under_way = {task: hook for task, hook in under_way.items() if not task.done()}
            else:
                await asyncio.to_thread(self._stopping.wait, self._look_every_s)
        if under_way:
            _, late = await asyncio.wait(under_way, timeout=STOP_S)
            for task in late:  # due again after its claim
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    def _claim(self, busy: list[int]) -> list[ClaimedMessage]:
        if len(busy) >= AT_ONCE:
            return []
        try:
            with session_scope() as session:
                return deliveries.claim(session, limit=AT_ONCE - len(busy), busy=busy)
        except (DatabaseUnavailableError, SQLAlchemyError) as error:
            logger.warning("No messages can be sent now: %s", error)
            self._stopping.wait(self._look_every_s)
            return []

    async def _deliver(self, message: ClaimedMessage) -> None:
        now_s = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"tilewright/{tilewright.__version__}",
            "webhook-id": str(message.id),
            "webhook-timestamp": str(now_s),
            "webhook-signature": deliveries.signature(message.secret, str(message.id), now_s, message.body),
        }
        attempt = await post(message.url, headers, message.body)
        if not attempt.is_delivered:
            logger.warning("Message %s was not delivered (attempt %d): %s", message.id, message.attempt, attempt.reason)
        await asyncio.to_thread(self._settle, message, attempt)

    @staticmethod
    def _settle(message: ClaimedMessage, attempt: DeliveryAttempt) -> None:
        try:
            with session_scope() as session:
                deliveries.settle(session, message, attempt)
        except (DatabaseUnavailableError, SQLAlchemyError) as error:
            # It is due again after its claim; the receiver recognises a repeated message by its id.
            logger.warning("The delivery of message %s could not be recorded: %s", message.id, error)
