"""`tilewright run`: in somebody's program `triton.autotune` takes what is known, and searches only where nothing is.

If several processes would search for the same, one does.
"""

from __future__ import annotations

import gc
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

SEARCH = "what triton.autotune finds"


def start() -> None:
    """Watches Triton's autotuner from now on, in this process: calls whose configuration is known start no search."""
    from triton.runtime.autotuner import Autotuner  # noqa: PLC0415 - the program has just imported Triton

    search, decorate = Autotuner.run, Autotuner.__init__

    def decorated(this: Any, *args: Any, **kwargs: Any) -> None:
        decorate(this, *args, **kwargs)
        _import_ahead()

    def run(this: Any, *args: Any, **kwargs: Any) -> Any:
        known, chosen = _state(this)
        named = known.named(args, kwargs)
        key = known.key(named)
        if key not in chosen:
            chosen[key] = known.config(named, otherwise=SEARCH)
            if chosen[key] is None:
                chosen[key], results = _searched(this, known, named, lambda: search(this, *args, **kwargs))
                if results:
                    return results[0]
        config = chosen[key]
        if config is None:
            return search(this, *args, **kwargs)
        this.best_config = config
        return importlib.import_module(f"{__package__}.known").launched(this, config, named, args, kwargs)

    Autotuner.run, Autotuner.__init__ = run, decorated


@cache
def _import_ahead() -> None:
    """Imports in a thread what the first launch needs, while the program makes its arrays; once a process.

    A process that forks waits for it: an import that is under way would never end in the child.
    """
    thread = threading.Thread(target=_imported, daemon=True, name="tilewright-import")
    thread.start()
    os.register_at_fork(before=thread.join)


def _imported() -> None:
    with suppress(Exception):  # the first launch imports again, and says what it is
        importlib.import_module(f"{__package__}.known")
        importlib.import_module("tilewright.kernels.catalogue").catalogue()


def _state(tuner: Any) -> Any:
    """The autotuner's KnownConfigs, and the configurations chosen for its calls so far."""
    if "tilewright" not in tuner.__dict__:
        with _without_collections():
            module = importlib.import_module(f"{__package__}.known")
        tuner.tilewright = module.KnownConfigs(tuner, only_tuned=True), {}
    return tuner.tilewright


@contextmanager
def _without_collections() -> Iterator[None]:
    """Puts garbage collection off: going through what PyTorch has loaded takes 0.1 s, and frees nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _searched(tuner: Any, known: Any, named: Any, launch: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """The configuration that a search finds, in this process or another, and the result of its launch.

    `launch` searches and launches, as Triton does. None: there is nothing to search for, or nothing to share.
    """
    one_search = importlib.import_module(f"{__package__}.one_search")
    configs = {str(config): config for config in tuner.configs}
    topic = known.search(named) if len(configs) > 1 else None
    results: list[Any] = []
    if topic is None:
        return None, results

    def search() -> str:
        results.append(launch())
        return str(tuner.best_config)

    return configs.get(one_search.found_once(topic, configs, search)), results
