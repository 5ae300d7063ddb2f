"""`tilewright run`: in somebody's program `triton.autotune` takes what is known, and searches only where nothing is."""

from __future__ import annotations

import importlib
from typing import Any

SEARCH = "what triton.autotune finds"


def start() -> None:
    """From now on, in this process. Where a call's configuration is known, nothing is tuned for it."""
    from triton.runtime.autotuner import Autotuner  # noqa: PLC0415 - the program has just imported Triton

    search = Autotuner.run

    def run(this: Any, *args: Any, **kwargs: Any) -> Any:
        known, chosen = _state(this)
        named = known.named(args, kwargs)
        key = known.key(named)
        if key not in chosen:
            chosen[key] = known.config(named, otherwise=SEARCH)
        config = chosen[key]
        if config is None:
            return search(this, *args, **kwargs)
        this.best_config = config
        return importlib.import_module(f"{__package__}.known").launched(this, config, named, args, kwargs)

    Autotuner.run = run


def _state(tuner: Any) -> Any:
    """What is known of the autotuner's calls, and what was chosen for them."""
    if "tilewright" not in tuner.__dict__:
        # Here, and not ahead: it takes a while, and many programs that import Triton launch nothing.
        module = importlib.import_module(f"{__package__}.known")
        tuner.tilewright = module.KnownConfigs(tuner, only_tuned=True), {}
    return tuner.tilewright
