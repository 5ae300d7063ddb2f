"""Sends the messages of webhooks that are due, several at a time and one of each webhook, from a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import time

from sqlalchemy.exc import SQLAlchemyError

import tilewright
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.webhooks import deliveries
from tilewright.service.operations.webhooks.deliveries import Claimed
from tilewright.service.store.session import session_scope
from tilewright.service.worker.background import Background
from tilewright.service.worker.pinned_post import post

logger = logging.getLogger(__name__)

AT_ONCE = 16
LOOK_EVERY_S = 1.0
STOP_S = 2.0
"""What attempts may still take when the process is asked to stop."""


class WebhookSender(Background):
    """Delivers from `start` (or `with`) to `stop`. Any number of processes may: each attempt is one's alone."""

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

    def _claim(self, busy: list[int]) -> list[Claimed]:
        if len(busy) >= AT_ONCE:
            return []
        try:
            with session_scope() as session:
                return deliveries.claim(session, limit=AT_ONCE - len(busy), busy=busy)
        except (DatabaseUnavailableError, SQLAlchemyError) as error:
            logger.warning("No messages now: %s", error)
            self._stopping.wait(self._look_every_s)
            return []

    async def _deliver(self, claimed: Claimed) -> None:
        now_s = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"tilewright/{tilewright.__version__}",
            "webhook-id": str(claimed.id),
            "webhook-timestamp": str(now_s),
            "webhook-signature": deliveries.signature(claimed.secret, str(claimed.id), now_s, claimed.body),
        }
        attempted = await post(claimed.url, headers, claimed.body)
        if not attempted.is_delivered:
            logger.warning("Message %s, attempt %d: %s", claimed.id, claimed.attempt, attempted.reason)
        await asyncio.to_thread(self._settle, claimed, attempted)

    @staticmethod
    def _settle(claimed: Claimed, attempted: deliveries.DeliveryAttempt) -> None:
        try:
            with session_scope() as session:
                deliveries.settle(session, claimed, attempted)
        except (DatabaseUnavailableError, SQLAlchemyError) as error:
            # It is due again after its claim; the receiver knows a message that comes twice by its id.
            logger.warning("What came of message %s is not written down: %s", claimed.id, error)
