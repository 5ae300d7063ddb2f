"""The thread that keeps best configurations in memory up to date, by itself."""

import threading

from waiting import until

from tilewright.service.operations.best_cache import watch as best_watch
from tilewright.service.operations.best_cache.memory import BestMemory
from tilewright.service.operations.best_cache.watch import BestWatch
from tilewright.service.store.changes import Changes


def test_a_watch_that_waits_for_changes_stops_at_once(configured, monkeypatch):
    begun = []
    wait = Changes.wait
    monkeypatch.setattr(Changes, "wait", lambda *of: begun.append(of) or wait(*of))
    monkeypatch.setattr(best_watch, "LOOK_EVERY_S", 60)  # for so long it would wait
    watch = BestWatch(BestMemory(100))
    for times in (1, 2):  # it may be started again
        watch.start()
        until(lambda: len(begun) >= times)  # noqa: B023 - called at once
        watch.stop()
        assert not [thread for thread in threading.enumerate() if thread.name == "best"]
