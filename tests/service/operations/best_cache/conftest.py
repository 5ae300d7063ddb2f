"""Memories of bests."""

import pytest
from best_in_memory import answer
from factories import commit_every_best
from waiting import until

from tilewright.service.operations.best_cache.watch import BestWatch


@pytest.fixture
def memory(client):
    """The memory of the application, watched as in a server."""
    memory = client.app.state.best
    watch = BestWatch(memory)
    watch.start()
    yield memory
    watch.stop()


@pytest.fixture
def tuned(memory):
    """Results of every kind that answers differ by, in memory."""
    commit_every_best()
    until(lambda: answer(memory))
    return memory
