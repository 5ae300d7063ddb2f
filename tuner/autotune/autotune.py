"""autotune(): in the place of `triton.autotune`, with its arguments. It asks what is known and never tunes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.tuner.autotune.known import KnownConfigs, launched
from tilewright.tuner.runtime.errors import LaunchError
from tilewright.tuner.runtime.runtime import Runtime

UNTRACEABLE = "torch.compile cannot trace the choice of a configuration: launch it in a torch.library.custom_op"
"""The refusal with `fullgraph=True`; without it, PyTorch launches outside of the graph."""


def autotune(
    configs: Sequence[Any], key: Sequence[str], *arguments: Any, runtime: Runtime | None = None, **named: Any
) -> Callable[[Any], ChosenFunction]:
    """A decorator like `triton.autotune`, whose arguments it takes; `runtime` is this process's unless it is given."""
    import triton  # noqa: PLC0415 - takes a second, and the extra `triton`

    decorate = triton.autotune(configs, key, *arguments, **named)  # refuses what it refuses
    return lambda fn: ChosenFunction(decorate(fn), runtime)


class ChosenFunction:
    """A Triton function that is launched with the configuration known to be the best.

    What is not said here is as with Triton's own autotuner, which it has as `tuner` and which never measures anything.
    The first of its configurations that its pruning keeps is used for calls that no declared kernel describes.
    """

    def __init__(self, tuner: Any, runtime: Runtime | None) -> None:
        self.tuner, self._known = tuner, KnownConfigs(tuner, runtime)
        self.best_config: Any = None
        self._chosen: dict[tuple[Any, ...], Any] = {}

    def __getattr__(self, name: str) -> Any:
        """The autotuner's own attribute: `fn`, `configs`, `keys`, `warmup` or any other."""
        return getattr(self.__dict__["tuner"], name)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """The launch on that grid."""
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """One launch; at the first of its kind the known configuration is looked up."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.compiler.is_compiling():
            raise LaunchError(UNTRACEABLE)
        named = self._known.named(args, kwargs)
        key = self._known.key(named)
        if key not in self._chosen:
            known = self._known.config(named, otherwise="the first of its configurations")
            self._chosen[key] = known or self._first(args, kwargs)
        self.best_config = self._chosen[key]
        return launched(self.tuner, self.best_config, named, args, kwargs)

    def _first(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The first configuration that the application's own pruning keeps: others may compute something else."""
        self.tuner.nargs = dict(zip(self.tuner.arg_names, args, strict=False))  # where Triton looks for them
        try:
            return self.tuner.prune_configs(kwargs)[0]
        finally:
            self.tuner.nargs = None
