"""An entry of the engine that another process has dealt with is left alone."""

from __future__ import annotations

import asyncio
import logging

from procrastinate.jobs import Status

from tilewright.service.worker.engine import make_app


def test_an_entry_that_is_no_longer_ours_is_neither_ended_nor_an_error(database_url, caplog):
    async def handler(*_: object) -> None:
        raise AssertionError

    async def finish() -> None:
        app = make_app(database_url, handler)
        async with app.open_async():
            await app.job_manager.finish_job_by_id_async(4711, Status.SUCCEEDED, delete_job=True)

    with caplog.at_level(logging.WARNING):
        asyncio.run(finish())
    assert "had ended already" in caplog.text
